"""A process's place in a job: how it reaches the others, and what is undone when it leaves."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self, TypeVar

from rlinf_scheduler.comm import (
    ClusterSecret,
    DirectoryClient,
    DirectoryServer,
    Endpoint,
    Messenger,
    on_fork_in_child,
)
from rlinf_scheduler.comm.descriptors import allow_descriptors
from rlinf_scheduler.comm.directory import Entry
from rlinf_scheduler.comm.forking import FORKED
from rlinf_scheduler.comm.port_range import PortRange
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.pull.records import pull_is_wanted
from rlinf_scheduler.comm.shm.ledger import pinned_limit_bytes
from rlinf_scheduler.comm.threads import ASK_AGAIN_S
from rlinf_scheduler.comm.transport.peer_session import GRACE_S
from rlinf_scheduler.errors import ClusterError, CommError
from rlinf_scheduler.rooms import of_room
from rlinf_scheduler.session.bus import EventBus
from rlinf_scheduler.session.membership import Death, DeathNotices, Heart, MembersNotices

if TYPE_CHECKING:
    from rlinf_scheduler.session.heartbeat_monitor import HeartbeatMonitor

_log = logging.getLogger(__name__)

NO_SESSION = (
    "there is no cluster in this process: workers, channels and weights are used in the driver after Cluster(...), "
    "or inside a worker"
)
INTERRUPTED = "this process was interrupted, and has left the cluster"
# How long the I/O thread may take to make a service.
SERVICE_TIMEOUT_S = 30.0
# How long a process that leaves a lost job beside its program is waited for at its end.
UNDONE_WITHIN_S = 30.0
T = TypeVar("T")


class Session:
    """One process's membership in a job. As a context manager it is this process's session until it is left.

    What the process has besides is its *services*: a mailbox, the connections to channels. Each is made on first use by
    the class or function that it is asked for by, so this class knows none of them.

    Args:
        secret: what proves that a process belongs to this job.
        name: "driver", or a worker's `group:rank`.
        home: the process that keeps the directory and starts processes for the others; None: this one does.
        host: this machine's address, to listen on.
        tcp: whether some process of the job cannot be reached through a Unix socket.
        encryption: whether what goes from machine to machine is encrypted.
        ports: as `Messenger`'s.
        machine_id: as `Messenger`'s.
        arena_limit_bytes: as `Messenger`'s.
        unreachable_after_s: how long a process may be unreachable before it is dead, in seconds.
        unresponsive_after_s: how long this process may be stopped or stuck before it is dead, in seconds; None: for
            ever.

    Raises:
        ConfigError: `RLINF_PINNED_MIB` holds no number, or `RLINF_PULL` something else than nixl and off.

    Attributes:
        name, secret: see above.
        messenger: this process's messenger.
        home: how the process above is reached.
        directory: finds the others by name.
        deaths: who is dead.
        members: which ranks the groups have that are resized.
        bus: what happens in the job, for the listeners.
        log_bus: workers' log lines, on their own: they are shown before the result of the call that wrote them, however
            slow other listeners are.
        unreachable_after_s: see above.
        failure: what made this process leave the job; "" as long as nothing did.
    """

    def __init__(
        self,
        secret: ClusterSecret,
        name: str,
        *,
        home: Endpoint | None = None,
        host: str = "127.0.0.1",
        tcp: bool = False,
        encryption: bool = True,
        ports: PortRange | None = None,
        machine_id: str | None = None,
        arena_limit_bytes: int | None = None,
        unreachable_after_s: float = GRACE_S,
        unresponsive_after_s: float | None = None,
    ) -> None:
        pinned_bytes, pulls = pinned_limit_bytes(), pull_is_wanted()
        allow_descriptors()
        self.unreachable_after_s = unreachable_after_s
        self.secret = secret
        self.name = name
        self.failure = ""
        self.bus, self.log_bus = EventBus(), EventBus()
        self._closed = False
        # One for each time that it is left beside the program; completed when that is done.
        self._leaving: list[Promise[None]] = []
        self._closers: deque[Callable[[], None]] = deque()
        self._first_closers: deque[Callable[[], None]] = deque()
        self._fork_callbacks: deque[Callable[[], None]] = deque()
        self._services: dict[object, Any] = {}
        self.messenger = Messenger(
            secret,
            name=name,
            host=host,
            tcp=tcp,
            encryption=encryption,
            ports=ports,
            machine_id=machine_id,
            arena_limit_bytes=arena_limit_bytes,
            unreachable_after_s=unreachable_after_s,
            on_failed=self._fail,
        )
        if pinned_bytes:
            of_room("devices.pinning:pin_arrivals")(self.messenger, pinned_bytes)
        if pulls:
            from rlinf_scheduler.comm.pull.pulls import begin_to_pull  # noqa: PLC0415

            begin_to_pull(self.messenger)
        self._closers.extend((self.bus.close, self.log_bus.close, self.messenger.close))
        if home is None:
            # One process of a job: the others do not load what it tells.
            from rlinf_scheduler.session.children import ChildEvents  # noqa: PLC0415

            DirectoryServer(self.messenger, self._declare_dead, ChildEvents(self.messenger, self.bus).joined)
        self.home = home or self.messenger.endpoint
        self.directory = DirectoryClient(self.messenger, self.home)
        self.deaths = DeathNotices(self.messenger, self.home)
        self.members = MembersNotices(self.messenger, self.home)
        self.messenger.peers.on_fenced.append(self._leave_as_dead)
        self._heartbeat_monitor: HeartbeatMonitor | None = None
        if home is None:
            from rlinf_scheduler.session.heartbeat_monitor import HeartbeatMonitor  # noqa: PLC0415

            self._heartbeat_monitor = HeartbeatMonitor(self.messenger, self.bus, self.deaths)
        else:
            Heart(self.messenger, home, unresponsive_after_s)

    @property
    def crosses_machines(self) -> bool:
        """Whether some process of the job cannot be reached through a Unix socket."""
        return bool(self.messenger.endpoint.tcp_address)

    def why_silent(self, process_id: str) -> str:
        """Why a process that lives is not heard of now: cut off, or, as far as the home knows, stopped; else ""."""
        cut_off = self.messenger.peers.cut_off(process_id)
        return cut_off or (
            self._heartbeat_monitor.why_silent(process_id) if self._heartbeat_monitor is not None else ""
        )

    def silent_s(self, process_id: str) -> float:
        """For how long the home has heard nothing of a process, in seconds; 0 where this is not the home."""
        return self._heartbeat_monitor.silent_s(process_id) if self._heartbeat_monitor is not None else 0.0

    @property
    def closed(self) -> bool:
        """Whether it has been left."""
        return self._closed

    def service(self, make: Callable[[Session], T]) -> T:
        """What `make` made of this session, or was provided in its place; made when it is first asked for.

        The I/O thread makes it: so it is made once, by any thread that asks and wherever that is interrupted.

        Args:
            make: a class or function that takes the session; it must not wait.

        Raises:
            CommError: this process has left the job, or is a forked child.
        """
        if make in self._services:
            made: T = self._services[make]
            return made
        self.messenger.check_process()
        if self.messenger.on_io_thread():
            return self._make(make)
        promise: Promise[T] = Promise()
        self.messenger.submit(lambda: promise.set_from(lambda: self._make(make)))
        if not promise.wait(SERVICE_TIMEOUT_S):
            raise CommError(f"'{self.name}': its I/O thread has not answered after {SERVICE_TIMEOUT_S:.0f} s")
        return promise.result()

    def provide(self, kind: Callable[..., Any], value: Any) -> None:
        """Let `service(kind)` and `fact(kind)` be `value`; before anybody asks."""
        self._services[kind] = value

    def fact(self, kind: Callable[..., T]) -> T | None:
        """What was provided as `kind`; None if nothing was."""
        found: T | None = self._services.get(kind)
        return found

    def _make(self, make: Callable[[Session], T]) -> T:
        if make not in self._services:
            if self.messenger.why_closed:
                raise CommError(self.messenger.why_closed)
            self._services[make] = make(self)
        made: T = self._services[make]
        return made

    def on_close(self, closer: Callable[[], None]) -> None:
        """Have `closer` called when the session is closed; the last one added is called first."""
        self._closers.append(closer)

    def on_close_first(self, closer: Callable[[], None]) -> None:
        """Have `closer` called before all else is closed, and before others are told that this process leaves."""
        self._first_closers.append(closer)

    def on_close_last(self, closer: Callable[[], None]) -> None:
        """Have `closer` called when all else is closed; the last one added is called last."""
        self._closers.appendleft(closer)

    def on_fork(self, callback: Callable[[], None]) -> None:
        """Have `callback` called in a forked child, to give up what belongs to the parent."""
        self._fork_callbacks.append(callback)

    def forget(self, callback: Callable[[], None]) -> None:
        """Undo `on_close` and `on_fork`: what it was for is no more."""
        for callbacks in (self._first_closers, self._closers, self._fork_callbacks):
            with suppress(ValueError):
                callbacks.remove(callback)

    def close(self, why: str = "") -> None:
        """Leave the job: undo everything, last first. A second call does nothing.

        Where this process leaves it already, beside, that is waited for, though not by a listener to events, which is
        waited for there. An interruption (a second Ctrl-C, say) is raised again when everything is undone.

        Args:
            why: what those are told who still wait for something here; "": that this process has left.
        """
        self._undo(why)
        for leaving in () if self.bus.tells or self.log_bus.tells else tuple(self._leaving):
            leaving.wait(UNDONE_WITHIN_S)

    def _undo(self, why: str = "") -> None:
        self.messenger.why_leaving = why or self.failure or self.messenger.why_leaving
        self._closed = True
        if _current is self:
            set_current(self if self.failure else None)
        interruption: BaseException | None = None
        while closers := self._first_closers or self._closers:
            try:
                closers.pop()()
            except Exception:  # noqa: BLE001 - one part that cannot be undone must not keep the others up
                _log.warning("leaving the job: a step failed", exc_info=True)
            except BaseException as error:  # noqa: BLE001 - raised below
                interruption = error
        if interruption is not None:
            raise interruption

    def __enter__(self) -> Self:
        around = current_or_none()
        if around is not None and around not in _entered:  # of a `Cluster`
            _entered.append(around)
        set_current(self)
        _entered.append(self)
        return self

    def __exit__(self, raised: type[BaseException] | None, *_: object) -> None:
        try:
            self.close(why_left(raised))
        finally:
            # Its own block is the innermost one; those around it go on.
            _entered[:] = [session for session in _entered if session is not self and not session.closed]
            if _entered and _current in (None, self):
                set_current(_entered[-1])

    def _declare_dead(self, entry: Entry, why: str) -> None:
        """The directory says that a worker is gone: before another takes its place, or its parent's."""
        self.deaths.declare(Death(entry.endpoint.process_id, entry.name, why))

    def _fail(self, _error: BaseException) -> None:
        """This process's I/O thread has ended with an error: nobody reaches it any more, nor it anybody."""
        self.leave(self.messenger.why_closed)

    def _leave_as_dead(self, reason: str) -> None:
        """Others go on without this process: what it does has no effect any more."""
        if not self.failure:
            self.leave(f"the job declared this process dead: {reason}")

    def leave(self, why: str) -> None:
        """Leave the job because it cannot go on; its users are told why from now on. From any thread."""
        if not self.failure and self.bus.is_heard:
            # Where somebody listens it is loaded already; most ranks have no use for it.
            from rlinf_scheduler.events import JobLost  # noqa: PLC0415

            self.bus.emit(JobLost(why))
        self.failure = self.failure or why  # what listeners were told, also when more is lost
        _log.critical("this process leaves the job, and ends what it has started: %s", why)
        self._close_beside()

    def _close_beside(self) -> None:
        # Not here: what is undone may wait for what runs in this thread.
        leaving: Promise[None] = Promise()

        def leave() -> None:
            try:
                self._undo()
            finally:
                leaving.set_result(None)

        try:
            self._leaving.append(leaving)  # before: who closes meanwhile finds nothing left to undo, or this
            threading.Thread(target=leave, name="rlinf-leave-job").start()
        except RuntimeError:  # "can't start new thread"
            self._leaving.remove(leaving)
            if (
                self.messenger.why_closed
            ):  # nothing can wait for the I/O thread any more, be it this one or not
                self.close()
            else:
                self.messenger.call_later(ASK_AGAIN_S, self._close_beside)

    def abandon(self) -> None:
        """Give everything up without undoing it: in a forked child it all belongs to the parent."""
        self._closed = True
        self.failure = FORKED
        self._leaving.clear()  # the parent's thread does it
        self._first_closers.clear()
        self._closers.clear()
        while self._fork_callbacks:
            self._fork_callbacks.pop()()


