"""Processes that a rank started, as workers below it: what it leaves for them, and how one joins its job.

A rank keeps what a process needs to join, the job's key among it, in a file in its memory (memfd): on no disk, only
its user can open it, and it ends with the rank. A variable of its environment says where. A lock on one byte of that
file is a number below the rank: the kernel gives it to one process, says which, and takes it back when that has ended.
"""

from __future__ import annotations

import atexit
import fcntl
import logging
import os
import pickle
import platform
import struct
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import msgspec

from rlinf_scheduler.addresses import WorkerAddress, parent_name
from rlinf_scheduler.comm import Buffer, on_fork_in_child
from rlinf_scheduler.comm.directory import PARENT, PID, RETURNS, Entry
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.threads import run_beside
from rlinf_scheduler.comm.transport.peer_session import Loss
from rlinf_scheduler.errors import ClusterError, ClusterTimeout, CommError, CommTimeout
from rlinf_scheduler.host.info import (
    DetachedJob,
    JobSettings,
    Role,
    job_settings,
    rank_seed,
    unpacked_topology,
)
from rlinf_scheduler.host.observed import be_observed
from rlinf_scheduler.host.output import LineSender, LogFolder, forward_logs
from rlinf_scheduler.host.processes import (
    LEAVE_GRACE_S,
    ancestors,
    end_after,
    end_descendants,
    end_with_status,
    set_title,
    watch_process,
)
from rlinf_scheduler.host.protocol import HostSpec
from rlinf_scheduler.mailbox import open_mailbox_when_needed
from rlinf_scheduler.planning import Topology
from rlinf_scheduler.proc import birth_of
from rlinf_scheduler.rooms import of_room
from rlinf_scheduler.session import Session, current_or_none, set_current

# What a rank starts has it in its environment: "PID BIRTH DESCRIPTOR ADDRESS" of the worker that it may join below.
PARENT_VARIABLE = "RLINF_PARENT"
JOIN_TIMEOUT_S = 60.0
# What is done when it fails may take so long.
_UNDONE_WITHIN_S = 10.0
# More than the processors of a machine.
MAX_CHILDREN = 1 << 16
_FILE = "rlinf-join"
# struct flock, for F_GETLK: type, whence, start, length, pid.
_FLOCK = "hhlli4x"
# F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW and F_SEAL_WRITE: nobody changes it any more.
_SEALS = 0x0F

_log = logging.getLogger(__name__)
# One at a time: the second thread finds what the first has joined.
_joining = threading.RLock()


class JoinSpec(msgspec.Struct, frozen=True):
    """What a process needs to join below a worker.

    Attributes:
        host: what that worker's process was started with.
        returns: who starts another process in the rank's place if it dies; "" if nobody does.
        settings: what the job's config says of all its groups.
    """

    host: HostSpec
    role: Role
    topology: bytes
    process_id: str
    returns: str
    settings: JobSettings


