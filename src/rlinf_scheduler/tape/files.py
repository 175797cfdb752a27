"""Files that a process appends records to until it ends, however it ends; and what is read of them afterwards.

A record is written by one call of the kernel's: once that has begun, the death of the process does not take it back.
What a death leaves is a file whose last record is torn at worst; a reader leaves that out, and says so.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.errors import RecordingError
from rlinf_scheduler.tape.framing import HEAD, append_whole, framed, frames_in

MAGIC = b"\x93RLTAPE\n"


class TapeFile:
    """A new file, to be appended to by any thread.

    Args:
        path: where it is to be; its folder is made.

    Raises:
        RecordingError: there is a file already, or there can be none.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC
        try:
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            self._file = os.open(path, flags, 0o600)
        except FileExistsError as error:
            problem = "there is a recording of that name already; record into another folder, or move it away"
            raise RecordingError(path, problem) from error
        except OSError as error:
            raise RecordingError(path, f"it cannot be written: {error.strerror}") from error
        self.size_bytes = 0
        # A thread may come here again, by a signal handler.
        self._lock = threading.RLock()
        self._is_busy = self._is_torn = self._is_closed = False
        # A child that is forked has the file too, and would write over what its parent writes.
        self._pid = os.getpid()
        self._late: list[bytes] = []
        self._write([MAGIC])

    def append(self, frames: Sequence[Buffer]) -> None:
        """Append a record; nothing happens once it is closed.

        Raises:
            OSError: it cannot be written; what was written before stays.
        """
        self.append_pieces(framed(frames))

    def append_pieces(self, pieces: list[Buffer]) -> None:
        """Append what is framed already: some records at once; raises as `append`."""
        with self._lock:
            if self._is_busy:
                self._late.append(b"".join(pieces))
                return
            self._is_busy = True
            try:
                self._write(pieces)
                while self._late:
                    self._write([self._late.pop(0)])
            finally:
                self._is_busy = False

    def close(self) -> None:
        """Close it."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                os.close(self._file)

    def _write(self, pieces: list[Buffer]) -> None:
        if self._is_closed or os.getpid() != self._pid:
            return
        if self._is_torn:  # somebody was interrupted here
            os.ftruncate(self._file, self.size_bytes)
        self._is_torn = True
        self.size_bytes = append_whole(self._file, self.size_bytes, pieces)
        self._is_torn = False


class TapePlace(NamedTuple):
    """Where a record lies in its file."""

    number: int
    begin: int
    end: int


class TapeReader:
    """A file that `TapeFile` wrote; its writer may still be alive.

    Attributes:
        cut_bytes: how much was left out at its end, once it was read to there: a record that is not whole.

    Raises:
        RecordingError: it cannot be read, or is no recording.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.cut_bytes = 0
        try:
            self._file = open(path, "rb", buffering=0)  # noqa: SIM115 - `close` closes it
        except OSError as error:
            raise RecordingError(path, f"it cannot be read: {error.strerror}") from error
        begin = self._read(0, len(MAGIC))
        if bytes(begin) != MAGIC:
            self.close()
            raise RecordingError(path, f"it is no recording: it begins with {bytes(begin)!r}")

    def __iter__(self) -> Iterator[tuple[TapePlace, list[memoryview]]]:
        """Every whole record, with its frames.

        Raises:
            RecordingError: one is damaged; the text says which.
        """
        begin, number = len(MAGIC), 0
        while head := self._read(begin, HEAD.size):
            number += 1
            size = HEAD.unpack(head)[1] if len(head) == HEAD.size else 0
            end = begin + HEAD.size + size
            if len(head) < HEAD.size or end > os.fstat(self._file.fileno()).st_size:
                self.cut_bytes = os.fstat(self._file.fileno()).st_size - begin
                return
            place = TapePlace(number, begin, end)
            yield place, self.load(place)
            begin = end

    def load(self, place: TapePlace) -> list[memoryview]:
        """The frames of a record, which can be written to.

        Raises:
            RecordingError: it is damaged.
        """
        data = memoryview(self._read(place.begin, place.end - place.begin))
        num_frames, _, checksum = HEAD.unpack(data[: HEAD.size])
        frames = frames_in(data[HEAD.size :], num_frames, checksum)
        if frames is None:
            self.close()
            problem = f"record {place.number}, at byte {place.begin}, does not match its checksum"
            raise RecordingError(self.path, f"it is damaged: {problem}")
        return frames

    def close(self) -> None:
        """Close it."""
        self._file.close()

    def _read(self, begin: int, size: int) -> bytearray:
        data = bytearray(size)
        view, done = memoryview(data), 0
        while done < size:
            count = os.preadv(self._file.fileno(), [view[done:]], begin + done)
            if not count:
                break
            done += count
        return data[:done] if done < size else data
