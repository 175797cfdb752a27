"""The sending half of the mailbox: what waits for its peer, or for room in the peer's mailbox."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from rlinf.scheduler.comm.codec import Encoded
from rlinf.scheduler.comm.directory import DirectoryClient, Entry
from rlinf.scheduler.comm.endpoint import Endpoint
from rlinf.scheduler.comm.messenger import Messenger
from rlinf.scheduler.comm.peer import Reply
from rlinf.scheduler.errors import PeerDied, SharedMemoryUnreadable
from rlinf.scheduler.mailbox.outgoing import ROOM_SERVICE, ItemOfSend, Lane, Outgoing
from rlinf.scheduler.mailbox.transfer import renamed


class Outbox:
    """Sends items to named peers, in order for each peer and topic.

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
        self._lanes: dict[tuple[str, str], Lane] = {}
        # What lies in our shared memory, and its receiver has not said that it has it.
        self._lying: set[Outgoing] = set()
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
        lane = self._lane(peer, "")
        parcel = self._messenger.parcels.pack(
            encoded, lane.endpoint, snapshot=False, wait_s=min(wait_s, timeout_s)
        )
        item = ItemOfSend(self._messenger, self._own_name, peer, timeout_s, parcel, meta)
        return self._post(lane, item, snapshot=snapshot)

    def post(self, item: Outgoing, topic: str) -> Future[None]:
        """Send an item of another kind, which owns its memory, in the order of its topic."""
        return self._post(self._lane(item.peer, topic), item, snapshot=False)

    def endpoint(self, peer: str, topic: str) -> Endpoint | None:
        """Where `peer` is, if it was found for that topic already."""
        lane = self._lanes.get((peer, topic))
        return None if lane is None else lane.endpoint

    def _lane(self, peer: str, topic: str) -> Lane:
        key = (peer, topic)
        return self._lanes.get(key) or self._lanes.setdefault(key, Lane(peer, topic))

    def _post(self, lane: Lane, item: Outgoing, *, snapshot: bool) -> Future[None]:
        future = item.new_future()
        item.arm(self._messenger, lambda: self._expire(lane, item))
        with lane.lock:
            if self._can_leave(lane, item):
                item.claim()
                self._dispatch(lane, item, lane.endpoint, snapshot=snapshot)
                return future
        if snapshot:
            item.detach()
        with lane.lock:
            lane.waiting.append(item)
            resolved = lane.endpoint is not None
            if resolved:
                self._pump(lane)
        if resolved and item.expired:
            # While it was copied: its deadline found nothing in line.
            self._expire(lane, item)
        if not resolved:
            item.look_up(
                self._directory,
                lambda entry: self._messenger.parcels.when_ready(
                    entry.endpoint, lambda: self._attach(lane, entry)
                ),
                lambda error: self._drop(lane, item, error),
            )
        return future

    def _can_leave(self, lane: Lane, item: Outgoing) -> bool:
        return (
            lane.endpoint is not None
            and not lane.waiting
            and lane.has_room(item.size_bytes, self._limit_bytes)
            and lane.is_free_for(item)
        )

    def _attach(self, lane: Lane, entry: Entry) -> None:
        with lane.lock:
            if lane.endpoint is None:
                lane.endpoint = entry.endpoint
            self._pump(lane)

    def _pump(self, lane: Lane) -> None:
        """Let leave what may; under the lane's lock."""
        while lane.waiting and lane.endpoint is not None:
            item = lane.waiting[0]
            if item.cancelled():
                lane.waiting.popleft()
                item.let_go()
                continue
            if not lane.has_room(item.size_bytes, self._limit_bytes):
                self._ask_for_room(lane, item, lane.endpoint)
                return
            if not lane.is_free_for(item):
                return
            lane.waiting.popleft()
            if item.claim():
                self._dispatch(lane, item, lane.endpoint)
            else:
                item.let_go()

    def _dispatch(
        self, lane: Lane, item: Outgoing, endpoint: Endpoint | None, *, snapshot: bool = False
    ) -> None:
        if endpoint is None:
            return
        lane.sent_bytes += item.size_bytes
        lane.under_way.add(item)
        if item.alone:
            lane.lone = item
        item.has_left = True
        if item.in_shared_memory:
            self._lying.add(item)
        answer = item.leave(endpoint, snapshot=snapshot)
        answer.add_done_callback(lambda done: self._acknowledge(lane, item, endpoint, done))

    def _acknowledge(self, lane: Lane, item: Outgoing, endpoint: Endpoint, answer: Future[Reply]) -> None:
        # The receiver has locked what lies in shared memory, or will never do so.
        self._lying.discard(item)
        item.let_go()
        if answer.cancelled():
            return
        error = answer.exception()
        if error is None:
            self._note_taken(lane, endpoint, answer.result().head, item)
            item.complete(None)
            return
        item.fail(renamed(error, lane.name))
        if isinstance(error, SharedMemoryUnreadable):
            self._messenger.parcels.distrust(endpoint.process_id, str(error))
        if isinstance(error, PeerDied):
            self._forget(lane, endpoint.process_id, error.reason)
        else:
            self._note_refused(lane, item)

    def _ask_for_room(self, lane: Lane, item: Outgoing, endpoint: Endpoint) -> None:
        if lane.room is not None:
            return
        # An item above the limit goes when everything before it is taken.
        wanted_bytes = min(lane.sent_bytes, lane.sent_bytes + item.size_bytes - self._limit_bytes)
        head = [self._own_name, lane.name, wanted_bytes, lane.topic]
        room = self._messenger.request(endpoint, ROOM_SERVICE, head)
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

    def _note_taken(
        self, lane: Lane, endpoint: Endpoint, taken_bytes: int, item: Outgoing | None = None
    ) -> None:
        with lane.lock:
            if item is not None:
                lane.arrived(item)
            if lane.endpoint == endpoint:
                lane.taken_bytes = max(lane.taken_bytes, taken_bytes)
                self._pump(lane)

    def _note_refused(self, lane: Lane, item: Outgoing) -> None:
        """The peer lives and does not hold an item: it takes no room there."""
        with lane.lock:
            if item not in lane.under_way:
                return
            lane.arrived(item)
            lane.sent_bytes -= item.size_bytes
            room, lane.room = lane.room, None
            if room is not None:
                room.cancel()  # it waits for bytes that will never be taken
            self._pump(lane)

    def _expire(self, lane: Lane, item: Outgoing) -> None:
        if item.has_left:
            item.fail(item.timeout("its acknowledgement"))
            return
        held_bytes = lane.held_bytes
        if lane.has_room(item.size_bytes, self._limit_bytes):
            error = item.timeout("its acknowledgement of what was sent before")
        else:
            error = item.timeout(f"room in its mailbox, which holds {held_bytes} bytes from here")
        self._drop(lane, item, error)

    def _drop(self, lane: Lane, item: Outgoing, error: BaseException) -> None:
        """Fail an item that has not left."""
        with lane.lock:
            if item not in lane.waiting:
                return
            lane.waiting.remove(item)
            claimed = item.claim()
            self._pump(lane)
        item.let_go()
        if claimed:
            item.fail(renamed(error, lane.name))

    def _forget_process(self, process_id: str) -> None:
        for lane in list(self._lanes.values()):
            self._forget(lane, process_id, "its process is gone")

    def _forget(self, lane: Lane, process_id: str, reason: str) -> None:
        with lane.lock:
            if lane.endpoint is None or lane.endpoint.process_id != process_id:
                return
            waiting = lane.detach()
        for item in waiting:
            item.let_go()
            if item.claim():
                item.fail(PeerDied(lane.name, reason))


def tensor_meta(obj: Any) -> list[Any] | None:
    """What `recv_tensor` checks: dtype and shape of a tensor, None for anything else."""
    dtype, shape = getattr(obj, "dtype", None), getattr(obj, "shape", None)
    if not str(dtype).startswith("torch.") or not isinstance(shape, Sequence):
        return None
    return [str(dtype).removeprefix("torch."), list(shape)]
