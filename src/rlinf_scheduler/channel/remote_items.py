"""What a channel's server knows of items that other nodes hold for it. On the I/O thread only."""

from __future__ import annotations

import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from rlinf_scheduler.channel.held import HOLDER, Fetching, HeldAt, Keep, NotHeld
from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.comm.runtime import Runtime
from rlinf_scheduler.comm.shm.payload import ReceivedPayload
from rlinf_scheduler.errors import CommTimeout
from rlinf_scheduler.queueing.item import Item
from rlinf_scheduler.queueing.messages import Instruction
from rlinf_scheduler.queueing.state import ChannelState
from rlinf_scheduler.wording import counted

logger = Reporter(__name__)

# What left a queue is released with what comes next, or so much later.
SWEEP_S = 0.5


class RemoteItem:
    """An item that its producer's node holds; released there when nobody refers to this any more.

    It has the face of `ReceivedPayload`.

    Attributes:
        at: where it is.
        producer: who put it.
    """

    __slots__ = ("__weakref__", "at", "producer", "size_bytes")
    block = None

    def __init__(self, at: HeldAt, producer: str) -> None:
        self.at = at
        self.producer = producer
        self.size_bytes = at.size_bytes

    def mark(self) -> None:
        """Nobody sees here whether it was taken."""

    def frames(self) -> list[Buffer]:
        """Return the frames that go to a consumer in place of its bytes."""
        return [self.at.to_frame()]

    def why_lost(self) -> str:
        """Whose it was and where it is lost, in a phrase."""
        return f"put by '{self.producer}' went with {self.at.node}: the process that held them there is gone"


class _Ref(weakref.ref[RemoteItem]):
    """Stands for an item; it is released after that was dropped."""

    __slots__ = ("number", "process_id")
    number: int
    process_id: str


class _Node:
    """A process that holds items for this one, and what is to be said to it."""

    __slots__ = ("claimed", "endpoint", "name", "refs", "released")

    def __init__(self, endpoint: Endpoint, name: str) -> None:
        self.endpoint = endpoint
        self.name = name
        self.claimed: list[int] = []
        self.released: list[int] = []
        self.refs: dict[int, _Ref] = {}


