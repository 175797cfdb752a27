"""Decides for each object and each peer: in the message, or in shared memory.

Two processes of one machine that connect offer each other their arenas; each tries to open what it is offered and
says whether it could. Only a process that could gets descriptors; any other gets bytes, and the log says why. Who
could not is asked again after a while.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from rlinf.scheduler.comm.codec import Encoded
from rlinf.scheduler.comm.endpoint import Endpoint
from rlinf.scheduler.comm.framing import Buffer, detached
from rlinf.scheduler.comm.shm.arena import Arena, Home
from rlinf.scheduler.comm.shm.ledger import Ledger
from rlinf.scheduler.comm.shm.parcel import Arrived, Descriptor, Written, frame_offsets, is_descriptor
from rlinf.scheduler.comm.shm.readers import ForeignArena, OpenArenas, open_arena
from rlinf.scheduler.comm.shm.trimming import Trimmer
from rlinf.scheduler.errors import SharedMemoryUnreadable

logger = logging.getLogger(__name__)

SERVICE = "arena"
OFFER = 0
ANSWER = 1
RETURNED = 2

# Smaller objects travel in the message. Measured: many in flight, sharing wins from here on (64 KiB 166 against 213 us,
# 32 KiB 107 against 82); one at a time it costs a tenth more here and is level at 256 KiB.
SHARED_BYTES = 64 << 10
# A caller who may block waits this long for room in its arena before its object travels as bytes.
WAIT_S = 1.0
# A thread that is interrupted while it drops something does not always wake the I/O thread, which finds it by itself
# after so long.
SWEEP_AFTER_S = 5.0
# Who could not open our arena is asked again after so long, then after twice as long, and so on.
FIRST_RETRY_S = 1.0
LAST_RETRY_S = 60.0
# A process that ended may have its slots for some time after its connection has closed.
ENDED_AFTER_S = (0.02, 0.2, 2.0)
# The I/O thread has to answer in this time, or what arrived is not received.
_ANSWER_S = 10.0

T = TypeVar("T")


class Offer(msgspec.Struct, array_like=True, tag=OFFER, frozen=True):
    """The sender's arena may be read: process `pid` has it open as `fd`."""

    pid: int
    fd: int


class Answer(msgspec.Struct, array_like=True, tag=ANSWER, frozen=True):
    """Why the receiver's arena cannot be opened; "" if it can."""

    problem: str


class Returned(msgspec.Struct, array_like=True, tag=RETURNED, frozen=True):
    """A block of the receiver's was released, for which it waited."""


class Notice(Protocol):
    """A message to this service, as it is needed here."""

    @property
    def head(self) -> Any:
        """What it says."""

    @property
    def peer_id(self) -> str:
        """Who says so."""

    @property
    def peer_name(self) -> str:
        """How that process calls itself."""


class Carrier(Home, Protocol):
    """A messenger, as far as it is needed here."""

    @property
    def endpoint(self) -> Endpoint:
        """This process."""

    @property
    def closed(self) -> bool:
        """Whether this process has left."""

    def serve(self, service: str, handler: Callable[[Any], None]) -> None:
        """Let `handler` take the messages for `service`."""

    def on_peer_lost(self, callback: Callable[[str], None]) -> None:
        """Call `callback(process_id)` on the I/O thread for each process that is gone."""

    def notify(
        self, peer: Endpoint, service: str, head: Any, frames: Sequence[Buffer] = (), *, snapshot: bool = True
    ) -> None:
        """Send a notice; never blocks."""

    def connect(self, peer: Endpoint) -> None:
        """Connect to `peer` now."""

    def peer_name(self, process_id: str) -> str:
        """How a process calls itself."""

    def watch(self, descriptor: int, callback: Callable[[], None]) -> None:
        """Call `callback` on the I/O thread whenever `descriptor` is readable."""

    def unwatch(self, descriptor: int) -> None:
        """Undo `watch`."""


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

    def bytes_frames(self) -> list[Buffer]:
        """What to send to a peer that could not read a descriptor: always the bytes."""
        return self._frames if self._written is None else self._written.frames()


