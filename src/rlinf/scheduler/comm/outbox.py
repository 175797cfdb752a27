"""The sending half of send/recv: what waits for its peer, or for room in the peer's mailbox."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from rlinf.scheduler.comm.codec import Encoded
from rlinf.scheduler.comm.directory import DirectoryClient, Entry
from rlinf.scheduler.comm.endpoint import Endpoint
from rlinf.scheduler.comm.messenger import Messenger
from rlinf.scheduler.comm.parcels import Parcel
from rlinf.scheduler.comm.peer import Reply
from rlinf.scheduler.comm.transfer import Transfer, renamed
from rlinf.scheduler.errors import PeerDied, SharedMemoryUnreadable

ITEM_SERVICE = "mailbox.item"
ROOM_SERVICE = "mailbox.room"


class _Send(Transfer):
    """One item on its way out."""

    def __init__(self, peer: str, timeout_s: float, parcel: Parcel, meta: Any) -> None:
        super().__init__("send", peer, timeout_s)
        self.parcel: Parcel | None = parcel
        self.meta = meta
        self.size_bytes = parcel.size_bytes
        self.answer: Future[Reply] | None = None


class _Lane:
    """What goes to one peer.

    Attributes:
        waiting: items that have not left, in order.
        sent_bytes: bytes that ever left for this process.
        taken_bytes: how many of them, as far as we know, somebody there has received.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        # Re-entrant: an answer may be there already when its callback is added, and then runs at once.
        self.lock = threading.RLock()
        self.endpoint: Endpoint | None = None
        self.waiting: deque[_Send] = deque()
        self.room: Future[Reply] | None = None
        self.sent_bytes = 0
        self.taken_bytes = 0

    def has_room(self, size_bytes: int, limit_bytes: int) -> bool:
        held_bytes = self.sent_bytes - self.taken_bytes
        return held_bytes <= 0 or held_bytes + size_bytes <= limit_bytes

    def detach(self) -> list[_Send]:
        """Forget the process; what waited for it comes back."""
        waiting = list(self.waiting)
        self.waiting.clear()
        self.endpoint = None
        self.room = None
        self.sent_bytes = self.taken_bytes = 0
        return waiting


