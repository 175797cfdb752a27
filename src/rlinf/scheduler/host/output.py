"""What a rank's process writes to its standard output and error: a file of its own, shown by the driver line by line.

Descriptors 1 and 2 of the process become a file. So nothing is lost, whoever writes: Python, a C++ library, the message
of a crash. The process's I/O thread reads on in the file and sends the driver what is new: soon after it was written,
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
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rlinf.scheduler.comm.failure import sendable
from rlinf.scheduler.comm.promise import Promise
from rlinf.scheduler.comm.rundir import is_at
from rlinf.scheduler.errors import ClusterError
from rlinf.scheduler.host import protocol
from rlinf.scheduler.host.info import WorkerAddress
from rlinf.scheduler.session import Session

OUTPUT_VARIABLE = "RLINF_RANK_OUTPUT"
# Then the file is put aside, over the one that was put aside before.
MAX_FILE_BYTES = 16 << 20
# A rank that writes faster than its lines can be shown is shown the last of them.
MAX_BEHIND_BYTES = 1 << 20
NUM_KEPT_JOBS = 20
_CHUNK_BYTES = 64 << 10
_MAX_LINE_BYTES = 8 << 10
# Of what a rank that died had written, an error shows so much.
_LAST_BYTES, _NUM_LAST = 4 << 10, 15
# How often the file is looked at: soon after something was written, and seldom while nothing is.
_SOONEST_S, _LATEST_S = 0.1, 1.0
# What has already travelled as a log line begins so in the file.
_SENT = b"\x1e"
# A process that has the rank begins with such a line.
_BEGINS = _SENT + b"---\n"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LogFolder:
    """Where the ranks of a job have their files, on each node the same path.

    Attributes:
        path: the folder; "" where ranks write to what they were started with.
    """

    path: str

    @classmethod
    def fresh(cls) -> LogFolder:
        """A new name for a job that begins now; no name if the user wants none."""
        if os.environ.get(OUTPUT_VARIABLE) == "ray":
            return cls("")
        began = time.strftime("%Y%m%d-%H%M%S")
        return cls(str(Path(tempfile.gettempdir()) / f"rlinf-logs-{os.getuid()}" / f"{began}-{os.getpid()}"))

    def file_of(self, address: WorkerAddress) -> str:
        """The file of a rank, or ""."""
        name = address.group.translate(str.maketrans("/:", "+-"))
        return f"{self.path}/{name}-{address.rank}.log" if self.path else ""


def open_folder(path: Path) -> int:
    """Make a job's folder, which only its user can read; the oldest of many that nobody uses any more are deleted.

    Returns:
        A descriptor: while it is open, nobody deletes the folder.

    Raises:
        OSError, ClusterError: there can be no such folder, or the one that it lies in is somebody else's.
    """
    home = path.parent
    home.mkdir(mode=0o700, exist_ok=True)
    status = home.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise ClusterError(f"{home} is not a folder of this user's own: ranks cannot write there")
    while True:
        with suppress(FileNotFoundError):  # deleted in between
            path.mkdir(mode=0o700, exist_ok=True)
            held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(held, fcntl.LOCK_SH)
            if is_at(held, path):
                break
            os.close(held)
    for old in sorted(home.iterdir())[:-NUM_KEPT_JOBS]:
        _delete_unless_used(old)
    return held


def _delete_unless_used(folder: Path) -> None:
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)


def last_lines(path: str) -> list[str]:
    """The last lines of a rank's file; none if it is not on this machine, or empty."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LAST_BYTES))
            written = file.read()
    except OSError:
        return []
    *_, written = written.rpartition(_BEGINS)
    lines = [
        line.removeprefix(_SENT).decode(errors="replace") for line in written.splitlines() if line.strip()
    ]
    return [sendable(line) for line in lines[-_NUM_LAST:]]


def capture_output(folder: LogFolder, address: WorkerAddress) -> RankOutput | None:
    """Have what this process writes go to its rank's file; None where there is none, or none can be."""
    path = folder.file_of(address)
    if not path:
        return None
    try:
        return RankOutput(path, address)
    except (OSError, ClusterError) as error:
        # What it was started with still takes it.
        _log.warning("what %s writes is in no file of its own: %s", address, error)
        return None


