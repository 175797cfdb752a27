"""The receiving half of the mailbox: what has arrived and waits for a recv, and recvs that wait for an item."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from rlinf.scheduler.comm.directory import DirectoryClient, Entry
from rlinf.scheduler.comm.messenger import Messenger
from rlinf.scheduler.comm.parcel import Arrived
from rlinf.scheduler.comm.peer import Request
from rlinf.scheduler.errors import CommError, PeerDied
from rlinf.scheduler.mailbox.outgoing import ITEM_SERVICE, ROOM_SERVICE
from rlinf.scheduler.mailbox.stamp import Stamp
from rlinf.scheduler.mailbox.transfer import Transfer, renamed

# Says why an item is not what a recv wants; None if it is.
Check = Callable[[Any], CommError | None]
Completion = Callable[[], None]
_next_order = itertools.count().__next__
_TAKEN = Arrived([])


class Item:
    """One item that arrived.

    Attributes:
        meta: what its sender says of it.
        arrived: its bytes; empty once it was taken.
        process_id: the process that sent it first.
    """

    __slots__ = ("arrived", "counted", "meta", "order", "process_id", "size_bytes")

    def __init__(self, meta: Any, arrived: Arrived, process_id: str) -> None:
        self.meta = meta
        self.arrived = arrived
        self.process_id = process_id
        self.size_bytes = arrived.size_bytes
        self.order = _next_order()
        self.counted = False  # whether its sender was given its room back

    def take(self) -> Arrived:
        """Its bytes, which whoever still knows the item does not keep."""
        arrived, self.arrived = self.arrived, _TAKEN
        return arrived


class _Recv(Transfer):
    def __init__(self, operation: str, peer: str, timeout_s: float, check: Check | None) -> None:
        super().__init__(operation, peer, timeout_s)
        self.check = check
        self.item: Item | None = None


class _Lane:
    """What comes from one peer under one topic; items and recvs never wait here at the same time.

    Attributes:
        process_id: the peer's process, as far as it is known and lives.
        last_numbers: of every process that had the peer's name, the number of its last stamped item.
    """

    def __init__(self, name: str, topic: str) -> None:
        self.name = name
        self.topic = topic
        self.items: deque[Item] = deque()
        self.recvs: deque[_Recv] = deque()
        self.process_id = ""
        self.last_numbers: dict[str, int] = {}

    def is_new(self, stamp: Stamp) -> bool:
        """Whether an item was not here yet: one that two processes sent comes twice."""
        if stamp.number <= self.last_numbers.get(stamp.origin.process_id, -1):
            return False
        self.last_numbers[stamp.origin.process_id] = stamp.number
        return True

    def restore(self, item: Item) -> None:
        """Put an item back where it was."""
        later = (index for index, held in enumerate(self.items) if held.order > item.order)
        self.items.insert(next(later, len(self.items)), item)


class _Room:
    """How much of what one process sent under one name has been received, and who waits for more of it."""

    def __init__(self) -> None:
        self.taken_bytes = 0
        self.waiting: list[tuple[int, Request]] = []

    def take(self, size_bytes: int) -> list[Request]:
        """Count an item as received; the requests that this answers come back."""
        self.taken_bytes += size_bytes
        due = [request for wanted, request in self.waiting if wanted <= self.taken_bytes]
        if due:
            self.waiting = [entry for entry in self.waiting if entry[0] > self.taken_bytes]
        return due


class Inbox:
    """Holds what others sent to this process until somebody receives it, in order for each peer and topic.

    Args:
        messenger: this process's messenger.
        directory: where peers are found, to notice when one that is waited for dies.
        own_name: the name that items for this process carry.
        keep: given, on the I/O thread, every item that is to be handed on: its sender's name, the item, its stamp, and
            what to call there when this process may have it.
    """

    def __init__(
        self,
        messenger: Messenger,
        directory: DirectoryClient,
        own_name: str,
        keep: Callable[[str, Item, Stamp, Completion], None],
    ) -> None:
        self._messenger = messenger
        self._directory = directory
        self._own_name = own_name
        self._keep = keep
        self._lock = threading.Lock()
        # Recvs that have an item which nobody has looked at; it goes back if their handles are dropped.
        self._untaken: set[_Recv] = set()
        self._lanes: dict[tuple[str, str], _Lane] = {}
        self._rooms: dict[tuple[str, str, str], _Room] = {}
        messenger.serve(ITEM_SERVICE, self._on_item)
        messenger.serve(ROOM_SERVICE, self._on_room)
        messenger.on_peer_lost(self._forget_process)

    def recv(
        self,
        peer: str,
        *,
        timeout_s: float,
        check: Check | None = None,
        topic: str = "",
        operation: str = "recv",
        waiting_for: str = "an item",
    ) -> tuple[Future[Item], Callable[[], None]]:
        """The next item from `peer`; one that `check` refuses stays where it is.

        Args:
            peer: from whom.
            timeout_s: how long to wait for it.
            check: see above.
            topic: of which topic.
            operation: what this is part of, for messages.
            waiting_for: what would end the wait, for messages.

        Returns:
            The future of the item, and what makes the item its owner's: until that is called, an item whose
            future is dropped goes back.
        """
        self._messenger.check_process()
        recv = _Recv(operation, peer, timeout_s, check)
        completions: list[Completion] = []
        with self._lock:
            lane = self._lane(peer, topic)
            future = recv.new_weak_future(
                lambda: self._messenger.submit(lambda: self._on_dropped(lane, recv))
            )
            lane.recvs.append(recv)
            self._match(lane, completions)
            waits = recv in lane.recvs
            unknown = not lane.process_id
        _run(completions)
        if waits:
            recv.arm(self._messenger, lambda: self._drop(lane, recv, recv.timeout(waiting_for)))
            if unknown:
                recv.look_up(
                    self._directory,
                    lambda entry: self._watch(lane, entry),
                    lambda error: self._drop(lane, recv, error),
                )
        return future, lambda: self._untaken.discard(recv)

    def held_bytes(self, peer: str) -> int:
        """How many bytes from `peer` wait for a recv."""
        with self._lock:
            lane = self._lanes.get((peer, ""))
            return sum(item.size_bytes for item in lane.items) if lane is not None else 0

    def _lane(self, name: str, topic: str) -> _Lane:
        lane = self._lanes.get((name, topic))
        if lane is None:
            lane = self._lanes[name, topic] = _Lane(name, topic)
        return lane

    def _room(self, name: str, topic: str, process_id: str) -> _Room:
        return self._rooms.setdefault((process_id, name, topic), _Room())

    # -- from other processes, on the I/O thread -------------------------------------------------

    def _on_item(self, request: Request) -> None:
        source, destination, meta, *stamped = request.head
        self._check_name(destination)
        stamp = Stamp.from_wire(stamped[0]) if stamped else None
        sender = request.peer_id if stamp is None else stamp.origin.process_id
        item = Item(meta, self._messenger.parcels.receive(request.frames), sender)
        if stamp is not None and stamp.keep:
            self._keep(source, item, stamp, lambda: self._enter(request, source, item, stamp))
        else:
            self._enter(request, source, item, stamp)

    def _enter(self, request: Request, source: str, item: Item, stamp: Stamp | None) -> None:
        """An item is here: its sender may know, and somebody may have it."""
        topic = "" if stamp is None else stamp.topic
        completions: list[Completion] = []
        with self._lock:
            lane = self._lane(source, topic)
            if stamp is None or lane.is_new(stamp):
                lane.process_id = item.process_id
                lane.items.append(item)
                self._match(lane, completions)
            taken_bytes = self._room(source, topic, item.process_id).taken_bytes
        if stamp is not None:
            # Its end concerns those who wait for more of it, whoever brought this, and however long that took.
            self._messenger.connect(stamp.origin)
        request.reply(taken_bytes)
        _run(completions)

    def _on_room(self, request: Request) -> None:
        source, destination, wanted_bytes, topic = request.head
        self._check_name(destination)
        with self._lock:
            room = self._room(source, topic, request.peer_id)
            if room.taken_bytes < wanted_bytes:
                room.waiting.append((wanted_bytes, request))
                return
            taken_bytes = room.taken_bytes
        request.reply(taken_bytes)

    def _check_name(self, destination: str) -> None:
        if destination != self._own_name:
            raise CommError(f"this is '{self._own_name}', not '{destination}'")

    def _forget_process(self, process_id: str) -> None:
        completions: list[Completion] = []
        with self._lock:
            for key in [key for key in self._rooms if key[0] == process_id]:
                del self._rooms[key]
            for lane in self._lanes.values():
                if lane.process_id == process_id:
                    lane.process_id = ""
                    completions += [
                        _failure(recv, PeerDied(lane.name, "its process is gone")) for recv in lane.recvs
                    ]
                    lane.recvs.clear()
        _run(completions)

    # -- matching ---------------------------------------------------------------------------------

    def _match(self, lane: _Lane, completions: list[Completion]) -> None:
        """Bring items and recvs together; under the lock. What is to be called after it is collected."""
        while lane.items and lane.recvs:
            recv = lane.recvs.popleft()
            if not recv.claim():
                continue
            refused = recv.check(lane.items[0].meta) if recv.check is not None else None
            if refused is not None:
                completions.append(_claimed_failure(recv, refused))
                continue
            item = recv.item = lane.items.popleft()
            self._untaken.add(recv)
            completions.append(_success(recv, item))
            if item.counted:
                continue
            item.counted = True
            room = self._rooms.get((item.process_id, lane.name, lane.topic))
            if room is not None or lane.process_id == item.process_id:
                room = self._room(lane.name, lane.topic, item.process_id)
                for request in room.take(item.size_bytes):
                    completions.append(_answer(request, room.taken_bytes))

    def _watch(self, lane: _Lane, entry: Entry) -> None:
        with self._lock:
            if not lane.process_id:
                lane.process_id = entry.endpoint.process_id
        # The connection is how its death is noticed, even if it never sends anything.
        self._messenger.connect(entry.endpoint)

    def _on_dropped(self, lane: _Lane, recv: _Recv) -> None:
        """Nobody can take what a recv brings any more: it leaves the line, or its item goes back."""
        recv.release()
        completions: list[Completion] = []
        with self._lock:
            if recv in lane.recvs:
                lane.recvs.remove(recv)
            if recv in self._untaken and recv.item is not None:
                self._untaken.remove(recv)
                lane.restore(recv.item)
                self._match(lane, completions)
        _run(completions)

    def _drop(self, lane: _Lane, recv: _Recv, error: BaseException) -> None:
        with self._lock:
            if recv not in lane.recvs:
                return
            lane.recvs.remove(recv)
        _failure(recv, renamed(error, lane.name))()


def _run(completions: list[Completion]) -> None:
    for completion in completions:
        completion()


def _success(recv: _Recv, item: Item) -> Completion:
    return lambda: recv.complete(item)


def _claimed_failure(recv: _Recv, error: BaseException) -> Completion:
    return lambda: recv.fail(error)


def _failure(recv: _Recv, error: BaseException) -> Completion:
    return lambda: recv.fail(error) if recv.claim() else None


def _answer(request: Request, taken_bytes: int) -> Completion:
    def answer() -> None:
        request.reply(taken_bytes)

    return answer
