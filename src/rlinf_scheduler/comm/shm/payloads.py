"""Decides for each object and each peer: in the message, or in shared memory.

Only a process that could open this one's arena gets descriptors (see `offers`); any other gets bytes, and the log says
why.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from rlinf_scheduler.comm.codec import Encoded
from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.framing import Buffer, allocate, object_bytes
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.comm.shm.arena import Arena, Trimmer
from rlinf_scheduler.comm.shm.foreign import BlockLease, ForeignArena
from rlinf_scheduler.comm.shm.io_thread import Carrier, run_at
from rlinf_scheduler.comm.shm.ledger import Ledger
from rlinf_scheduler.comm.shm.offers import SERVICE, BlockReturned, Offers
from rlinf_scheduler.comm.shm.payload import ReceivedPayload, frame_offsets, is_descriptor
from rlinf_scheduler.comm.shm.readers import OpenArenas, OwnerWatch
from rlinf_scheduler.comm.shm.sent_payload import Descriptor, Payload, Written
from rlinf_scheduler.errors import SharedMemoryUnreadable

logger = Reporter(__name__)

# Smaller objects travel in the message. Measured: many in flight, sharing wins from here on (64 KiB 166 against 213 us,
# 32 KiB 107 against 82); one at a time it costs a tenth more here and is level at 256 KiB.
SHARED_BYTES = 64 << 10
# A caller who may block waits this long for room in its arena before its object travels as bytes.
WAIT_S = 1.0
# What was dropped is released with what comes next, or so much later; at once only if its owner is short of room.
SWEEP_AFTER_S = 0.5
# A process that ended may have its slots for some time after its connection has closed.
ENDED_AFTER_S = (0.02, 0.2, 2.0)


class Payloads:
    """What a process sends and receives, beside its messenger.

    Args:
        limit_bytes: how large its arena may become; 0 for none.
        ledger: makes the ledger of what all processes of the job take on this machine; None for no common limit.

    Attributes:
        own_id: this process.
        arena: its shared memory; None where there is none.
        pin: pins a block that is to be loaded, and gives what keeps it so; None: nothing is pinned.
    """

    def __init__(
        self, messenger: Carrier, limit_bytes: int, ledger: Callable[[], Ledger] | None = None
    ) -> None:
        self.own_id = messenger.endpoint.process_id
        self.arena: Arena | None = None
        self.pin: Callable[[BlockLease], object] | None = None
        self._messenger = messenger
        self._open = OpenArenas(messenger.submit, self._on_opened, self._tell_owner)
        self._owners = OwnerWatch(messenger)
        self._offers = Offers(messenger, self.see_released)
        self._full = False
        self._sweep_due = False
        self._lost_now = False
        self._closed = False
        if limit_bytes:
            self._make_arena(limit_bytes, ledger)
        messenger.on_peer_lost(self._on_peer_lost)

    def _make_arena(self, limit_bytes: int, ledger: Callable[[], Ledger] | None) -> None:
        try:
            arena = Arena(
                self._messenger.endpoint, limit_bytes, self._messenger, ledger() if ledger else None
            )
        except (OSError, AttributeError) as error:
            self._offers.say_without(f"it cannot be made here ({error})")
            return
        problem = self._offers.begin(arena.fd)
        if problem:
            self._offers.say_without(f"it cannot be opened through /proc ({problem})")
            arena.close()
            return
        self.arena = arena
        self._trimmer = Trimmer(self._messenger, arena)

    # -- sending ---------------------------------------------------------------------------------

    def reads_ours(self, process_id: str) -> bool:
        """Whether that process can read our arena, as far as we know."""
        return self._offers.accepted.get(process_id, False)

    def when_ready(self, peer: Endpoint, callback: Callable[[], None]) -> None:
        """Call `callback` on the I/O thread once it is known whether `peer` reads our arena; from any thread."""
        self._offers.when_known(peer, callback)

    def when_without(self, callback: Callable[[str], None]) -> None:
        """Call `callback` with the reason, once, when objects go through sockets that shared memory was meant for."""
        self._offers.when_without(callback)

    def distrust(self, process_id: str, reason: str) -> None:
        """Send bytes to a process for a while: it could not open what it was sent. From any thread."""
        self._offers.distrust(process_id, reason)

    def pack(
        self,
        encoded: Encoded,
        peer: Endpoint | None,
        *,
        snapshot: bool,
        wait_s: float = 0.0,
        shared: bool = False,
    ) -> Payload:
        """`encoded`, ready to be sent to `peer`; its large buffers are copied once, into the arena or not at all.

        Args:
            encoded: what to send.
            peer: to whom; None if that is not known yet, or if there are several.
            snapshot: the payload must share no memory with the object. Without it, it does unless it lies in the
                arena.
            wait_s: how long this thread may wait for room in the arena; after that the bytes travel. Never on the
                I/O thread.
            shared: several processes will read it.
        """
        written = None
        if encoded.size_bytes >= SHARED_BYTES and (peer is None or self.reads_ours(peer.process_id)):
            written = self._write(encoded, wait_s)
        frames: list[Buffer] = []
        if written is None:
            frames = encoded.snapshot() if snapshot else encoded.frames()
        return Payload(
            self.own_id, self.reads_ours, frames, written, size_bytes=encoded.object_bytes, shared=shared
        )

    def pack_in_arena(self, encoded: Encoded, wait_s: float = 0.0) -> Payload | None:
        """`encoded` in this process's arena, however small; None if there is none, or no room in it."""
        written = self._write(encoded, wait_s)
        if written is None:
            return None
        return Payload(
            self.own_id, self.reads_ours, [], written, size_bytes=encoded.object_bytes, shared=False
        )

    def reserve(self, sizes: Sequence[int], *, wait_s: float = 0.0, shared: bool = False) -> Payload:
        """Memory for an object whose frames are still to come: in the arena, or where that has no room, beside it.

        Args:
            sizes: how many bytes each frame has.
            wait_s: see `pack`.
            shared: see `pack`.
        """
        written = self._room(sizes, wait_s)
        frames: list[Buffer] = [allocate(size) for size in sizes] if written is None else []
        size_bytes = object_bytes(sizes[0], sum(sizes) - sizes[0])
        return Payload(self.own_id, self.reads_ours, frames, written, size_bytes=size_bytes, shared=shared)

    def own_arena(self) -> ForeignArena:
        """This process's arena, as a reader of it has it; from any thread.

        Raises:
            OSError, ValueError: there is none, or it cannot be opened.
        """
        fd = -1 if self.arena is None else self.arena.fd
        return run_at(self._messenger, lambda: self._open.get(self.own_id, os.getpid(), fd))

    def _write(self, encoded: Encoded, wait_s: float) -> Written | None:
        written = self._room(encoded.sizes, wait_s)
        if written is not None:
            written.write(encoded)
        return written

    def _room(self, sizes: Sequence[int], wait_s: float) -> Written | None:
        arena = self.arena
        if arena is None:
            return None
        _, size_bytes = frame_offsets(sizes)
        # Who has waited in vain once does not wait again until there was room: a second for each item is no help.
        block = arena.allocate(size_bytes, 0.0 if self._full else wait_s)
        if block is None:
            if wait_s > 0:
                self._say_full(arena, size_bytes)
            return None
        self._full = False
        if not self._trimmer.on_duty:
            self._messenger.submit(self._trimmer.begin)
        return Written(arena, block, sizes)

    def _say_full(self, arena: Arena, size_bytes: int) -> None:
        if not self._full:
            self._full = True
            logger.warning(
                "no room for %d MiB: %s; large objects are copied through sockets until receivers drop some "
                "(RLINF_ARENA_MIB sets how much there is)",
                -(-size_bytes >> 20),
                arena.use_beside(size_bytes),
            )

    # -- receiving -------------------------------------------------------------------------------

    def receive(self, frames: list[Buffer], *, to_load: bool = True) -> ReceivedPayload:
        """What arrived as `frames`; by whoever read them, before the sender is told that it is here.

        Args:
            frames: what came.
            to_load: it will be loaded here, and not only handed on.

        Raises:
            SharedMemoryUnreadable: it lies in shared memory that cannot be opened here: its owner is gone, or this
                process has no descriptor or no slot for it now. The sender's `bytes_frames` can be read.
        """
        if not is_descriptor(frames):
            return ReceivedPayload(frames)
        if self._closed:
            raise SharedMemoryUnreadable(_CLOSED)
        try:
            at = Descriptor.from_frame(frames[0])
            return run_at(self._messenger, lambda: self._take(at, to_load))
        except (OSError, ValueError) as error:
            raise SharedMemoryUnreadable(str(error)) from error

    def _take(self, at: Descriptor, to_load: bool) -> ReceivedPayload:
        arena = self._open.get(at.owner_id, at.pid, at.fd)
        _, size_bytes = frame_offsets(at.frame_sizes)
        lease = self._open.lease(arena, at.index, at.generation, size_bytes, shared=at.shared)
        if not self._sweep_due:
            self._sweep_due = True
            self._messenger.call_later(SWEEP_AFTER_S, self._sweep)
        if to_load:
            lease.map()
            lease.pin = self.pin
        return ReceivedPayload([], lease, at.frame_sizes)

    def frames_for(self, arrived: ReceivedPayload, peer: Endpoint, *, shared: bool = False) -> list[Buffer]:
        """What to send to `peer` to hand on what arrived here; the caller keeps `arrived` until the peer has it.

        Args:
            arrived: the object.
            peer: to whom.
            shared: others may read it later, and not see what this one writes.
        """
        lease = arrived.block
        if lease is None or not self.reads_ours(peer.process_id):
            return arrived.frames()
        hold, sizes = lease.hold, tuple(arrived.sizes)
        owner_id, fd = hold.arena.owner.process_id, hold.arena.fd
        at = Descriptor(owner_id, os.getpid(), fd, hold.index, hold.generation, sizes, shared or lease.shared)
        return [at.to_frame()]

    # -- the I/O thread --------------------------------------------------------------------------

    def on_connected(self, peer: Endpoint) -> None:
        """A process of this machine is connected."""
        self._offers.on_connected(peer)

    def _on_peer_lost(self, process_id: str) -> None:
        self._open.forget(process_id)
        self._offers.on_lost(process_id)
        if self.arena is not None and not self._lost_now:
            # Of all that are lost in this round: it looks at every slot.
            self._lost_now = True
            self._messenger.submit(self._clear_dead)

    def _clear_dead(self) -> None:
        self._lost_now = False
        if self.arena is not None:
            self.arena.clear_dead()
            for delay_s in ENDED_AFTER_S:
                self._messenger.call_later(delay_s, self.arena.clear_dead)

    def _sweep(self) -> None:
        self._open.serve()
        self._sweep_due = self._open.in_use()
        if self._sweep_due:
            self._messenger.call_later(SWEEP_AFTER_S, self._sweep)

    def release_dropped(self) -> None:
        """Release what was dropped here: then its owners have warm memory for what comes next."""
        if self._open.dropped:
            self._open.serve()

    def release_dropped_soon(self) -> None:
        """The same, from any thread."""
        self._messenger.submit(self._open.serve)

    def see_released(self) -> None:
        """See what others have released: then this process has warm memory for what comes next."""
        if self.arena is not None:
            self.arena.serve()

    def see_released_now(self) -> None:
        """The same, from any thread but this one: it has seen it when this returns."""
        run_at(self._messenger, self.see_released)

    def _tell_owner(self, owner: Endpoint) -> None:
        """Tell an owner that waits for room."""
        self._messenger.notify(owner, SERVICE, BlockReturned())

    def _on_opened(self, arena: ForeignArena) -> Callable[[], None] | None:
        """Notice the end of an arena's owner, so that its memory does not outlive it here for longer than used."""
        owner_id = arena.owner.process_id
        if owner_id == self.own_id or owner_id in self._offers.connected:
            return None
        end_watch = self._owners.begin(arena.owner_pid, lambda: self._open.forget(owner_id))
        arena.owner_is_gone = end_watch is None
        return end_watch

    # -- the end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Give up this process's arena, and those of others that are not in use; on the I/O thread, as its end."""
        self._closed = True
        self._open.close()
        if self.arena is not None:
            self.arena.close()
        self._owners.close()

    def abandon(self) -> None:
        """Close every descriptor in a forked child."""
        self._closed = True
        self._open.orphan()
        self._owners.abandon()
        if self.arena is not None:
            self.arena.abandon()


_CLOSED = "this process has left the cluster"