class _Parent(NamedTuple):
    """The worker that this process may join below, as the environment has it.

    Attributes:
        pid: its process's number,
        born: and when it began; see `birth_of`.
        descriptor: of its file there.
        address: its name.
    """

    pid: int
    born: int
    descriptor: int
    address: str

    @classmethod
    def find(cls) -> _Parent:
        """The nearest one above this process.

        Raises:
            ClusterError: there is none.
        """
        # What a fork server starts has the server's environment, whichever process asked for it.
        words = (_of_multiprocessing().get(PARENT_VARIABLE) or os.environ.get(PARENT_VARIABLE, "")).split(
            " ", 3
        )
        try:
            pid, born, descriptor, address = words
            return cls(int(pid), int(born), int(descriptor), address)
        except ValueError:
            found = None if any(words) else cls._of_ancestors()
        if found is None:
            raise ClusterError(
                "this process was not started by a rank, so there is nothing to join: what a rank starts has "
                f"{PARENT_VARIABLE} in its environment, which is {' '.join(words) or 'not set'!r} here, "
                "or a rank among the processes above it"
            )
        return found

    @classmethod
    def _of_ancestors(cls) -> _Parent | None:
        """The nearest one of those that started this process, which was given another environment."""
        for pid, _ in ancestors(os.getpid()):
            with suppress(OSError):  # it ends, or is another user's
                for descriptor in os.listdir(f"/proc/{pid}/fd"):
                    address = _address_in_file(pid, descriptor)
                    if address:
                        return cls(pid, birth_of(pid), int(descriptor), address)
        return None

    def lives(self) -> bool:
        """Whether it is still that process, and not another one with its number."""
        return birth_of(self.pid) == self.born

    def open(self) -> _JoinFile:
        """Its file.

        Raises:
            ClusterError: it cannot be opened.
        """
        path = f"/proc/{self.pid}/fd/{self.descriptor}"
        self.check_lives()
        try:
            file = _JoinFile(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        except OSError as error:
            why = f"{error.strerror}; it has left the job, or is another user's"
            raise ClusterError(f"{path} of '{self.address}' cannot be opened: {why}") from error
        # Now: what has its number or its descriptor may be another.
        if self.lives() and file.is_own():
            return file
        file.close()
        self.check_lives()
        raise ClusterError(f"{path} is no file of '{self.address}' for what it starts: it has left the job")

    def check_is(self, address: WorkerAddress) -> None:
        """Raise unless that is whose file was found: what has left the job may have joined another way, or again.

        Raises:
            ClusterError: it is another one's.
        """
        if str(address) != self.address:
            raise ClusterError(
                f"/proc/{self.pid}/fd/{self.descriptor} is that of '{address}', not of '{self.address}': "
                f"'{self.address}' has left the job"
            )

    def check_lives(self) -> None:
        """Raise unless it is there.

        Raises:
            ClusterError: it is gone.
        """
        if not self.lives():
            raise ClusterError(
                f"'{self.address}', which started this process, is gone, or cannot be seen from here: "
                f"it was process {self.pid}"
            )


def offer_joining(session: Session, host: HostSpec, topology: Buffer, returns: str) -> None:
    """Let processes that this one starts from now on join the job below it."""
    role = session.fact(Role)
    if role is None:
        raise ValueError("a process that has no role has nobody below it")
    own_id = session.messenger.endpoint.process_id
    spec = JoinSpec(
        host, Role(role.info, role.hardware), bytes(topology), own_id, returns, job_settings(session)
    )
    try:
        descriptor = _sealed(pickle.dumps(spec))
    except OSError as error:  # no descriptor, or no memory, is to be had: that is no reason not to start
        _log.warning("no process can join the job below '%s': %s", session.name, error)
        os.environ.pop(PARENT_VARIABLE, None)
        return
    pid = os.getpid()
    os.environ[PARENT_VARIABLE] = where = f"{pid} {birth_of(pid)} {descriptor} {session.name}"
    _of_multiprocessing()[PARENT_VARIABLE] = where
    close = partial(os.close, descriptor)
    session.on_close(close)
    session.on_fork(close)
    session.messenger.on_peer_lost(partial(_tell_of_child, session))


def _tell_of_child(session: Session, process_id: str) -> None:
    """Tell the rank of one below it that has died: the job's home says it to all."""
    lost = session.messenger.peers.lost.get(process_id)
    if lost is None or lost.loss is Loss.LEFT or parent_name(lost.name) != session.name:
        return
    _log.warning("'%s', which this worker started, has died: %s", lost.name, lost.reason)
    if session.bus.is_heard:
        # Most ranks listen to no event.
        from rlinf_scheduler.events import ChildLost  # noqa: PLC0415

        session.bus.emit(ChildLost(lost.name, lost.reason))


def join_parent(
    rank: int | None = None,
    world_size: int | None = None,
    *,
    parent: WorkerAddress | None = None,
    timeout_s: float = JOIN_TIMEOUT_S,
) -> WorkerAddress:
    """Join the job below the rank, or the worker below one, that started this process; its address from now on.

    Args:
        rank: its number below that; None: the lowest one that nobody has.
        world_size: how many there will be.
        parent: the worker that started it, to be sure; None: whichever it is.
        timeout_s: how long the job's home may take, in seconds.

    Raises:
        ClusterError: no rank started this process, or it is gone; somebody has that number; or this process is a part
            of a job already.
        ClusterTimeout: the job's home does not answer in time.
    """
    _check_number(rank, world_size)
    joined: Promise[WorkerAddress] = Promise()
    # In a thread of its own: who waits may be interrupted anywhere; the join goes on, and is done once.
    run_beside(joined.set_from, lambda: _join_once(rank, world_size or 0, parent, timeout_s))
    if not joined.wait(timeout_s + _UNDONE_WITHIN_S):
        raise ClusterTimeout(f"this process has not joined its parent's job after {timeout_s:g} s")
    return joined.result(0)


def _join_once(
    rank: int | None, world_size: int, parent: WorkerAddress | None, timeout_s: float
) -> WorkerAddress:
    with _joining:
        existing = current_or_none()
        if existing is not None:
            return _address_in(existing, rank, parent)
        above = _Parent.find()
        if parent is not None and str(parent) != above.address:
            raise ClusterError(
                f"this process was started by '{above.address}', not by '{parent}': it joins below that one"
            )
        if above.pid == os.getpid():
            raise ClusterError(f"this process is '{above.address}' itself, and has left the job")
        file = above.open()
        try:
            spec: JoinSpec = pickle.loads(file.content())
            above.check_is(spec.role.info.address)
            number = file.claim(above.address, rank)
            return _join(spec, above, file, number, world_size, timeout_s)
        except BaseException:
            file.close()
            raise


def parent_above() -> str:
    """The address of the worker that started this process; "" if none did, or it is gone."""
    try:
        above = _Parent.find()
    except ClusterError:
        return ""
    return above.address if above.pid != os.getpid() and above.lives() else ""


def _of_multiprocessing() -> dict[str, Any]:
    """What this process hands to those that it starts by `multiprocessing`, whichever way."""
    process = sys.modules.get("multiprocessing.process")
    return {} if process is None else getattr(process.current_process(), "_config", {})


def _address_in_file(pid: int, descriptor: str) -> str:
    """The address of the worker in a process that has a file for what it starts under that descriptor; else ""."""
    path = f"/proc/{pid}/fd/{descriptor}"
    with suppress(OSError):
        if not os.readlink(path).startswith(f"/memfd:{_FILE}"):
            return ""
        file = _JoinFile(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        try:
            spec: JoinSpec | None = pickle.loads(file.content()) if file.is_own() else None
        finally:
            file.close()
        if spec is not None and spec.role.info.pid == pid:  # else it joined by it
            return str(spec.role.info.address)
    return ""


def _address_in(session: Session, rank: int | None, parent: WorkerAddress | None) -> WorkerAddress:
    """The address that this process has already, if that is what is wanted.

    Raises:
        ClusterError: it is not.
    """
    role = session.fact(Role)
    own = None if role is None else role.info.address
    if own is None or own.parent is None:
        raise ClusterError(
            f"this process is '{session.name}' of its job; what joins below a rank is a process that the rank starts"
        )
    if rank not in (None, own.rank) or (parent is not None and str(parent) != str(own.parent)):
        raise ClusterError(f"this process has joined the job as '{own}' already")
    return own


def _join(
    spec: JoinSpec, above: _Parent, file: _JoinFile, number: int, world_size: int, timeout_s: float
) -> WorkerAddress:
    host, began = spec.host, time.monotonic()
    address = spec.role.info.address.child(number)
    sys.path.extend(path for path in host.sys_path if path not in sys.path)
    session = Session(
        host.secret,
        str(address),
        home=host.home,
        host=host.node_ip,
        tcp=host.crosses_machines,
        encryption=host.encryption,
        ports=host.ports,
        unreachable_after_s=host.unreachable_after_s,
        unresponsive_after_s=host.unresponsive_after_s,
    )
    # Last: the number is another's when nothing of this one is left in the job.
    session.on_close_last(file.close)
    session.on_fork(file.close)
    try:
        _end_with(session, above)
        _become(session, spec, address, world_size)
        _register(session, spec, max(0.0, timeout_s - (time.monotonic() - began)))
        offer_joining(session, host, spec.topology, spec.returns)
    except BaseException:
        session.close()
        raise
    # What it prints goes where its parent's output goes; what it logs, home.
    forward_logs(session, LineSender(session, address, ""), host.log_level, host.library_level, None)
    set_current(session)
    _close_at_end(session)
    set_title(str(address))
    return address


def _become(session: Session, spec: JoinSpec, address: WorkerAddress, world_size: int) -> None:
    host, above = spec.host, spec.role.info
    info = replace(
        above,
        address=address,
        world_size=world_size,
        hostname=platform.node(),
        pid=os.getpid(),
        seed=rank_seed(above.seed, str(above.address), address.rank),
    )
    session.provide(Topology, unpacked_topology(spec.topology))
    session.provide(JobSettings, spec.settings)
    session.provide(Role, Role(info, spec.role.hardware))
    if host.emulates_network:
        of_room("emulation.arrivals:emulate_network")(session)  # it is where its parent is
    session.provide(LogFolder, LogFolder(host.log_folder))
    if host.detached_job:
        session.provide(DetachedJob, DetachedJob(host.detached_job))
    open_mailbox_when_needed(session)
    be_observed(session)


def _register(session: Session, spec: JoinSpec, timeout_s: float) -> None:
    """Make its name known.

    Raises:
        ClusterTimeout: its home does not answer in time.
        ClusterError: it is gone; or it says that the worker above is.
    """
    about: dict[str, Any] = {
        "placement": pickle.dumps(spec.role.info.placement),
        PARENT: spec.process_id,
        PID: os.getpid(),
        # Its parent may start another one in its place, as long as that is there or comes back.
        RETURNS: spec.returns or spec.process_id,
    }
    entry = Entry(session.name, session.messenger.endpoint, about)
    # The number's lock is this process's: the kernel has taken it from the one that had it.
    asked = session.directory.register_async(entry, succeeds=True)
    late = f"'{session.name}' has not joined the job in time: its home does not take its name"
    if not asked.wait(timeout_s):
        asked.cancel()
        raise ClusterTimeout(late)
    try:
        asked.result(0)
    except CommTimeout as error:
        raise ClusterTimeout(late) from error
    except CommError as error:
        raise ClusterError(f"'{session.name}' has not joined the job: {error}") from error


def _end_with(session: Session, above: _Parent) -> None:
    """Have this process end with the one that started it, with the job, and when it is declared dead."""
    leaving: list[str] = []

    def leave(why: str) -> None:
        if not leaving:
            leaving.append(why)
            _log.info("'%s' ends: %s", session.name, why)
            session.messenger.call_later(LEAVE_GRACE_S, end_with_status)
            with suppress(RuntimeError):  # there is no thread to be had: then it ends without order
                run_beside(end_after, LEAVE_GRACE_S)
                run_beside(_end_in_order, session, why)

    def leave_without(process_id: str) -> None:
        if process_id == session.home.process_id:
            leave(f"the job's home is gone: {session.messenger.peers.why_lost(process_id)}")

    gone = f"'{above.address}' (process {above.pid}), which started it, has ended"
    session.messenger.on_peer_lost(leave_without)
    session.messenger.peers.on_fenced.append(lambda reason: leave(f"it was declared dead: {reason}"))
    session.messenger.connect(session.home)  # to be told of its end
    watch_process(session, above.pid, above.lives, lambda: leave(gone))


def _end_in_order(session: Session, why: str) -> None:
    end_descendants()
    session.close(why)
    end_descendants()
    end_with_status()


def _close_at_end(session: Session) -> None:
    """Leave the job when this program ends."""
    pid = os.getpid()

    def close() -> None:
        if os.getpid() == pid:
            session.close()

    atexit.register(close)
    # A child of `multiprocessing` may end without what is registered there.
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.Finalize(None, close, exitpriority=-1)


def _sealed(content: bytes) -> int:
    """The descriptor of a new file that nobody changes any more."""
    descriptor = os.memfd_create(_FILE, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


class _JoinFile:
    """A worker's file for what it starts, open in such a process; closed it gives the process's number back."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def is_own(self) -> bool:
        """Whether it is such a file, and this user's: only that is believed."""
        name = os.readlink(f"/proc/self/fd/{self._descriptor}")
        return os.fstat(self._descriptor).st_uid == os.getuid() and name.startswith(f"/memfd:{_FILE}")

    def content(self) -> bytes:
        """What it holds."""
        return os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0)

    def claim(self, parent: str, wanted: int | None) -> int:
        """Take a number below its worker, for as long as this process lives and has it open.

        Args:
            wanted: which; None: the lowest that is free.

        Raises:
            ClusterError: another process has it; or all are taken.
        """
        for number in range(MAX_CHILDREN) if wanted is None else (wanted,):
            with suppress(BlockingIOError, PermissionError):
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
                return number
        if wanted is None:
            raise ClusterError(f"'{parent}' has {MAX_CHILDREN:,} workers below it; there can be no more")
        holder = self._holder(wanted)
        has_it = f"process {holder}" if holder else "another process"
        raise ClusterError(
            f"'{parent}/{wanted}' is {has_it} already: each worker below '{parent}' has a number of its own"
        )

    def _holder(self, number: int) -> int:
        """The process that has a number; 0 if it is beyond this one's sight, or has just ended."""
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, number, 1, 0)
        kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(self._descriptor, fcntl.F_GETLK, asked))
        return 0 if kind == fcntl.F_UNLCK else int(pid)

    def close(self) -> None:
        """Close it; a second time nothing happens."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _check_number(rank: int | None, world_size: int | None) -> None:
    for name, number, lowest in (("rank", rank, 0), ("world_size", world_size, 1)):
        if number is not None and (type(number) is not int or not lowest <= number <= MAX_CHILDREN):
            raise ClusterError(f"{name}={number!r}: it is a whole number from {lowest}")
    if rank is not None and world_size is not None and rank >= world_size:
        raise ClusterError(f"rank={rank} of world_size={world_size}: the last one is {world_size - 1}")


def _renew_lock() -> None:
    """Let a forked child join: the thread that held the lock is its parent's."""
    global _joining
    _joining = threading.RLock()


on_fork_in_child(_renew_lock)
