"""A file that takes what this process writes to a standard stream: written with patience, read on, cut into lines."""

from __future__ import annotations

import errno
import io
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from rlinf_scheduler.comm.failure import sendable
from rlinf_scheduler.comm.shm.kernel import take_front

# Of a longer line the rest is left out, and counted.
MAX_LINE_BYTES = 8 << 10
# What has already travelled as a log line begins so in the file.
SENT = b"\x1e"


class LineCutter:
    r"""The lines of one stream, whose parts are given one after the other.

    Of a line that is written over again and again, such as a progress bar, the last state is shown; while it goes on,
    a state now and then.

    Args:
        where: where all of a line is that is too long.

    >>> cutter = LineCutter("run.log")
    >>> cutter.cut(b"one\ntw"), cutter.cut(b"o\n10%\r20%\nthr"), cutter.end()
    (['one'], ['two', '20%'], ['thr'])
    >>> cutter.cut(b"x" * 10_000), [line[-40:] for line in cutter.cut(b"yz\nnext\n")]
    ([], ['xxxxxxx ... 1,810 bytes more, in run.log', 'next'])
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self.restart()

    def restart(self) -> None:
        """Forget the line that has not ended."""
        # Its first bytes, and how many followed them; and how much was written over since a state of it was shown.
        self._rest = b""
        self._num_left_out = self._num_over = 0

    def cut(self, part: bytes) -> list[str]:
        """The lines that end in the next part."""
        *ended, rest = (self._rest + part).split(b"\n")
        shown = []
        for line in ended:
            shown += self._shown(line)
        if ended:
            self._num_over = 0
        return shown + self._keep(rest)

    def end(self) -> list[str]:
        """The line that has not ended, as if it had; none if there is nothing of it."""
        shown = self._shown(self._rest) if self._rest else []
        self.restart()
        return shown

    def _keep(self, rest: bytes) -> list[str]:
        """Keep the line that has not ended; what it shows, if it was written over for long."""
        shown = []
        # A return at its very end may be a part of how it ends.
        over = rest.rstrip(b"\r").rfind(b"\r") + 1
        if over:
            self._num_left_out = 0
            self._num_over += over
            if self._num_over > MAX_LINE_BYTES:
                self._num_over = 0
                shown = self._shown(rest[: over - 1])
            rest = rest[over:]
        line = rest.rstrip(b"\r")
        self._num_left_out += max(0, len(line) - MAX_LINE_BYTES)
        self._rest = line[:MAX_LINE_BYTES] + (b"\r" if len(line) < len(rest) else b"")
        return shown

    def _shown(self, line: bytes) -> list[str]:
        num_left_out, self._num_left_out = self._num_left_out, 0
        line = line.rstrip(b"\r")
        state = line.rpartition(b"\r")[2]
        if state.startswith(SENT):
            return []
        if len(state) < len(line):  # what was left out is written over, too
            num_left_out = 0
        num_left_out += max(0, len(state) - MAX_LINE_BYTES)
        text = sendable(state[:MAX_LINE_BYTES].decode(errors="replace"))
        return [f"{text} ... {num_left_out:,} bytes more, in {self._where}" if num_left_out else text]


# -- the file ----------------------------------------------------------------------------------------


# Of a larger file the beginning goes, so that so much is left.
MAX_FILE_BYTES, KEPT_BYTES = 32 << 20, 16 << 20
# Who writes faster than the lines can be shown is shown the last of them.
MAX_BEHIND_BYTES = 1 << 20
_CHUNK_BYTES = 64 << 10
# Of what a process that died had written, an error shows so much.
_LAST_BYTES, _NUM_LAST = 4 << 10, 15
# What a process writes begins with such a line.
_BEGINS = SENT + b"---\n"


def last_lines(path: str) -> list[str]:
    """The last lines that a process wrote to a file; none if the file is not on this machine, or empty."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LAST_BYTES))
            written = file.read()
    except OSError:
        return []
    *_, written = written.rpartition(_BEGINS)
    lines = [
        line.removeprefix(SENT).decode(errors="replace") for line in written.splitlines() if line.strip()
    ]
    return [sendable(line) for line in lines[-_NUM_LAST:]]


def as_sent(text: str) -> bytes:
    """A text as it is written to such a file if it travels by itself: it is not among the new lines then."""
    return b"".join(SENT + line for line in text.encode(errors="replace").splitlines(keepends=True))


