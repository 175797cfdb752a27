"""An item whose bytes stay on its producer's node: what travels in their place, and what is said about it.

    held        u8 254, then msgpack of a `HeldAt`

A process of that node, its *holder* (see `node_holder`), has the bytes: by a descriptor of the producer's shared
memory, so nothing is copied. The producer hands an item over before it puts it, the channel's server says that it has
the put (*claims* it) and when the item is gone, and consumers fetch from the holder (`Fetching`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice

import msgspec

from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.peer import Reply
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.runtime import Runtime
from rlinf_scheduler.comm.shm.payload import ReceivedPayload, is_here
from rlinf_scheduler.errors import CommError, SharedMemoryUnreadable

HOLDER = "holder"
HELD = 254
_PREFIX = bytes([HELD])


class HeldAt(msgspec.Struct, array_like=True, frozen=True):
    """The place of an item's bytes, as it travels instead of them.

    Attributes:
        holder: the process that has them.
        number: which of its items it is.
        node: the node, for people.
    """

    holder: Endpoint
    number: int
    size_bytes: int
    node: str

    def to_frame(self) -> bytes:
        """It as a frame."""
        return _PREFIX + msgspec.msgpack.encode(self)

    @classmethod
    def from_frames(cls, frames: Sequence[Buffer]) -> HeldAt | None:
        """Read what `to_frame` wrote; None if the frames are something else.

        Raises:
            ValueError: the frame is damaged.
        """
        if is_here(frames) or frames[0][0] != HELD:
            return None
        return _decode(memoryview(frames[0])[1:])


_decode = msgspec.msgpack.Decoder(HeldAt).decode


class HoldItem(msgspec.Struct, tag=0, array_like=True):
    """A producer hands over an item for a channel's server -> `Held`."""

    keeper: Endpoint


class Held(msgspec.Struct, array_like=True):
    """The number of an item that was handed over, and the node's name; or why it cannot be held."""

    number: int
    node: str
    problem: str = ""


class DropHeld(msgspec.Struct, tag=1, array_like=True):
    """A notice of the producer: a put came to nothing."""

    number: int


class Keep(msgspec.Struct, tag=2, array_like=True):
    """A notice of the channel's server: it has these items now, and does not need those any more."""

    claimed: list[int]
    released: list[int]


class FetchHeld(msgspec.Struct, tag=3, array_like=True):
    """Ask for items -> `Fetched` with their frames, by descriptors if the asker reads shared memory here."""

    asker: Endpoint
    numbers: list[int]
    as_bytes: bool


class Fetched(msgspec.Struct, array_like=True):
    """How many frames each item has; `missing`: those that are not here."""

    counts: list[int]
    missing: list[int]


OfHolder = HoldItem | DropHeld | Keep | FetchHeld


# Holders have so long to answer, and a second more for each so many bytes.
FETCH_TIMEOUT_S = 60.0
SLOW_BYTES_PER_S = 4 << 20


class NotHeld(Exception):
    """A holder does not have what it is asked for.

    Args:
        text: says so.
        missing: the numbers of what it does not have.
    """

    def __init__(self, text: str, missing: Iterable[int] = ()) -> None:
        super().__init__(text)
        self.missing = frozenset(missing)


class Fetching:
    """Items of one delivery on their way from their holders; it ends by calling `done` once, or by `cancel`.

    Args:
        parts: the items: their frames, or where they are held.
        done: called with all of them, in order; or with None and what went wrong.
        timeout_s: how long their holders have, all in all; None: a minute, and more for what is large.
    """

    def __init__(
        self,
        messenger: Runtime,
        parts: Sequence[list[Buffer] | HeldAt],
        done: Callable[[list[ReceivedPayload] | None, Exception | None], None],
        timeout_s: float | None = None,
    ) -> None:
        self._messenger = messenger
        self._done: Callable[[list[ReceivedPayload] | None, Exception | None], None] | None = done
        self._items: list[ReceivedPayload | None] = [None] * len(parts)
        self._asked: dict[str, tuple[HeldAt, list[int]]] = {}
        self._requests: list[Promise[Reply]] = []
        for place, part in enumerate(parts):
            if isinstance(part, HeldAt):
                self._asked.setdefault(part.holder.process_id, (part, []))[1].append(place)
            else:
                self._items[place] = messenger.payloads.receive(part)
        self._parts = parts
        size_bytes = sum(part.size_bytes for part in parts if isinstance(part, HeldAt))
        self.timeout_s = FETCH_TIMEOUT_S + size_bytes / SLOW_BYTES_PER_S if timeout_s is None else timeout_s
        self._until = messenger.now() + self.timeout_s

    def begin(self) -> None:
        """Ask every holder for what it has."""
        for process_id in list(self._asked):
            self._ask(process_id, as_bytes=False)

    def cancel(self) -> None:
        """Nobody wants them any more."""
        self._done = None
        for request in self._requests:
            request.cancel()

    def describe(self) -> str:
        """Return what the fetch waits for, in a phrase."""
        nodes = sorted({first.node for first, _ in self._asked.values()})
        num_items = sum(len(places) for _, places in self._asked.values())
        are = "is on its way" if num_items == 1 else "are on their way"
        return f"{num_items} of its items {are} from {' and '.join(nodes)}"

    def _ask(self, process_id: str, *, as_bytes: bool) -> None:
        first, places = self._asked[process_id]
        held = [part for part in map(self._parts.__getitem__, places) if isinstance(part, HeldAt)]
        request = self._messenger.request(
            first.holder,
            HOLDER,
            FetchHeld(self._messenger.endpoint, [part.number for part in held], as_bytes),
            timeout_s=max(0.0, self._until - self._messenger.now()),
            reply_type=Fetched,
        )
        self._requests.append(request)
        request.add_done_callback(partial(self._on_fetched, process_id, as_bytes))

    def _on_fetched(self, process_id: str, as_bytes: bool, request: Promise[Reply]) -> None:
        if self._done is None:
            return
        error = request.exception(0)
        if error is not None:
            self._end(None, error if isinstance(error, Exception) else CommError(repr(error)))
            return
        first, places = self._asked[process_id]
        fetched: Fetched = request.result(0).head
        if fetched.missing:
            number = len(fetched.missing)
            text = f"{first.node} does not have {number} of {len(places)} items any more"
            self._end(None, NotHeld(text, fetched.missing))
            return
        frames = iter(request.result(0).frames)
        try:
            for place, count in zip(places, fetched.counts, strict=True):
                self._items[place] = self._messenger.payloads.receive(list(islice(frames, count)))
        except SharedMemoryUnreadable as problem:
            if as_bytes:
                self._end(None, problem)
            else:
                self._ask(process_id, as_bytes=True)
            return
        del self._asked[process_id]
        if not self._asked:
            self._end([item for item in self._items if item is not None], None)

    def _end(self, items: list[ReceivedPayload] | None, error: Exception | None) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(items, error)
