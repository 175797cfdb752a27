"""A file that takes what this process writes to one of its standard streams, read on as it grows."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from rlinf_scheduler.comm.failure import sendable
from rlinf_scheduler.comm.shm.kernel import take_front
from rlinf_scheduler.host.line_cutter import SENT, LineCutter

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