class FollowedFile:
    """One stream of this process, read on by one thread.

    Raises:
        OSError: there can be no such file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = os.open(path, flags, 0o600)
        # Read so far; and up to where the file's beginning is a hole, or could not be taken away.
        self._offset = self._size()
        self._front_bytes = 0
        self._is_shortened = False
        # How much went before it was read.
        self._num_gone = 0
        self._lines = LineCutter(str(path))
        # While its beginning is taken away nobody reads: where what follows lies may change.
        self._moving = threading.Lock()

    def take(self, descriptor: int) -> None:
        """Let the file take what this process and its children write to a descriptor from now on."""
        os.dup2(self._file, descriptor)
        with suppress(OSError):  # the disk is full
            os.write(self._file, _BEGINS)
        self._offset = self._size()

    def close(self) -> None:
        """Read no more."""
        os.close(self._file)

    def _size(self) -> int:
        return os.fstat(self._file).st_size

    @property
    def has_grown(self) -> bool:
        """Whether there is something new; from any thread."""
        return self._size() != self._offset

    def new_lines(self) -> Iterator[list[str]]:
        """What was written since the last time, in whole lines; an empty list is no line yet.

        Nothing while the beginning is taken away: then it comes the next time.
        """
        if not self._moving.acquire(blocking=False):
            return
        try:
            yield from self._read_on()
        finally:
            self._moving.release()

    def _read_on(self) -> Iterator[list[str]]:
        size = self._size()
        if size < self._offset:  # somebody has emptied it
            self._offset = self._front_bytes = 0
        behind = size - self._offset + self._num_gone
        if behind > MAX_BEHIND_BYTES:
            self._lines.restart()
            self._offset, self._num_gone = max(self._offset, size - _CHUNK_BYTES), 0
            left_out = behind - (size - self._offset)
            yield [f"... {left_out / (1 << 20):.1f} MiB more, in {self._path}"]
        while chunk := os.pread(self._file, _CHUNK_BYTES, self._offset):
            self._offset += len(chunk)
            yield self._lines.cut(chunk)

    def await_reading(self, timeout_s: float) -> None:
        """Return once the beginning is not being taken away, or after so many seconds; in a user's thread."""
        if self._moving.acquire(timeout=timeout_s):
            self._moving.release()

    def last_line(self) -> list[str]:
        """What was written last without the end of a line."""
        return self._lines.end()

    @property
    def is_full(self) -> bool:
        """Whether it is larger than it may be."""
        return self._size() - self._front_bytes > MAX_FILE_BYTES

    def begin_shortening(self) -> bool:
        """Whether it is time for `shorten`, which is called then, once: until it has ended it is not time again."""
        begins = not self._is_shortened and self.is_full
        self._is_shortened |= begins
        return begins

    def shorten(self) -> None:
        """Take away the beginning of the file, where its file system can do that; in a thread that may wait for a disk.

        It is neither replaced nor emptied: children of this process write to it, too, and so does this one meanwhile.
        Where nothing can be taken away it grows on, and that is tried again when it has grown by as much once more.
        """
        with self._moving:
            front, moved = self._size() - KEPT_BYTES, 0
            with suppress(OSError):
                moved = take_front(self._file, front)
            if moved:
                self._num_gone += max(0, moved - self._offset)
                self._offset = max(0, self._offset - moved)
                self._front_bytes = max(0, self._front_bytes - moved)
            else:
                self._front_bytes = front
            self._is_shortened = False


# -- its writer --------------------------------------------------------------------------------------


# The disk takes no more: it is full, the user's share of it is, the file is as large as it may be, or it is broken.
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ESTALE}


class PatientFile(io.FileIO):
    """The raw end of a standard stream. What the disk does not take is left out, counted, and told of afterwards.

    Args:
        descriptor: 1 or 2; it stays open.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "wb", closefd=False)
        self._num_left_out = 0
        self._is_within_line = False

    def write(self, data: Any, /) -> int:
        """Write all of it, or as much as the disk takes.

        Raises:
            OSError: for another reason than that the disk takes no more.
        """
        left = memoryview(data).cast("B")
        try:
            if self._num_left_out:
                self._tell_left_out()
            while left:
                written = os.write(self.fileno(), left)
                self._is_within_line = left[written - 1] != ord("\n")
                left = left[written:]
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            self._num_left_out += len(left)
        return memoryview(data).nbytes

    def _tell_left_out(self) -> None:
        begin = "\n" if self._is_within_line else ""
        note = f"{begin}... {self._num_left_out:,} bytes are missing here: the disk took no more\n".encode()
        if os.write(self.fileno(), note) == len(note):
            self._num_left_out = 0
            self._is_within_line = False
        else:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def with_patience(stream: TextIO | None, raw: PatientFile) -> TextIO | None:
    """What takes the place of a standard stream: the same, over a raw end that raises nothing where a disk is full.

    Lines are written as soon as they end.

    Args:
        stream: `sys.stdout` or `sys.stderr`; it is given back as it is where it does not write to that descriptor.
    """
    try:
        if stream is None or stream.fileno() != raw.fileno():
            return stream
        stream.flush()
        encoding, errors = stream.encoding, stream.errors
    except (AttributeError, ValueError, OSError):  # somebody has replaced it
        return stream
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding=encoding, errors=errors, line_buffering=True)
