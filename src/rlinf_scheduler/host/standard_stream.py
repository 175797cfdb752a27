"""Standard output and error of a process whose disk may become full: that is no error of the code that prints."""

from __future__ import annotations

import errno
import io
import os
from typing import Any, TextIO

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
        raw: of the descriptor.
    """
    try:
        if stream is None or stream.fileno() != raw.fileno():
            return stream
        stream.flush()
        encoding, errors = stream.encoding, stream.errors
    except (AttributeError, ValueError, OSError):  # somebody has replaced it
        return stream
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding=encoding, errors=errors, line_buffering=True)