class Outbox:
    """Sends items to named peers, each peer's in order.

    An item leaves only when there is room for it in the peer's mailbox: bytes wait here, not there. How much
    room there is, the peer says in its acknowledgements; when there is none, one request waits there for it.

    Args:
        messenger: this process's messenger.
        directory: where peers are found.
        own_name: the name that items carry.
        limit_bytes: how much a peer holds for us until somebody receives it; one item may exceed it.
    """

    def __init__(
        self, messenger: Messenger, directory: DirectoryClient, own_name: str, limit_bytes: int
    ) -> None:
        self._messenger = messenger
        self._directory = directory
        self._own_name = own_name
        self._limit_bytes = limit_bytes
        self._lanes: dict[str, _Lane] = {}
        # What lies in our shared memory, and its receiver has not said that it has it.
        self._lying: set[_Send] = set()
        messenger.stay_while(lambda: bool(self._lying))
        messenger.on_peer_lost(self._forget_process)

    def send(
        self, peer: str, encoded: Encoded, meta: Any, *, timeout_s: float, snapshot: bool, wait_s: float = 0.0
    ) -> Future[None]:
        """Send one item; the future is done when the peer's process holds it.

        Args:
            peer: to whom.
            encoded: the item.
            meta: what the receiver may look at before it decodes the item; msgpack-able.
            timeout_s: how long it may take.
            snapshot: the item is sent as it is now.
            wait_s: how long the calling thread may wait for shared memory.
        """
        self._messenger.check_process()
        lane = self._lanes.get(peer) or self._lanes.setdefault(peer, _Lane(peer))
        parcel = self._messenger.parcels.pack(
            encoded, lane.endpoint, snapshot=False, wait_s=min(wait_s, timeout_s)
        )
        item = _Send(peer, timeout_s, parcel, meta)
        future = item.new_future()
        item.arm(self._messenger, lambda: self._expire(lane, item))
        with lane.lock:
            if self._can_leave(lane, item):
                item.claim()
                self._dispatch(lane, item, lane.endpoint, snapshot=snapshot)
                return future
        if snapshot:
            item.parcel = parcel.detached()
        with lane.lock:
            lane.waiting.append(item)
            resolved = lane.endpoint is not None
            if resolved:
                self._pump(lane)
        if not resolved:
            item.look_up(
                self._directory,
                lambda entry: self._messenger.parcels.when_ready(
                    entry.endpoint, lambda: self._attach(lane, entry)
                ),
                lambda error: self._drop(lane, item, error),
            )
        return future

    def _can_leave(self, lane: _Lane, item: _Send) -> bool:
        return (
            lane.endpoint is not None
            and not lane.waiting
            and lane.has_room(item.size_bytes, self._limit_bytes)
        )

    def _attach(self, lane: _Lane, entry: Entry) -> None:
        with lane.lock:
            if lane.endpoint is None:
                lane.endpoint = entry.endpoint
            self._pump(lane)

    def _pump(self, lane: _Lane) -> None:
        """Let leave what may; under the lane's lock."""
        while lane.waiting and lane.endpoint is not None:
            item = lane.waiting[0]
            if not lane.has_room(item.size_bytes, self._limit_bytes):
                if item.cancelled():
                    lane.waiting.popleft()
                    continue
                self._ask_for_room(lane, item, lane.endpoint)
                return
            lane.waiting.popleft()
            if item.claim():
                self._dispatch(lane, item, lane.endpoint)

    def _dispatch(
        self, lane: _Lane, item: _Send, endpoint: Endpoint | None, *, snapshot: bool = False
    ) -> None:
        parcel = item.parcel
        if endpoint is None or parcel is None:
            return
        lane.sent_bytes += item.size_bytes
        head = [self._own_name, lane.name, item.meta]
        frames = parcel.frames_for(endpoint)
        snapshot = snapshot and not parcel.owns_memory
        answer = self._messenger.request(endpoint, ITEM_SERVICE, head, frames, snapshot=snapshot)
        if not parcel.in_shared_memory:
            # The messenger has what it needs; the item must not keep the memory until its acknowledgement.
            item.parcel = None
        else:
            self._lying.add(item)
        item.answer = answer
        answer.add_done_callback(lambda done: self._acknowledge(lane, item, endpoint, done))

    def _acknowledge(self, lane: _Lane, item: _Send, endpoint: Endpoint, answer: Future[Reply]) -> None:
        # The receiver has locked what lies in shared memory, or will never do so.
        self._lying.discard(item)
        item.parcel = None
        if answer.cancelled():
            return
        error = answer.exception()
        if error is not None:
            item.fail(renamed(error, lane.name))
            if isinstance(error, SharedMemoryUnreadable):
                self._messenger.parcels.distrust(endpoint.process_id, str(error))
            if isinstance(error, PeerDied):
                self._forget(lane, endpoint.process_id, error.reason)
            return
        self._note_taken(lane, endpoint, answer.result().head)
        item.complete(None)

    def _ask_for_room(self, lane: _Lane, item: _Send, endpoint: Endpoint) -> None:
        if lane.room is not None:
            return
        # An item above the limit goes when everything before it is taken.
        wanted_bytes = min(lane.sent_bytes, lane.sent_bytes + item.size_bytes - self._limit_bytes)
        room = self._messenger.request(endpoint, ROOM_SERVICE, [self._own_name, lane.name, wanted_bytes])
        lane.room = room

        def answered(answer: Future[Reply]) -> None:
            with lane.lock:
                if lane.room is room:
                    lane.room = None
            if answer.cancelled():
                return
            error = answer.exception()
            if error is None:
                self._note_taken(lane, endpoint, answer.result().head)
            else:
                self._forget(lane, endpoint.process_id, getattr(error, "reason", str(error)))

        room.add_done_callback(answered)

    def _note_taken(self, lane: _Lane, endpoint: Endpoint, taken_bytes: int) -> None:
        with lane.lock:
            if lane.endpoint == endpoint:
                lane.taken_bytes = max(lane.taken_bytes, taken_bytes)
                self._pump(lane)

    def _expire(self, lane: _Lane, item: _Send) -> None:
        if item.answer is not None:
            item.fail(item.timeout("its acknowledgement"))
            return
        held_bytes = lane.sent_bytes - lane.taken_bytes
        self._drop(lane, item, item.timeout(f"room in its mailbox, which holds {held_bytes} bytes from here"))

    def _drop(self, lane: _Lane, item: _Send, error: BaseException) -> None:
        """Fail an item that has not left."""
        with lane.lock:
            if item not in lane.waiting:
                return
            lane.waiting.remove(item)
            claimed = item.claim()
            self._pump(lane)
        if claimed:
            item.fail(renamed(error, lane.name))

    def _forget_process(self, process_id: str) -> None:
        for lane in list(self._lanes.values()):
            self._forget(lane, process_id, "its process is gone")

    def _forget(self, lane: _Lane, process_id: str, reason: str) -> None:
        with lane.lock:
            if lane.endpoint is None or lane.endpoint.process_id != process_id:
                return
            waiting = lane.detach()
        for item in waiting:
            if item.claim():
                item.fail(PeerDied(lane.name, reason))


def tensor_meta(obj: Any) -> list[Any] | None:
    """What `recv_tensor` checks: dtype and shape of a tensor, None for anything else."""
    dtype, shape = getattr(obj, "dtype", None), getattr(obj, "shape", None)
    if not str(dtype).startswith("torch.") or not isinstance(shape, Sequence):
        return None
    return [str(dtype).removeprefix("torch."), list(shape)]
