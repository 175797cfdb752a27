"""A file that takes what this process writes to one of its standard streams, read on as it grows."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from rlinf.scheduler.comm.failure import sendable

# Then the file is put aside, over the one that was put aside before.
MAX_FILE_BYTES = 16 << 20
# Who writes faster than the lines can be shown is shown the last of them.
MAX_BEHIND_BYTES = 1 << 20
_CHUNK_BYTES = 64 << 10
_MAX_LINE_BYTES = 8 << 10
# Of what a process that died had written, an error shows so much.
_LAST_BYTES, _NUM_LAST = 4 << 10, 15
# What has already travelled as a log line begins so in the file.
_SENT = b"\x1e"
# What a process writes begins with such a line.
_BEGINS = _SENT + b"---\n"


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
        line.removeprefix(_SENT).decode(errors="replace") for line in written.splitlines() if line.strip()
    ]
    return [sendable(line) for line in lines[-_NUM_LAST:]]


def as_sent(text: str) -> bytes:
    """A text as it is written to such a file if it travels by itself: it is not among the new lines then."""
    return b"".join(_SENT + line for line in text.encode(errors="replace").splitlines(keepends=True))


class FollowedFile:
    """One stream of this process.

    Args:
        path: the file.
        descriptor: what becomes the file, 1 or 2.

    Raises:
        OSError: there can be no such file.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        writing = os.open(path, flags, 0o600)
        os.dup2(writing, descriptor)
        os.write(writing, _BEGINS)
        os.close(writing)
        self._reading = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        # Read so far, and taken so far: what lies between is being taken.
        self._offset = self._taken = self._size()
        self._rest = b""

    def _size(self) -> int:
        return os.fstat(self._reading).st_size

    @property
    def has_grown(self) -> bool:
        """Whether there is something new; from any thread."""
        return self._size() != self._taken

    def new_lines(self) -> Iterator[list[str]]:
        """What was written since the last time, in whole lines; an empty list is no line yet."""
        size = self._size()
        if size < self._offset:  # somebody has emptied it
            self._offset = 0
        behind = size - self._offset
        if behind > MAX_BEHIND_BYTES:
            self._rest = b""
            self._offset += behind - _CHUNK_BYTES
            yield [f"... {(behind - _CHUNK_BYTES) / (1 << 20):.1f} MiB more, in {self._path}"]
        while chunk := os.pread(self._reading, _CHUNK_BYTES, self._offset):
            self._offset += len(chunk)
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            if len(self._rest) > _MAX_LINE_BYTES:
                lines.append(self._rest)
                self._rest = b""
            yield _shown(lines)
        if self._offset > MAX_FILE_BYTES:
            self._put_aside()
        self._taken = self._offset

    def last_line(self) -> list[str]:
        """What was written last without the end of a line."""
        rest, self._rest = self._rest, b""
        return _shown([rest]) if rest else []

    def _put_aside(self) -> None:
        """Begin the file anew. It is emptied, not replaced: children of this process write to it, too."""
        aside = self._path.with_suffix(f"{self._path.suffix}.1")
        with suppress(OSError), self._path.open("r+b") as full, aside.open("wb") as copy:  # else it grows on
            os.fchmod(copy.fileno(), 0o600)
            size, done = self._offset, 0
            while part := os.sendfile(copy.fileno(), full.fileno(), done, size - done):
                done += part
            if os.fstat(full.fileno()).st_size == size:  # else somebody writes now: another time
                full.truncate(0)
                self._offset = 0


def _shown(lines: Sequence[bytes]) -> list[str]:
    # Of a line that was written over again and again, such as a progress bar, the last state.
    shown = [line.rstrip(b"\r").rpartition(b"\r")[2] for line in lines if not line.startswith(_SENT)]
    return [sendable(line.decode(errors="replace")[:_MAX_LINE_BYTES]) for line in shown]
