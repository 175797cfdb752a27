"""Hands on what came from another machine: one process there gets the bytes, the others read its shared memory.

The sender asks the process that has an item to hand it on to another one; the answer is that process's
acknowledgement. The sender also says when nobody will ask for the item any more. If anything fails, the sender
sends the bytes itself.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from rlinf.scheduler.comm.codec import Encoded
from rlinf.scheduler.comm.endpoint import Endpoint
from rlinf.scheduler.comm.messenger import Messenger
from rlinf.scheduler.comm.parcel import Arrived
from rlinf.scheduler.comm.parcels import SHARED_BYTES, WAIT_S, Parcel
from rlinf.scheduler.comm.peer import Reply, Request
from rlinf.scheduler.errors import CommError, SharedMemoryUnreadable
from rlinf.scheduler.mailbox.inbox import Item
from rlinf.scheduler.mailbox.outgoing import ITEM_SERVICE
from rlinf.scheduler.mailbox.stamp import Stamp

logger = logging.getLogger(__name__)

# [topic, number, the member's name, its endpoint] -> [bytes taken there, ""], or [0, why it does not have the item]
HAND_ON_SERVICE = "mailbox.hand_on"
# [topic, number]: a notice
RELEASE_SERVICE = "mailbox.release"


class _Kept:
    """An item that others of this machine may need."""

    def __init__(self, source: str, item: Item, stamp: Stamp) -> None:
        self.source = source
        self.meta = item.meta
        self.size_bytes = item.size_bytes
        self.stamp = stamp
        self.parcel: Parcel | None = None
        self.waiting: list[Callable[[Parcel | None], None]] = []

    def when_packed(self, callback: Callable[[Parcel | None], None]) -> None:
        """Call `callback` with what the others are sent, once that is there; with None if it cannot be."""
        if self.parcel is None:
            self.waiting.append(callback)
        else:
            callback(self.parcel)

    def packed(self, parcel: Parcel | None) -> None:
        """It is there, or never will be."""
        self.parcel = parcel
        waiting, self.waiting = self.waiting, []
        for callback in waiting:
            callback(parcel)


class Relay:
    """Keeps items of other machines for a while and hands them on. Everything but copying is on the I/O thread.

    Args:
        messenger: this process's messenger.
        limit_bytes: how much it keeps of each process; what exceeds that is not kept, so its sender sends it to
            each member.
    """

    def __init__(self, messenger: Messenger, limit_bytes: int) -> None:
        self._messenger = messenger
        self._limit_bytes = limit_bytes
        self._kept: dict[tuple[str, str, int], _Kept] = {}
        self._kept_bytes: dict[str, int] = {}
        self._copying: ThreadPoolExecutor | None = None
        self._num_under_way = 0
        messenger.serve(HAND_ON_SERVICE, self._on_hand_on)
        messenger.serve(RELEASE_SERVICE, self._on_release)
        messenger.stay_while(lambda: self._num_under_way > 0)
        messenger.on_peer_lost(self._forget_process)

    def keep(self, source: str, item: Item, stamp: Stamp, then: Callable[[], None]) -> None:
        """Keep an item until its origin says that nobody needs it any more, or is gone.

        Args:
            source: its sender's name.
            item: the item; it will lie in shared memory, where this process and those that it is handed on to read
                the same bytes and none sees what another one writes.
            stamp: which one it is.
            then: called on the I/O thread when that is so: before, nobody may have the item.
        """
        origin = stamp.origin.process_id
        held_bytes = self._kept_bytes.get(origin, 0)
        if stamp.key in self._kept or (held_bytes and held_bytes + item.size_bytes > self._limit_bytes):
            then()
            return
        kept = self._kept[stamp.key] = _Kept(source, item, stamp)
        self._kept_bytes[origin] = held_bytes + item.size_bytes
        self._pack_soon(kept, item, then)

    def num_kept(self) -> int:
        """How many items are kept."""
        return len(self._kept)

    def _on_hand_on(self, request: Request) -> None:
        topic, number, member, fields = request.head
        kept = self._kept.get((request.peer_id, topic, number))
        if kept is None:
            raise CommError("what is to be handed on is not kept here")
        endpoint = Endpoint.from_wire(fields)

        def hand_on(parcel: Parcel | None) -> None:
            if parcel is None:
                request.fail(CommError("what is to be handed on could not be kept here"))
                return
            self._messenger.parcels.when_ready(
                endpoint, lambda: self._hand_on(request, kept, parcel, member, endpoint)
            )

        kept.when_packed(hand_on)

    def _hand_on(
        self, request: Request, kept: _Kept, parcel: Parcel, member: str, endpoint: Endpoint
    ) -> None:
        stamp = Stamp(kept.stamp.topic, kept.stamp.number, kept.stamp.origin)
        head = [kept.source, member, kept.meta, stamp.to_wire()]
        frames = parcel.frames_for(endpoint)
        self._num_under_way += 1
        answer = self._messenger.request(endpoint, ITEM_SERVICE, head, frames, snapshot=False)

        def answered(done: Future[Reply], _parcel: Parcel = parcel) -> None:
            """It refers to the parcel until the receiver has locked its block, or never will."""
            self._num_under_way -= 1
            error = done.exception()
            request.reply([done.result().head, ""] if error is None else [0, str(error)])

        answer.add_done_callback(answered)

    # -- shared memory ---------------------------------------------------------------------------

    def _pack_soon(self, kept: _Kept, item: Item, then: Callable[[], None]) -> None:
        """Write the item once for all, in another thread if that takes a while."""
        if item.size_bytes < SHARED_BYTES:
            self._share(kept, item, self._pack(item.arrived, 0.0), then)
            return
        if self._copying is None:
            self._copying = ThreadPoolExecutor(max_workers=1, thread_name_prefix="comm-relay")
        self._copying.submit(self._pack, item.arrived, WAIT_S).add_done_callback(
            lambda packed: self._messenger.submit(lambda: self._packed(kept, item, packed, then))
        )

    def _packed(self, kept: _Kept, item: Item, packed: Future[Parcel], then: Callable[[], None]) -> None:
        error = packed.exception()
        if error is None:
            self._share(kept, item, packed.result(), then)
            return
        # There is no memory for a copy. The item itself is here; the others get theirs from its origin.
        logger.warning("an object of %d bytes is not handed on: %r", item.size_bytes, error)
        self._release(kept.stamp.key)
        kept.packed(None)
        then()

    def _pack(self, arrived: Arrived, wait_s: float) -> Parcel:
        head, *buffers = arrived.frames()
        encoded = Encoded(bytes(head), buffers)
        # Copied where there is no shared memory: what arrived is this process's own.
        return self._messenger.parcels.pack(encoded, None, snapshot=True, wait_s=wait_s, shared=True)

    def _share(self, kept: _Kept, item: Item, parcel: Parcel, then: Callable[[], None]) -> None:
        if parcel.in_shared_memory:
            # What came as bytes can go; where it cannot be mapped here, it stays this process's own copy.
            with contextlib.suppress(SharedMemoryUnreadable):
                item.arrived = self._messenger.parcels.receive(parcel.frames_for(self._messenger.endpoint))
        kept.packed(parcel)
        then()

    # -- the end ---------------------------------------------------------------------------------

    def _on_release(self, notice: Request) -> None:
        topic, number = notice.head
        self._release((notice.peer_id, topic, number))

    def _release(self, key: tuple[str, str, int]) -> None:
        kept = self._kept.pop(key, None)
        if kept is None:
            return
        left_bytes = self._kept_bytes[key[0]] - kept.size_bytes
        if left_bytes:
            self._kept_bytes[key[0]] = left_bytes
        else:
            self._kept_bytes.pop(key[0], None)

    def _forget_process(self, process_id: str) -> None:
        for key in [key for key in self._kept if key[0] == process_id]:
            self._release(key)


def hand_on_head(stamp: Stamp, member: str, endpoint: Endpoint) -> list[Any]:
    """The head of a request to hand an item on to a member."""
    return [stamp.topic, stamp.number, member, endpoint.to_wire()]