class RankOutput:
    """The file of this process's rank.

    Args:
        path: the file.
        address: the rank's.

    Raises:
        OSError, ClusterError: there can be no such file.
    """

    def __init__(self, path: str, address: WorkerAddress) -> None:
        self._path = Path(path)
        self._address = address
        self._folder = open_folder(self._path.parent)
        self._reading = self._open()
        # Read so far, and sent so far: what lies between is being sent.
        self._offset = self._sent = os.fstat(self._reading).st_size
        self._rest = b""
        self._session: Session | None = None
        self._pause_s = _SOONEST_S

    def _open(self) -> int:
        """Have both streams write to the file; return a descriptor to read it."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        writing = os.open(self._path, flags, 0o600)
        for stream, descriptor in ((sys.stdout, 1), (sys.stderr, 2)):
            with suppress(AttributeError, ValueError, OSError):
                stream.flush()
            os.dup2(writing, descriptor)
            with suppress(AttributeError, ValueError):  # what it writes is to be seen at once
                stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        os.write(writing, _BEGINS)
        os.close(writing)
        return os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)

    def follow(self, session: Session) -> None:
        """From now on send what is written to the job's home."""
        self._session = session
        session.on_close(self._finish)
        session.messenger.submit(self._look)

    def note(self, text: str) -> None:
        """Write a log line that travels by itself; from any thread."""
        stamped = f"{time.strftime('%H:%M:%S')} {text}\n".encode(errors="replace")
        with suppress(OSError):
            os.write(2, b"".join(_SENT + line for line in stamped.splitlines(keepends=True)))

    def catch_up(self) -> None:
        """Send what was written so far ahead of what this thread sends next."""
        with suppress(AttributeError, ValueError, OSError):
            sys.stdout.flush()
        if self._session is not None and os.fstat(self._reading).st_size != self._sent:
            self._session.messenger.submit(self._send_now)

    # -- the I/O thread --------------------------------------------------------------------------

    def _look(self) -> None:
        session = self._session
        if session is None or session.messenger.why_closed:
            return
        self._pause_s = _SOONEST_S if self._send_new() else min(2 * self._pause_s, _LATEST_S)
        session.messenger.call_later(self._pause_s, self._look)

    def _send_now(self) -> None:
        self._send_new()

    def _send_new(self) -> bool:
        """Send what is new; whether there was anything."""
        began = self._offset
        size = os.fstat(self._reading).st_size
        if size - self._offset > MAX_BEHIND_BYTES:
            skipped, self._rest = size - self._offset - _CHUNK_BYTES, b""
            self._offset = size - _CHUNK_BYTES
            self._send([f"... {skipped / (1 << 20):.1f} MiB more, in {self._path}"])
        while chunk := os.pread(self._reading, _CHUNK_BYTES, self._offset):
            self._offset += len(chunk)
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            if len(self._rest) > _MAX_LINE_BYTES:
                lines.append(self._rest)
                self._rest = b""
            self._send_lines(lines)
        found = self._offset > began
        if self._offset > MAX_FILE_BYTES:
            self._put_aside()
        self._sent = self._offset
        return found

    def _put_aside(self) -> None:
        """Begin the file anew. It is emptied, not replaced: children of this process write to it, too."""
        aside = self._path.with_suffix(".log.1")
        with suppress(OSError), self._path.open("r+b") as full, aside.open("wb") as copy:  # else it grows on
            os.fchmod(copy.fileno(), 0o600)
            size, done = self._offset, 0
            while done < size:
                done += os.sendfile(copy.fileno(), full.fileno(), done, size - done)
            if os.fstat(full.fileno()).st_size == size:  # else somebody writes now: another time
                full.truncate(0)
                self._offset = 0

    def _send_lines(self, lines: Sequence[bytes]) -> None:
        # Of a line that was written over again and again, such as a progress bar, the last state.
        shown = [line.rstrip(b"\r").rpartition(b"\r")[2] for line in lines if not line.startswith(_SENT)]
        if shown:
            self._send([sendable(line.decode(errors="replace")[:_MAX_LINE_BYTES]) for line in shown])

    def _send(self, lines: list[str]) -> None:
        if self._session is not None:
            message = protocol.OutputLines(self._address.group, self._address.rank, lines)
            self._session.messenger.notify_first(self._session.home, protocol.OUTPUT, message)

    def _finish(self) -> None:
        """Send what is left; on the thread that closes the session, before the messenger does not take it any more."""
        sent: Promise[None] = Promise()

        def send() -> None:
            self._send_new()
            self._send_lines([self._rest] if self._rest else [])
            sent.set_result(None)

        with suppress(AttributeError, ValueError, OSError):
            sys.stdout.flush()
        if self._session is not None:
            self._session.messenger.submit(send)
            if not self._session.messenger.on_io_thread():
                sent.wait(_LATEST_S)


def tell_method(address: WorkerAddress, output: RankOutput | None) -> Callable[[str], None]:
    """What a rank's calls are told to: `ps` shows the method that runs, and what it wrote goes ahead of its answer.

    Args:
        address: the rank's.
        output: its file, if it has one.
    """
    # Ray's own: it has written over what another copy of that library would have to find.
    set_title = getattr(sys.modules.get("ray._raylet"), "setproctitle", lambda _: None)

    def tell(method: str) -> None:
        set_title(f"{address} {method}()" if method else str(address))
        if not method and output is not None:
            output.catch_up()

    tell("")
    return tell
