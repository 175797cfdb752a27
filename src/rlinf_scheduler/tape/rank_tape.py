"""What notes the inputs of a rank in a file.

A user's thread writes what it has taken, before it uses it: the kernel has it then, whatever becomes of the process.
"""

from __future__ import annotations

import logging
import os
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, TypeVar
from zlib import crc32

from rlinf_scheduler.comm.codec import Encoded, encode
from rlinf_scheduler.comm.failure import dump_failure
from rlinf_scheduler.comm.framing import Buffer, total_bytes
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.tape.entries import (
    Began,
    CallBegan,
    CallEnded,
    Factory,
    Noted,
    RankEntry,
    Stopped,
    encode_entry,
)
from rlinf_scheduler.tape.files import TapeFile
from rlinf_scheduler.tape.limit import LIMIT_VARIABLE
from rlinf_scheduler.tape.tape import CONSTRUCTING, Frames, Note, Tape
from rlinf_scheduler.tape.work import Places, Work, current_work, working_at

T = TypeVar("T")
_log = logging.getLogger(__name__)


def digest_of(encoded: Encoded) -> tuple[int, int]:
    """The CRC-32 of an object's bytes, and how many they are."""
    checksum = 0
    for frame in encoded.frames():
        checksum = crc32(frame, checksum)
    return checksum, encoded.size_bytes


class RankTape(Tape):
    """Notes the inputs of a rank in a file of its own.

    Args:
        began: who is recorded.
        frames: more of that; see `Began`.
        max_bytes: how large the file may become.

    Raises:
        RecordingError: there is such a file already, or there can be none.
    """

    is_recording = True

    def __init__(self, path: str, began: Began, frames: Sequence[Buffer], max_bytes: int) -> None:
        self._file = TapeFile(path)
        self._max_bytes = max_bytes
        self._places = Places()
        self._next_call = count(1).__next__
        self._is_over = False
        self.write(began, frames)

    def made_from(self, worker_class: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The worker is made from this class, with these arguments."""
        of_class, arguments = encode(worker_class).frames(), encode((args, kwargs)).frames()
        name = f"{worker_class.__module__}:{worker_class.__qualname__}"
        self.write(Factory(name, len(of_class)), [*of_class, *arguments])

    def begin(self, operation: str, subject: str, given: Encoded | None = None) -> Note:
        """An operation begins, in the lane of what this thread or task works at."""
        work = current_work()
        digest = None if given is None else digest_of(given)
        place = self._places.next(work, operation, subject)
        return _Noting(self, Noted(work.lane, operation, subject, place, digest=digest))

    def run(self, operation: str, subject: str, function: Callable[[], T]) -> T:
        """What a function returns, whose result is small and can be pickled, or raises."""
        note = self.begin(operation, subject)
        try:
            result = function()
        except BaseException as error:
            note.failed(error)
            raise
        note.took(about=result)
        return result

    @contextmanager
    def call(self, method: str, kind: str, frames: Frames) -> Iterator[Work]:
        """A block that is a call."""
        lane = method if method == CONSTRUCTING else str(self._next_call())
        self.write(CallBegan(lane, method, kind, time.time()), frames())
        failed = ""
        try:
            with working_at(Work(lane)) as work:
                yield work
        except BaseException as error:
            failed = type(error).__qualname__
            raise
        finally:
            self.write(CallEnded(lane, failed))

    def write(self, entry: RankEntry, frames: Sequence[Buffer] = ()) -> None:
        """Append a record; a full disk, or a full recording, ends that and is told of once."""
        if self._is_over:
            return
        try:
            if self._file.size_bytes + total_bytes(frames) > self._max_bytes:
                limit = f"{self._max_bytes >> 20} MiB ({LIMIT_VARIABLE})"
                self._stop(f"it has the size that a recording may have, {limit}")
            else:
                self._file.append([encode_entry(entry), *frames])
        except OSError as error:
            self._stop(f"it cannot be written: {error.strerror}")

    def close(self) -> None:
        """Nothing more is to be noted."""
        self._is_over = True
        self._file.close()

    def _stop(self, reason: str) -> None:
        self._is_over = True
        _log.warning("recording '%s' ends here: %s", self._file.path, reason)
        try:
            self._file.append([encode_entry(Stopped(reason))])
        except OSError:  # what is there can be read all the same
            return


class _Noting(Note):
    """An operation of a rank that is recorded, until its end is noted, once."""

    __slots__ = ("_entry", "_tape")

    def __init__(self, tape: RankTape, entry: Noted) -> None:
        self._tape = tape
        self._entry: list[Noted] = [entry]

    def took(self, frames: Frames = list, about: Any = None) -> None:
        """It brought this: bytes, which are looked at if they are noted, and what is to be known about them."""
        # Again, by who was interrupted when it took it: it is there already.
        if self._entry:
            entry = self._entry[0]
            self._tape.write(entry, [b"" if about is None else pickle.dumps(about, protocol=5), *frames()])
            self._entry.clear()

    def failed(self, error: BaseException) -> None:
        """It raised."""
        if self._entry:
            entry = self._entry[0]
            failed = Noted(entry.lane, entry.operation, entry.subject, entry.place, True, entry.digest)
            self._tape.write(failed, [dump_failure(error)])
            self._entry.clear()

    def follow(self, promise: Promise[Any]) -> None:
        """Note what the promise of its end fails with; what it brings is noted by who takes it."""
        promise.add_done_callback(self._on_end)

    def _on_end(self, promise: Promise[Any]) -> None:
        if not promise.cancelled():
            error = promise.exception(0)
            if error is not None:
                self.failed(error)


def recording_path(folder: str, group: str, rank: int, num_restarts: int) -> str:
    """The file of a rank's recording.

    >>> recording_path("/r", "actor", 0, 0), recording_path("/r", "outer:0/inner", 1, 2)
    ('/r/actor-0.rec', '/r/outer-0+inner-1.2.rec')
    """
    name = group.translate(str.maketrans("/:", "+-"))
    return os.path.join(folder, f"{name}-{rank}{f'.{num_restarts}' if num_restarts else ''}.rec")