class Parcels:
    """What a process sends and receives, beside its messenger.

    Args:
        messenger: the process's messenger.
        limit_bytes: how large its arena may become; 0 for none.
        ledger: makes the ledger of what all processes of the job take on this machine; None for no common limit.

    Attributes:
        own_id: this process.
        arena: its shared memory; None where there is none.
    """

    def __init__(
        self, messenger: Carrier, limit_bytes: int, ledger: Callable[[], Ledger] | None = None
    ) -> None:
        self._messenger = messenger
        self.own_id = messenger.endpoint.process_id
        self._open = OpenArenas(messenger.submit, self._on_opened, self._tell_owner)
        self._connected: dict[str, Endpoint] = {}
        # Who reads our arena: process id -> whether it could open it.
        self._answers: dict[str, bool] = {}
        self._retry_s: dict[str, float] = {}
        self._waiting: dict[str, list[Callable[[], None]]] = {}
        self._watches: set[int] = set()
        self._told = False
        self._full = False
        self._sweep_due = False
        self._closed = False
        self.arena = self._new_arena(limit_bytes, ledger)
        self._trimmer = None if self.arena is None else Trimmer(messenger, self.arena)
        messenger.serve(SERVICE, self._on_message)
        messenger.on_peer_lost(self._on_peer_lost)

    def _new_arena(self, limit: int, ledger: Callable[[], Ledger] | None) -> Arena | None:
        if limit == 0:
            return None
        try:
            arena = Arena(self._messenger.endpoint, limit, self._messenger, ledger() if ledger else None)
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
        if arena is None or self._trimmer is None:
            return None
        _, size_bytes = frame_offsets(encoded.sizes)
        # Who has waited in vain once does not wait again until there was room: a second for each item is no help.
        block = arena.allocate(size_bytes, 0.0 if self._full else wait_s)
        if block is None:
            if wait_s > 0:
                self._say_full(arena, size_bytes)
            return None
        self._full = False
        if not self._trimmer.on_duty:
            self._messenger.submit(self._trimmer.begin)
        return Written(arena, block, encoded)

    def _say_full(self, arena: Arena, size_bytes: int) -> None:
        if not self._full:
            self._full = True
            logger.warning(
                "no room for %d MiB: %d of %d MiB of this process's shared memory are in use, or all processes of "
                "this machine have too much; large objects are copied through sockets until receivers drop some "
                "(RLINF_ARENA_MIB sets how much there is)",
                -(-size_bytes >> 20),
                arena.touched_bytes >> 20,
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
            SharedMemoryUnreadable: it lies in shared memory that cannot be opened here: its owner is gone, or this
                process has no descriptor or no slot for it now. The sender's `bytes_frames` can be read.
        """
        if not is_descriptor(frames):
            return Arrived(frames)
        try:
            at = Descriptor.from_frame(frames[0])
            return self._on_io_thread(lambda: self._take(at, to_load))
        except (OSError, ValueError) as error:
            raise SharedMemoryUnreadable(str(error)) from error

    def _take(self, at: Descriptor, to_load: bool) -> Arrived:
        arena = self._open.get(at.owner_id, at.pid, at.fd)
        _, size_bytes = frame_offsets(at.frame_sizes)
        lease = self._open.lease(arena, at.index, at.generation, size_bytes, shared=at.shared)
        if not self._sweep_due:
            self._sweep_due = True
            self._messenger.call_later(SWEEP_AFTER_S, self._sweep)
        if to_load:
            lease.map()
        return Arrived([], lease, at.frame_sizes)

    def frames_for(self, arrived: Arrived, peer: Endpoint) -> list[Buffer]:
        """What to send to `peer` to hand on what arrived here; the caller keeps `arrived` until the peer has it."""
        lease = arrived.lease
        if lease is None or not self.reads_ours(peer.process_id):
            return arrived.frames()
        arena = lease.arena
        descriptor = Descriptor(
            arena.owner.process_id,
            os.getpid(),
            arena.fd,
            lease.index,
            lease.generation,
            tuple(arrived.sizes),
            lease.shared,
        )
        return [descriptor.to_frame()]

    def _on_io_thread(self, function: Callable[[], T]) -> T:
        """Let the I/O thread run a function, and wait for what it gives.

        Raises:
            OSError: the I/O thread does not answer.
        """
        if self._messenger.on_io_thread():
            return function()
        if self._closed:
            raise OSError(_CLOSED)
        answers: list[T | OSError | ValueError] = []
        answered = threading.Lock()
        answered.acquire()

        def run() -> None:
            try:
                answers.append(function())
            except (OSError, ValueError) as error:
                answers.append(error)
            answered.release()

        self._messenger.submit(run)
        answered.acquire(timeout=_ANSWER_S)
        answer = answers.pop() if answers else OSError("the I/O thread does not answer")
        if isinstance(answer, OSError | ValueError):
            raise answer
        return answer

    # -- the I/O thread --------------------------------------------------------------------------

    def on_connected(self, peer: Endpoint) -> None:
        """A process of this machine is connected: offer it our arena."""
        self._connected[peer.process_id] = peer
        self._offer(peer)

    def _offer(self, peer: Endpoint) -> None:
        if self.arena is not None:
            self._messenger.notify(peer, SERVICE, Offer(os.getpid(), self.arena.fd))

    def _on_message(self, request: Notice) -> None:
        notice = _read(request.head)
        if isinstance(notice, Offer):
            self._messenger.notify(
                self._connected[request.peer_id], SERVICE, self.answer(request.peer_id, notice)
            )
        elif isinstance(notice, Answer):
            self._on_answer(request, notice.problem)
        elif self.arena is not None:
            self.arena.serve()

    def _on_answer(self, request: Notice, problem: str) -> None:
        process_id = request.peer_id
        self._answers[process_id] = not problem
        if problem:
            self._say_without(f"'{request.peer_name}' cannot open that of this process ({problem})")
            self._retry(process_id)
        else:
            self._retry_s.pop(process_id, None)
        self._go_on(process_id)

    def answer(self, owner_id: str, offer: Any) -> Answer:
        """The answer to the offer of a process of this machine; from any thread."""
        notice = offer if isinstance(offer, Offer) else _read(offer)
        problem = (
            self._try_to_open(owner_id, notice.pid, notice.fd)
            if isinstance(notice, Offer)
            else "not an offer"
        )
        if problem:
            owner = self._messenger.peer_name(owner_id)
            self._say_without(f"that of '{owner}' cannot be opened here ({problem})")
        return Answer(problem)

    def distrust(self, process_id: str, reason: str) -> None:
        """Send bytes to a process for a while: it could not open what it was sent. From any thread."""
        self._say_without(f"{self._messenger.peer_name(process_id)}: {reason}")
        self._answers[process_id] = False
        self._messenger.submit(lambda: self._retry(process_id))

    def _retry(self, process_id: str) -> None:
        """Offer our arena again later, to a process that could not open it."""
        if process_id not in self._connected:
            return
        delay_s = self._retry_s.get(process_id, FIRST_RETRY_S)
        self._retry_s[process_id] = min(2 * delay_s, LAST_RETRY_S)
        self._messenger.call_later(delay_s, lambda: self._offer_again(process_id))

    def _offer_again(self, process_id: str) -> None:
        peer = self._connected.get(process_id)
        if peer is not None and not self._answers.get(process_id, True):
            self._offer(peer)

    def _try_to_open(self, owner_id: str, pid: int, fd: int) -> str:
        """Why an arena cannot be read here; "" if it can."""
        try:
            open_arena(owner_id, pid, fd).seat.leave()
        except (OSError, ValueError) as error:
            return str(error)
        return ""

    def _go_on(self, process_id: str) -> None:
        for callback in self._waiting.pop(process_id, ()):
            try:
                callback()
            except Exception:
                logger.exception("what waited for a process's shared memory failed")

    def _on_peer_lost(self, process_id: str) -> None:
        self._connected.pop(process_id, None)
        self._answers.pop(process_id, None)
        self._retry_s.pop(process_id, None)
        self._open.forget(process_id)
        self._go_on(process_id)
        if self.arena is not None:
            self.arena.clear_dead()
            for delay_s in ENDED_AFTER_S:
                self._messenger.call_later(delay_s, self.arena.clear_dead)

    def _sweep(self) -> None:
        self._open.serve()
        self._sweep_due = self._open.in_use()
        if self._sweep_due:
            self._messenger.call_later(SWEEP_AFTER_S, self._sweep)

    # -- blocks of others ------------------------------------------------------------------------

    def _tell_owner(self, owner: Endpoint) -> None:
        """Tell an owner that waits for room; on the I/O thread."""
        self._messenger.notify(owner, SERVICE, Returned())

    def _on_opened(self, arena: ForeignArena) -> Callable[[], None] | None:
        """Notice the end of an arena's owner, so that its memory does not outlive it here for longer than used."""
        owner_id = arena.owner.process_id
        if owner_id == self.own_id or owner_id in self._connected:
            return None
        try:
            watch = os.pidfd_open(arena.owner_pid)
        except OSError:  # it is gone already, or cannot be watched
            arena.owner_is_gone = True
            return None
        self._watches.add(watch)

        def ended() -> None:
            self._end_watch(watch)
            self._open.forget(owner_id)

        self._messenger.watch(watch, ended)
        return lambda: self._end_watch(watch)

    def _end_watch(self, watch: int) -> None:
        if watch in self._watches:
            self._watches.remove(watch)
            self._messenger.unwatch(watch)
            os.close(watch)

    # -- the end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Give up this process's arena, and those of others that are not in use; on the I/O thread, as its end."""
        self._closed = True
        self._open.close()
        if self.arena is not None:
            self.arena.close()
        for watch in list(self._watches):
            self._end_watch(watch)

    def abandon(self) -> None:
        """Close every descriptor in a forked child."""
        self._closed = True
        self._open.orphan()
        watches, self._watches = self._watches, set()
        for watch in watches:
            os.close(watch)
        if self.arena is not None:
            self.arena.abandon()


_CLOSED = "this process has left the cluster"


def _read(head: Any) -> Offer | Answer | Returned:
    return msgspec.convert(head, Offer | Answer | Returned)
