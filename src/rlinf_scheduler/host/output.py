"""What a rank prints and logs: into files of its own, and from there to the job's home, line by line.

Descriptors 1 and 2 of the process become files. So nothing is lost, of any writer: Python, a C++ library, the message
of a crash. The process's I/O thread reads on in the files and sends the driver what is new: soon after it was written,
and in any case ahead of the answer to the call in which it was.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import stat
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rlinf_scheduler.addresses import WorkerAddress
from rlinf_scheduler.comm.failure import sendable
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.rundir import hold
from rlinf_scheduler.comm.threads import run_beside_in_time
from rlinf_scheduler.errors import ClusterError
from rlinf_scheduler.host import protocol
from rlinf_scheduler.host.output_file import FollowedFile, PatientFile, as_sent, last_lines, with_patience
from rlinf_scheduler.log_level import LOGGER_NAME
from rlinf_scheduler.session import Session

# So much may be under way to a home that has not taken it.
MAX_UNTAKEN_BYTES = 4 << 20
# Of a message, beside its text.
_MESSAGE_BYTES = 500


class LineSender:
    """Sends lines of this process's rank; on the I/O thread, but for its making."""

    def __init__(self, session: Session, address: WorkerAddress, where: str) -> None:
        self._messenger = session.messenger
        self._home = session.home
        self._address = address
        self._where = where
        # The number and the size of each message that was not taken when that was looked at last.
        self._untaken: deque[tuple[int, int]] = deque()
        self._untaken_bytes = 0
        # Log lines that had no room.
        self._num_left_out = 0

    def has_room(self) -> bool:
        """Whether the home takes what it is sent."""
        if self._untaken_bytes < MAX_UNTAKEN_BYTES:
            return True
        num_taken = self._messenger.peers.num_taken(self._home.process_id)
        while self._untaken and self._untaken[0][0] <= num_taken:
            self._untaken_bytes -= self._untaken.popleft()[1]
        return self._untaken_bytes < MAX_UNTAKEN_BYTES

    def send_output(self, stream: str, lines: list[str]) -> None:
        """Send lines of a standard stream; the caller asks before whether there is room."""
        address = self._address
        size_bytes = sum(map(len, lines))
        self._send(
            protocol.OUTPUT, protocol.OutputLines(address.group, address.rank, lines, stream), size_bytes
        )

    def send_log_line(self, level: int, text: str) -> None:
        """Send a log line, or count it."""
        self.tell_left_out()
        if self._num_left_out or not self.has_room():
            self._num_left_out += 1
        else:
            self._log(level, text)

    def tell_left_out(self) -> None:
        """Tell how many log lines had no room, once there is."""
        if self._num_left_out and self.has_room():
            where = f"; they are in {self._where}" if self._where else ""
            number, self._num_left_out = self._num_left_out, 0
            told = f"... {number:,} log lines were left out: nobody took them in time{where}"
            self._log(logging.WARNING, told)

    def _log(self, level: int, text: str) -> None:
        rank, *below = self._address.path
        line = protocol.LogLine(self._address.group, rank, level, text, "/".join(map(str, below)))
        self._send(protocol.LOG, line, len(text))

    def _send(self, service: str, head: object, size_bytes: int) -> None:
        self._messenger.notify_first(self._home, service, head)
        size_bytes += _MESSAGE_BYTES
        self._untaken.append((self._messenger.peers.num_sent(self._home.process_id), size_bytes))
        self._untaken_bytes += size_bytes


# -- files -------------------------------------------------------------------------------------------