class RemoteItems:
    """The items of one channel that other nodes hold.

    Args:
        on_lost: called when a holder is gone, with what says of a payload how it was lost ("" if it was not).
    """

    def __init__(self, messenger: Runtime, on_lost: Callable[[Callable[[object], str]], None]) -> None:
        self._messenger = messenger
        self._on_lost = on_lost
        self._nodes: dict[str, _Node] = {}
        self._dropped: deque[_Ref] = deque()
        self._is_due = False
        self._sweep_due = False
        messenger.on_peer_lost(self._lose)

    def receive(self, at: HeldAt, producer: str) -> RemoteItem:
        """An item was put whose bytes are elsewhere."""
        item = RemoteItem(at, producer)
        process_id = at.holder.process_id
        node = self._nodes.get(process_id)
        if node is None:
            node = self._nodes[process_id] = _Node(at.holder, at.node)
        ref = _Ref(item, self._dropped.append)
        ref.process_id, ref.number = process_id, at.number
        node.refs[at.number] = ref
        node.claimed.append(at.number)
        self._flush_soon()
        return item

    def settle(self) -> None:
        """See which items are not needed any more."""
        while self._dropped:
            ref = self._dropped.popleft()
            node = self._nodes.get(ref.process_id)
            if node is not None and node.refs.pop(ref.number, None) is not None:
                node.released.append(ref.number)
                self._flush_soon()

    def describe(self) -> list[str]:
        """Which nodes hold how much, in phrases."""
        lines = []
        for node in self._nodes.values():
            items = [item for ref in node.refs.values() if (item := ref()) is not None]
            if items:
                lines.append(_place_of(items))
        return lines

    def bring(
        self, items: Iterable[Item], then: Callable[[str], None], timeout_s: float | None = None
    ) -> None:
        """Fetch items, whose consumers cannot fetch them themselves, and go on when they are here, lost or late.

        Args:
            items: those that are elsewhere, and others.
            then: called with what is late and where it is, in a phrase; "" if nothing is.
            timeout_s: how long their holders have; None: as long as of a `Fetching`.
        """
        until = None if timeout_s is None else self._messenger.now() + timeout_s
        of_holders: dict[str, list[Item]] = {}
        for item in items:
            if isinstance(item.payload, RemoteItem) and not item.lost:
                of_holders.setdefault(item.payload.at.holder.process_id, []).append(item)
        left = dict.fromkeys(of_holders)
        late: list[str] = []

        def go_on(process_id: str, what_is_late: str) -> None:
            left.pop(process_id, None)
            if what_is_late:
                late.append(what_is_late)
            if not left:
                then("; ".join(late))

        if not left:
            then("")
        # Each by itself: what goes wrong with one of them says nothing about what others have.
        for process_id, wanted in of_holders.items():
            self._bring_from_one(wanted, until, partial(go_on, process_id))

    def _bring_from_one(self, items: list[Item], until: float | None, then: Callable[[str], None]) -> None:
        wanted = [item for item in items if isinstance(item.payload, RemoteItem) and not item.lost]
        if not wanted:
            then("")
            return
        parts = [item.payload.at for item in wanted]
        left_s = None if until is None else max(0.0, until - self._messenger.now())
        Fetching(self._messenger, parts, partial(self._brought, wanted, until, then), left_s).begin()

    def _brought(
        self,
        items: list[Item],
        until: float | None,
        then: Callable[[str], None],
        arrived: list[ReceivedPayload] | None,
        error: Exception | None,
    ) -> None:
        if arrived is not None:
            for item, payload in zip(items, arrived, strict=True):
                item.payload = payload
            then("")
            return
        remote = [item.payload for item in items if isinstance(item.payload, RemoteItem)]
        if remote and isinstance(error, CommTimeout):  # they are neither here nor lost
            then(f"{_place_of(remote)}, where nobody has answered for {error.waited_s:.1f} s")
            return
        missing = isinstance(error, NotHeld) and error.missing
        gone = {id(each) for each in remote if not missing or each.at.number in missing}
        self._on_lost(partial(_why_lost, lambda item: id(item) in gone))
        self._bring_from_one([item for item in items if id(item.payload) not in gone], until, then)

    def close(self) -> None:
        """The channel is no more: its holders drop all that they have for it."""
        self._messenger.off_peer_lost(self._lose)
        for node in self._nodes.values():
            self._release_all(node)
        self._nodes.clear()

    def _flush_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._messenger.submit(self._flush)

    def _flush(self) -> None:
        self._is_due = False
        holds_any = False
        for node in self._nodes.values():
            if node.claimed or node.released:
                claimed, node.claimed = node.claimed, []
                released, node.released = node.released, []
                self._messenger.notify(node.endpoint, HOLDER, Keep(claimed, released))
            holds_any = holds_any or bool(node.refs)
        if holds_any and not self._sweep_due:
            self._sweep_due = True
            self._messenger.call_later(SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        self._sweep_due = False
        self.settle()
        self._flush()

    def _release_all(self, node: _Node) -> None:
        # Nothing is said to who may be dead where there is nothing to say: that would be a new connection to it.
        if numbers := [*node.refs, *node.released]:
            self._messenger.notify(node.endpoint, HOLDER, Keep([], numbers))

    def _lose(self, process_id: str) -> None:
        node = self._nodes.pop(process_id, None)
        if node is None:
            return
        # It may live, and not know that it was given up: the two may never have been connected.
        self._release_all(node)
        if node.refs:
            self._on_lost(partial(_why_lost, lambda item: item.at.holder.process_id == process_id))


def _place_of(items: Sequence[RemoteItem]) -> str:
    """Say where items of one holder are, in a phrase."""
    size_bytes = sum(item.size_bytes for item in items)
    are = "is" if len(items) == 1 else "are"
    return f"{counted(len(items), 'item')} of {size_bytes} bytes {are} on {items[0].at.node}"


def _why_lost(is_lost: Callable[[RemoteItem], bool], payload: object) -> str:
    return payload.why_lost() if isinstance(payload, RemoteItem) and is_lost(payload) else ""


def lose_items(
    channel: str,
    state: ChannelState,
    carry_out: Callable[[list[Instruction]], None],
    why: Callable[[object], str],
) -> None:
    """Lose the items of a process that is gone, which held them, on its node or its device."""
    gone: dict[int, str] = {}
    before = state.queues.tally.num_lost
    out = state.lose_items(partial(_noted, why, gone))
    if gone:
        _log_lost(channel, gone, state.queues.tally.num_lost - before)
    carry_out(out)


def _log_lost(channel: str, gone: dict[int, str], num_lost: int) -> None:
    told = "; ".join(f"{counted(count, 'item')} {each}" for each, count in Counter(gone.values()).items())
    rest = len(gone) - num_lost
    others = f", {rest} with consumers or subscriptions, or dead letters" if rest else ""
    logger.warning(
        "channel '%s': %s; %d of these in queues, which are lost%s", channel, told, num_lost, others
    )


def _noted(why: Callable[[object], str], gone: dict[int, str], payload: object) -> str:
    """As `why`, and noted; a payload that several have is one item."""
    text = why(payload)
    if text:
        gone[id(payload)] = text
    return text
