"""Decides for each object and each peer: in the message, or in shared memory.

Two processes of one machine that connect offer each other their arenas; each tries to open what it is offered and
says whether it could. Only a process that could gets descriptors; any other gets bytes, and the log says why.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rlinf.scheduler.comm.codec import Encoded
from rlinf.scheduler.comm.endpoint import Endpoint
from rlinf.scheduler.comm.framing import Buffer, detached
from rlinf.scheduler.comm.parcel import Arrived, Descriptor, Written, frame_offsets, is_descriptor
from rlinf.scheduler.comm.peer import Request, run_guarded
from rlinf.scheduler.comm.shm import (
    Arena,
    ForeignArena,
    Loan,
    OpenArenas,
    kernel,
    open_arena,
)
from rlinf.scheduler.errors import SharedMemoryUnreadable

if TYPE_CHECKING:
    from rlinf.scheduler.comm.messenger import Messenger

logger = logging.getLogger(__name__)

SERVICE = "arena"
OFFER = 0  # [OFFER, pid, descriptor]
ANSWER = 1  # [ANSWER, why not; "" if it could be opened]
RETURNED = 2  # [RETURNED]: a block was given back that somebody waited for

# Smaller objects travel in the message. Measured: many in flight, sharing wins from here on (64 KiB 166 against 213 us,
# 32 KiB 107 against 82); one at a time it costs a tenth more here and is level at 256 KiB.
SHARED_BYTES = 64 << 10
# A caller who may block waits this long for room in its arena before its object travels as bytes.
WAIT_S = 1.0
# Pages of free blocks go back to the system when so long nothing was allocated.
TRIM_AFTER_S = 30.0


class Parcel:
    """An object that is sent, from the call until nobody here needs its bytes; refers to them until dropped.

    Attributes:
        size_bytes: how large it is.
        owns_memory: it shares no memory with the object.
    """

    __slots__ = ("_frames", "_parcels", "_shared", "_written", "owns_memory", "size_bytes")

    def __init__(
        self,
        parcels: Parcels,
        frames: list[Buffer],
        written: Written | None,
        *,
        size_bytes: int,
        shared: bool,
        owns_memory: bool,
    ) -> None:
        self._parcels = parcels
        self._frames = frames
        self._written = written
        self._shared = shared
        self.size_bytes = size_bytes
        self.owns_memory = owns_memory

    @property
    def in_shared_memory(self) -> bool:
        """Whether its bytes lie in this process's arena."""
        return self._written is not None

    def detached(self) -> Parcel:
        """The same, sharing no memory with the object."""
        if self.owns_memory:
            return self
        frames: list[Buffer] = [detached(frame) for frame in self._frames]
        return Parcel(
            self._parcels, frames, None, size_bytes=self.size_bytes, shared=self._shared, owns_memory=True
        )

    def goes_as_descriptor(self, peer: Endpoint) -> bool:
        """Whether `frames_for` gives a descriptor."""
        return self._written is not None and self._parcels.reads_ours(peer.process_id)

    def frames_for(self, peer: Endpoint) -> list[Buffer]:
        """What to send to `peer`: a descriptor if it reads our arena, else the bytes."""
        if self._written is None:
            return self._frames
        if self._parcels.reads_ours(peer.process_id):
            own_id = self._parcels.own_id
            return [self._written.descriptor(own_id, os.getpid(), shared=self._shared).to_frame()]
        return self._written.frames()