OUTPUT_VARIABLE = "RLINF_RANK_OUTPUT"
NUM_KEPT_JOBS = 20
# How often the files are looked at: soon after something was written, and seldom while nothing is.
_SOONEST_S, _LATEST_S = 0.1, 1.0
OUT, ERR = "stdout", "stderr"
_DESCRIPTORS = {OUT: 1, ERR: 2}

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LogFolder:
    """Where the ranks of a job have their files, on each node the same path.

    Attributes:
        path: the folder; "" where ranks write to what they were started with.
    """

    path: str

    @property
    def is_named(self) -> bool:
        """Whether the user has named it; else it is one of those of this user's last jobs."""
        return Path(self.path).parent != _own_home()

    @classmethod
    def fresh(cls) -> LogFolder:
        """A new name for a job that begins now; no name if the user wants none."""
        if os.environ.get(OUTPUT_VARIABLE) == "ray":
            return cls("")
        began = time.strftime("%Y%m%d-%H%M%S")
        return cls(str(_own_home() / f"{began}-{os.getpid()}"))

    def file_of(self, address: WorkerAddress, stream: str = OUT) -> str:
        """The file of a rank's standard output and log, or error, or ""."""
        name = address.group.translate(str.maketrans("/:", "+-"))
        suffix = "log" if stream == OUT else "err"
        return f"{self.path}/{name}-{address.rank}.{suffix}" if self.path else ""

    def last_words(self, address: WorkerAddress) -> str:
        """What a rank had written last, as further lines of a message; "" if that cannot be read here."""
        told = ""
        for stream in (OUT, ERR):
            path = self.file_of(address, stream)
            lines = last_lines(path) if path else []
            told += "\n  ".join([f"\nit had written last ({path}):", *lines]) if lines else ""
        return told


def _own_home() -> Path:
    """Where the folders of this user's jobs are."""
    return Path(tempfile.gettempdir()) / f"rlinf-logs-{os.getuid()}"


def open_folder(path: Path) -> int:
    """Make a job's folder, which only its user can read; the oldest of many that nobody uses any more are deleted.

    Returns:
        A descriptor: while it is open, nobody deletes the folder.

    Raises:
        OSError, ClusterError: there can be no such folder, the one that it lies in is somebody else's, or somebody has
            it locked for seconds.
    """
    home = path.parent
    home.mkdir(mode=0o700, exist_ok=True)
    status = home.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise ClusterError(f"{home} is not a folder of this user's own: ranks cannot write there")

    def opened() -> int:
        path.mkdir(mode=0o700, exist_ok=True)
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    held = hold(path, opened)
    for old in sorted(home.iterdir())[:-NUM_KEPT_JOBS]:
        _delete_unless_used(old)
    return held


def open_named_folder(path: Path) -> int:
    """Make a folder that the user has named, for its user alone if it is new; nothing is deleted beside it."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _delete_unless_used(folder: Path) -> None:
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)


def capture_output(folder: LogFolder, address: WorkerAddress) -> RankOutput | None:
    """Have what this process writes go to its rank's file; None where there is none, or none can be."""
    if not folder.path:
        return None
    try:
        return RankOutput(folder, address)
    except (OSError, ClusterError) as error:
        # What it was started with still takes it.
        _log.warning("what %s writes is in no file of its own: %s", address, error)
        return None


