"""What a rank's process writes to its standard output and error: files of its own, shown by the driver line by line.

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
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rlinf_scheduler.addresses import WorkerAddress
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.rundir import hold
from rlinf_scheduler.comm.threads import run_beside_in_time
from rlinf_scheduler.errors import ClusterError
from rlinf_scheduler.host.followed_file import FollowedFile, as_sent, last_lines
from rlinf_scheduler.host.line_sender import LineSender
from rlinf_scheduler.host.standard_stream import PatientFile, with_patience
from rlinf_scheduler.session import Session

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

    Args:
        folder: of its job.

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
    """What a rank's calls are told to: `ps` shows the methods that run, and what it wrote goes ahead of its answer.

    Args:
        address: the rank's.
        output: its file, if it has one.
    """
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