def why_left(raised: type[BaseException] | None) -> str:
    """What to say to those who still wait when a block has ended with this."""
    return INTERRUPTED if raised is not None and issubclass(raised, KeyboardInterrupt) else ""


# What this process has in the job; the one thing that is kept for the whole process.
_current: Session | None = None
# Those whose blocks are open, and others that were there before, the innermost last.
_entered: list[Session] = []


def set_current(session: Session | None) -> None:
    """Make `session` the one that this process has; None: it has none any more."""
    global _current
    _current = session
    on_fork_in_child(_abandon_in_child)


def current_or_none() -> Session | None:
    """This process's session, if it has one."""
    return None if _current is None or _current.closed else _current


def current_session() -> Session:
    """This process's session.

    Raises:
        ClusterError: it has none; the text says why.
    """
    if _current is None or _current.closed:
        raise ClusterError((_current.failure if _current else "") or NO_SESSION)
    return _current


def _abandon_in_child() -> None:
    for session in (*_entered, _current):
        if session is not None:
            session.abandon()
    _entered.clear()


# -- side by side ------------------------------------------------------------------------------------


class StartingBlock:
    """What one thread has begun since its block began."""

    def __init__(self) -> None:
        self._begun: list[tuple[Promise[Any], Callable[[Promise[Any]], None] | None]] = []

    def add(self, promise: Promise[Any], undo: Callable[[Promise[Any]], None] | None = None) -> None:
        """Note that something was begun, which `promise` is the end of.

        Args:
            undo: called with the promise, when that is done, if the block fails; None: it outlives that.
        """
        self._begun.append((promise, undo))

    def wait(self) -> None:
        """Wait until everything has started; raises what the first of them failed with, in the order of the block."""
        for promise, _ in self._begun:
            promise.wait()
            promise.result(0)

    def undo(self) -> None:
        """Undo what can be undone."""
        for promise, undo in self._begun:
            if undo is not None:
                promise.add_done_callback(undo)


class SideBySide:
    """The blocks of a process's threads; a service of its session."""

    def __init__(self, session: Session) -> None:
        del session
        self._own = threading.local()

    @property
    def block(self) -> StartingBlock | None:
        """The calling thread's; None if it is in none."""
        block: StartingBlock | None = getattr(self._own, "block", None)
        return block

    @contextmanager
    def together(self) -> Iterator[None]:
        """A block of the calling thread; at its end everything that was begun in it has started.

        Raises:
            SchedulerError: something did not start; what can be undone is undone then, as it is when the block raises.
        """
        outer, block = self.block, StartingBlock()
        self._own.block = block
        try:
            yield
            block.wait()
        except BaseException:
            block.undo()
            raise
        finally:
            self._own.block = outer