class RankOutput:
    """The files of this process's rank.

    Raises:
        OSError, ClusterError: there can be no such files.
    """

    def __init__(self, folder: LogFolder, address: WorkerAddress) -> None:
        self._address = address
        open_it = open_named_folder if folder.is_named else open_folder
        self._folder = open_it(Path(folder.path))
        files = {stream: FollowedFile(Path(folder.file_of(address, stream))) for stream in (OUT, ERR)}
        self._files = files
        self._raw = {stream: PatientFile(descriptor) for stream, descriptor in _DESCRIPTORS.items()}
        # Kept: what is collected closes its descriptor.
        self._before = sys.stdout, sys.stderr
        sys.stdout = with_patience(sys.stdout, self._raw[OUT])
        sys.stderr = with_patience(sys.stderr, self._raw[ERR])
        for stream, descriptor in _DESCRIPTORS.items():
            files[stream].take(descriptor)
        self._session: Session | None = None
        self._sender: LineSender | None = None
        self._pause_s = _SOONEST_S

    def follow(self, session: Session, sender: LineSender) -> None:
        """From now on send what is written to the job's home, as much as that takes."""
        self._session, self._sender = session, sender
        session.on_close(self._finish)
        session.messenger.submit(self._look)

    def note(self, text: str) -> None:
        """Write a log line that travels by itself; from any thread."""
        with suppress(OSError):
            self._raw[OUT].write(as_sent(f"{time.strftime('%H:%M:%S')} {text}\n"))

    def catch_up(self) -> None:
        """Send what was written so far ahead of what this thread sends next."""
        with suppress(AttributeError, ValueError, OSError):
            sys.stdout.flush()
        if self._session is not None and any(file.has_grown for file in self._files.values()):
            for file in self._files.values():
                file.await_reading(_LATEST_S)
            self._session.messenger.submit(self._send_now)

    # -- the I/O thread --------------------------------------------------------------------------

    def _look(self) -> None:
        session = self._session
        if session is None or session.messenger.why_closed:
            return
        self._pause_s = _SOONEST_S if self._send_new() else min(2 * self._pause_s, _LATEST_S)
        for file in self._files.values():
            if file.begin_shortening():
                run_beside_in_time(session.messenger.call_later, file.shorten)
        session.messenger.call_later(self._pause_s, self._look)

    def _send_now(self) -> None:
        self._send_new()

    def _send_new(self) -> bool:
        """Send what is new, as long as the home takes it; whether there was anything."""
        sender = self._sender
        if sender is None or not sender.has_room():
            return False
        sender.tell_left_out()
        found = False
        for stream, file in self._files.items():
            for lines in file.new_lines():
                found = True
                if lines:
                    sender.send_output(stream, lines)
                if not sender.has_room():  # the rest stays in the file
                    return True
        return found

    def _finish(self) -> None:
        """Send what is left; on the thread that closes the session, before the messenger does not take it any more."""
        sent: Promise[None] = Promise()

        def send() -> None:
            self._send_new()
            for stream, file in self._files.items():
                if self._sender is not None and (lines := file.last_line()):
                    self._sender.send_output(stream, lines)
            sent.set_result(None)

        with suppress(AttributeError, ValueError, OSError):
            sys.stdout.flush()
        if self._session is not None:
            self._session.messenger.submit(send)
            if not self._session.messenger.on_io_thread():
                sent.wait(_LATEST_S)


def tell_method(address: WorkerAddress, output: RankOutput | None) -> Callable[[str], None]:
    """What a rank's calls are told to: `ps` shows the methods that run, and what it wrote goes ahead of its answer."""
    # Ray's own: it has written over what another copy of that library would have to find.
    set_title = getattr(sys.modules.get("ray._raylet"), "setproctitle", lambda _: None)

    running: dict[int, str] = {}  # by thread

    def tell(method: str) -> None:
        if method:
            running[threading.get_ident()] = method
        else:
            running.pop(threading.get_ident(), None)
        set_title(" ".join([str(address), *(f"{each}()" for each in running.copy().values())]))
        if not method and output is not None:
            output.catch_up()

    tell("")
    return tell


# -- log lines ---------------------------------------------------------------------------------------


class _Forwarder(logging.Handler):
    def __init__(self, session: Session, sender: LineSender, output: RankOutput | None) -> None:
        super().__init__()
        self._messenger = session.messenger
        self._sender = sender
        self._output = output
        self._pid = os.getpid()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = sendable(self.format(record))
            if os.getpid() != self._pid:  # a forked child: it has no part in the job, but the rank's output
                os.write(2, f"{record.levelname} {text}\n".encode())
                return
            if self._output is not None:
                self._output.note(f"{record.levelname} {text}")
            self._messenger.submit(partial(self._sender.send_log_line, record.levelno, text))
        except Exception:  # noqa: BLE001 - as in all of logging: a line that cannot be written ends no work
            self.handleError(record)


def forward_logs(
    session: Session, sender: LineSender, level: int, library_level: int, output: RankOutput | None
) -> None:
    """Send what this process logs to the job's home, the driver, and write it into the rank's file.

    Args:
        level: the lowest level of what is logged under `rlinf.worker`.
        library_level: of what all other loggers say; 0: that is left alone.
    """
    logger, root = logging.getLogger(LOGGER_NAME), logging.getLogger()
    for each in logger, root:  # of the process that has forked this one
        for handler in [handler for handler in each.handlers if isinstance(handler, _Forwarder)]:
            each.removeHandler(handler)
    logger.setLevel(level)
    logger.propagate = False
    logger.addHandler(_Forwarder(session, sender, output))
    if library_level:
        libraries = _Forwarder(session, sender, output)
        libraries.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        root.setLevel(library_level)
        root.addHandler(libraries)