class Parcels:
    """What a process sends and receives, beside its messenger.

    Args:
        messenger: the process's messenger.
        limit_bytes: how large its arena may become; 0 for none.

    Attributes:
        own_id: this process.
        arena: its shared memory; None where there is none.
    """

    def __init__(self, messenger: Messenger, limit_bytes: int) -> None:
        self._messenger = messenger
        self.own_id = messenger.endpoint.process_id
        self._open = OpenArenas(self._on_opened)
        self._connected: dict[str, Endpoint] = {}
        # Who reads our arena: process id -> whether it could open it.
        self._answers: dict[str, bool] = {}
        self._waiting: dict[str, list[Callable[[], None]]] = {}
        self._watches: set[int] = set()
        self._told = False
        self._full = False
        self._trim_due = False
        self._trimmed_at = 0
        self.arena = self._new_arena(limit_bytes)
        messenger.serve(SERVICE, self._on_message)
        messenger.on_peer_lost(self._on_peer_lost)

    def _new_arena(self, limit: int) -> Arena | None:
        if limit == 0:
            return None
        try:
            arena = Arena(self._messenger.endpoint, limit)
        except (OSError, AttributeError) as error:
            self._say_without(f"it cannot be made here ({error})")
            return None
        problem = self._try_to_open(self.own_id, os.getpid(), arena.fd)
        if problem:
            self._say_without(f"it cannot be opened through /proc ({problem})")
            arena.close()
            return None
        self._answers[self.own_id] = True
        return arena

    def _say_without(self, reason: str) -> None:
        if not self._told:
            self._told = True
            logger.warning(
                "no shared memory: %s; large objects are copied through sockets instead",
                reason,
            )

    # -- sending ---------------------------------------------------------------------------------

    def reads_ours(self, process_id: str) -> bool:
        """Whether that process can read our arena, as far as we know."""
        return self._answers.get(process_id, False)

    def pack(
        self,
        encoded: Encoded,
        peer: Endpoint | None,
        *,
        snapshot: bool,
        wait_s: float = 0.0,
        shared: bool = False,
    ) -> Parcel:
        """`encoded`, ready to be sent to `peer`; its large buffers are copied once, into the arena or not at all.

        Args:
            encoded: what to send.
            peer: to whom; None if that is not known yet, or if there are several.
            snapshot: the parcel must share no memory with the object. Without it, it does unless it lies in the
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
            frames = (encoded.detached() if snapshot else encoded).frames()
        return Parcel(
            self,
            frames,
            written,
            size_bytes=encoded.size_bytes,
            shared=shared,
            owns_memory=snapshot or written is not None,
        )

    def _write(self, encoded: Encoded, wait_s: float) -> Written | None:
        arena = self.arena
        if arena is None:
            return None
        _, size_bytes = frame_offsets(encoded.sizes)
        # Who has waited in vain once does not wait again until there was room: a second for each item is no help.
        block = arena.allocate(size_bytes, 0.0 if self._full else wait_s)
        if block is None:
            if wait_s > 0:
                self._say_full(arena)
            return None
        self._full = False
        # Nothing in between: whatever is raised from here on, the block has an owner that lets it go.
        written = Written(arena, block, encoded)
        if not self._trim_due:
            self._trim_due = True
            self._messenger.call_later(TRIM_AFTER_S, self._trim)
        return written

    def _say_full(self, arena: Arena) -> None:
        if not self._full:
            self._full = True
            logger.warning(
                "all %d MiB of this process's shared memory are in use, or none is large enough; large objects are "
                "copied through sockets until receivers drop some (RLINF_ARENA_MIB sets how much there is)",
                arena.limit_bytes >> 20,
            )

    def when_ready(self, peer: Endpoint, callback: Callable[[], None]) -> None:
        """Call `callback` on the I/O thread once it is known whether `peer` reads our arena; from any thread."""
        self._messenger.submit(lambda: self._when_ready(peer, callback))

    def _when_ready(self, peer: Endpoint, callback: Callable[[], None]) -> None:
        process_id = peer.process_id
        elsewhere = peer.machine_id != self._messenger.endpoint.machine_id
        if self.arena is None or elsewhere or process_id in self._answers:
            callback()
            return
        self._waiting.setdefault(process_id, []).append(callback)
        # Answered, or lost: either ends the wait.
        self._messenger.connect(peer)

    # -- receiving -------------------------------------------------------------------------------

    def receive(self, frames: list[Buffer], *, to_load: bool = True) -> Arrived:
        """What arrived as `frames`; by whoever read them, before the sender is told that it is here.

        Args:
            frames: what came.
            to_load: it will be loaded here, and not only handed on.

        Raises:
            SharedMemoryUnreadable: it lies in shared memory that cannot be opened here; its owner is gone, most
                likely.
        """
        if not is_descriptor(frames):
            return Arrived(frames)
        at = Descriptor.from_frame(frames[0])
        try:
            arena = self._open.get(at.owner_id, at.pid, at.fd)
            loan = Loan(arena, at.offset, at.size_bytes, at.token, at.shared, self._on_returned)
            if to_load:
                loan.map()
        except (OSError, ValueError) as error:
            raise SharedMemoryUnreadable(str(error)) from error
        return Arrived([], loan, at.frame_sizes)

    def frames_for(self, arrived: Arrived, peer: Endpoint) -> list[Buffer]:
        """What to send to `peer` to hand on what arrived here; the caller keeps `arrived` until the peer has it."""
        loan = arrived.loan
        if loan is None or not self.reads_ours(peer.process_id):
            return arrived.frames()
        arena = loan.arena
        descriptor = Descriptor(
            arena.owner.process_id,
            os.getpid(),
            arena.fd,
            loan.offset,
            loan.size_bytes,
            loan.token,
            tuple(arrived.sizes),
            loan.shared,
        )
        return [descriptor.to_frame()]

    # -- the I/O thread --------------------------------------------------------------------------

    def on_connected(self, peer: Endpoint) -> None:
        """A process of this machine is connected: offer it our arena."""
        self._connected[peer.process_id] = peer
        if self.arena is not None:
            self._messenger.notify(peer, SERVICE, [OFFER, os.getpid(), self.arena.fd])

    def _on_message(self, request: Request) -> None:
        kind, *rest = request.head
        if kind == OFFER:
            answer = self.answer(request.peer_id, request.head)
            self._messenger.notify(self._connected[request.peer_id], SERVICE, answer)
        elif kind == ANSWER:
            if rest[0]:
                self._say_without(f"'{request.peer_name}' cannot open that of this process ({rest[0]})")
            self._answers[request.peer_id] = not rest[0]
            self._go_on(request.peer_id)
        elif kind == RETURNED:
            self._look_again()

    def answer(self, owner_id: str, offer: list[Any]) -> list[Any]:
        """The answer to the offer of a process of this machine; from any thread."""
        _, pid, fd = offer
        problem = self._try_to_open(owner_id, pid, fd)
        if problem:
            owner = self._messenger.peer_name(owner_id)
            self._say_without(f"that of '{owner}' cannot be opened here ({problem})")
        return [ANSWER, problem]

    def distrust(self, process_id: str, reason: str) -> None:
        """Send bytes to a process from now on: it could not open what it was sent."""
        self._say_without(f"{self._messenger.peer_name(process_id)}: {reason}")
        self._answers[process_id] = False

    def _try_to_open(self, owner_id: str, pid: int, fd: int) -> str:
        """Why an arena cannot be read here; "" if it can."""
        try:
            arena = open_arena(owner_id, pid, fd)
            kernel.share_lock(arena.fd, 0)
            kernel.unlock(arena.fd, 0)
        except (OSError, ValueError) as error:
            return str(error)
        return ""

    def _go_on(self, process_id: str) -> None:
        for callback in self._waiting.pop(process_id, ()):
            run_guarded(callback)

    def _on_peer_lost(self, process_id: str) -> None:
        self._connected.pop(process_id, None)
        self._answers.pop(process_id, None)
        self._open.forget(process_id)
        self._go_on(process_id)
        # What it had borrowed is free now.
        self._look_again()

    def _look_again(self) -> None:
        if self.arena is not None and self.arena.someone_waits():
            self.arena.look_again()

    def _trim(self) -> None:
        arena = self.arena
        if arena is None:
            return
        if arena.generation == self._trimmed_at:
            arena.trim()
            if arena.unused():
                self._trim_due = False
                return
        # Written in between, or others still have blocks, which nobody says when they are given back.
        self._trimmed_at = arena.generation
        self._messenger.call_later(TRIM_AFTER_S, self._trim)

    # -- blocks of others ------------------------------------------------------------------------

    def _on_returned(self, owner: Endpoint) -> None:
        """Tell an owner that waits for room; called anywhere, so nothing may block or lock here."""
        self._messenger.submit(lambda: self._messenger.notify(owner, SERVICE, [RETURNED]))

    def _on_opened(self, arena: ForeignArena) -> None:
        """Notice the end of an arena's owner, so that its memory does not outlive it here for longer than used."""
        owner_id = arena.owner.process_id
        if owner_id == self.own_id or owner_id in self._connected:
            return
        try:
            watch = os.pidfd_open(arena.owner_pid)
        except OSError:  # it is gone already, or cannot be watched
            self._messenger.submit(lambda: self._open.forget(owner_id))
            return
        self._watches.add(watch)
        arena.on_closed = lambda: self._messenger.submit(lambda: self._end_watch(watch))

        def ended() -> None:
            self._end_watch(watch)
            self._open.forget(owner_id)

        self._messenger.watch(watch, ended)

    def _end_watch(self, watch: int) -> None:
        if watch in self._watches:
            self._watches.remove(watch)
            self._messenger.unwatch(watch)
            os.close(watch)

    # -- the end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Give up this process's arena, and those of others that are not in use."""
        self._open.close()
        if self.arena is not None:
            self.arena.close()
        for watch in list(self._watches):
            self._end_watch(watch)

    def abandon(self) -> None:
        """Close every descriptor in a forked child."""
        self._open.abandon()
        watches, self._watches = self._watches, set()
        for watch in watches:
            os.close(watch)
        if self.arena is not None:
            self.arena.abandon()
