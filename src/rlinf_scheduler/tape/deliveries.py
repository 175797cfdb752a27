"""What a channel delivered, on disk: written by a thread beside the one that delivers, which never waits for it."""

from __future__ import annotations

import logging
import os
import queue
import time
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import msgspec

from rlinf_scheduler.comm.framing import Buffer, total_bytes
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.threads import run_beside
from rlinf_scheduler.errors import RecordingError
from rlinf_scheduler.queueing.item import ItemId, Trace
from rlinf_scheduler.tape.files import TapeFile
from rlinf_scheduler.tape.framing import framed

_log = logging.getLogger(__name__)
# What is to be written, its items' bytes, and about how much memory that takes.
_Line: TypeAlias = tuple[Any, Sequence[Buffer], int]

# What is delivered faster than it can be written is kept in memory up to here; beyond, it is left out and counted.
BACKLOG_BYTES = 64 << 20
# How long the thread that writes waits for more: what the death of the process may lose of a recording.
GATHER_S = 0.02
# The older half of a recording.
OLDER = ".1"


class RecordedItem(msgspec.Struct, array_like=True, frozen=True):
    """An item of a delivery.

    Attributes:
        id: which one; None of one whose producer is not known.
        trace: what it was made of, if that is known.
        version: of the policy that made it; None if nobody said.
        weight: its weight.
        size_bytes: its size.
        num_frames: how many of the record's frames are its bytes; 0 where these were not recorded.
    """

    id: ItemId | None
    trace: Trace | None
    version: int | None
    weight: float | int
    size_bytes: int
    num_frames: int


class RecordedDelivery(msgspec.Struct, tag="delivery", frozen=True):
    """Items went to a consumer; the frames are their bytes, as far as these are recorded.

    Attributes:
        at: when, in seconds since 1970.
        queue: of which queue.
        consumer: the name of the process that asked.
        step: at which step it works, or the shard's; None where nobody said.
        items: they.
    """

    at: float
    queue: str
    consumer: str
    step: int | None
    items: list[RecordedItem]


class RecordedChannel(msgspec.Struct, tag="channel", frozen=True):
    """A file begins.

    Attributes:
        at: when, in seconds since 1970.
        num_dropped: how many records of it are gone, in older files.
    """

    channel: str
    at: float
    num_dropped: int = 0


class LeftOut(msgspec.Struct, tag="left_out", frozen=True):
    """So many deliveries are not recorded here: they came faster than the disk takes them."""

    count: int


_encode = msgspec.msgpack.Encoder().encode
decode_delivery = msgspec.msgpack.Decoder(RecordedChannel | RecordedDelivery | LeftOut).decode


class DeliveryLog:
    """Writes the deliveries of a channel into a file, and moves that away when it has half of the size that is allowed.

    Args:
        began: what it begins with.
        max_bytes: how large it may be, with the older half beside it.

    Attributes:
        opened: done when the file is there; else it has what that failed at: a RecordingError where there is such a
            file already, or there can be none.
        ended: done when all of it is written, after `close`.
    """

    def __init__(self, path: str, began: RecordedChannel, max_bytes: int) -> None:
        self.path = path
        self._began = began
        self._max_bytes = max_bytes
        self._file: TapeFile
        self._lines: queue.SimpleQueue[_Line | None] = queue.SimpleQueue()
        # Each is counted by one thread.
        self._added_bytes = self._written_bytes = 0
        self._num_left_out = 0
        self._is_given_up = False
        self._num_records = self._num_older = 0
        self.opened: Promise[None] = Promise()
        self.ended: Promise[None] = Promise()
        run_beside(self._run)

    def add(self, delivery: tuple[Any, ...], frames: Sequence[Buffer], size_bytes: int) -> None:
        """Have a delivery written, soon; this does not wait.

        Args:
            delivery: what a `RecordedDelivery` is made of, its items in tuples.
            frames: the bytes of its items, which nobody changes any more.
            size_bytes: about how much memory that takes.
        """
        if self._added_bytes - self._written_bytes > BACKLOG_BYTES:
            self._num_left_out += 1
            return
        if self._num_left_out:
            self._lines.put((LeftOut(self._num_left_out), (), 0))
            self._num_left_out = 0
        self._added_bytes += size_bytes
        self._lines.put((delivery, frames, size_bytes))

    @property
    def is_behind(self) -> bool:
        """Whether something was added that is not written, and still will be."""
        is_over = self._is_given_up or self.ended.done()
        return self._added_bytes > self._written_bytes and not is_over

    def close(self) -> None:
        """Nothing more is to be recorded; what was added is still written."""
        if self._num_left_out:
            self._lines.put((LeftOut(self._num_left_out), (), 0))
        self._lines.put(None)

    # -- the thread that writes ------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._open()
        except (OSError, RecordingError) as error:
            self.opened.set_exception(error)
            self.ended.set_result(None)
            return
        self.opened.set_result(None)
        try:
            is_open = True
            while is_open:
                lines = [self._lines.get()]
                # Later ones are written with it: to wake this thread costs the one that delivers more than a write.
                time.sleep(GATHER_S)
                lines += [self._lines.get() for _ in range(self._lines.qsize())]
                is_open = lines[-1] is not None
                self._write_lines([line for line in lines if line is not None])
        except (OSError, RecordingError) as error:
            _log.warning("recording '%s' ends here: %s", self.path, error)
            self._is_given_up = True
            while self._lines.get() is not None:
                continue  # nobody is to wait, and nothing to be kept
        finally:
            self._file.close()
            self.ended.set_result(None)

    def _open(self) -> None:
        if os.path.exists(self.path + OLDER):
            raise RecordingError(self.path + OLDER, "there is a recording of that name already; move it away")
        self._file = TapeFile(self.path)
        try:
            self._write(framed([_encode(self._began)]), 1)
        except BaseException:
            self._file.close()
            raise

    def _write_lines(self, lines: list[_Line]) -> None:
        pieces: list[Buffer] = []
        num, gathered_bytes = 0, 0
        for entry, frames, _ in lines:
            head = _encode(_delivery(*entry) if isinstance(entry, tuple) else entry)
            record = framed([head, *frames])
            size_bytes = total_bytes(record)
            if num and self._file.size_bytes + gathered_bytes + size_bytes > self._max_bytes // 2:
                self._write(pieces, num)
                pieces, num, gathered_bytes = [], 0, 0
            pieces += record
            num += 1
            gathered_bytes += size_bytes
        self._write(pieces, num)
        self._written_bytes += sum(size_bytes for *_, size_bytes in lines)

    def _write(self, pieces: list[Buffer], num: int) -> None:
        size_bytes = total_bytes(pieces)
        if self._num_records > 1 and self._file.size_bytes + size_bytes > self._max_bytes // 2:
            self._turn_over()
        self._file.append_pieces(pieces)
        self._num_records += num

    def _turn_over(self) -> None:
        """Begin a new file; the one before takes the place of the one before that."""
        self._file.close()
        os.replace(self.path, self.path + OLDER)
        dropped = self._began.num_dropped + self._num_older
        self._began = RecordedChannel(self._began.channel, self._began.at, dropped)
        self._num_older, self._num_records = self._num_records - 1, 0
        self._file = TapeFile(self.path)
        self._write(framed([_encode(self._began)]), 1)


def _delivery(
    at: float, name: str, consumer: str, step: int | None, items: Iterable[tuple[Any, ...]]
) -> RecordedDelivery:
    return RecordedDelivery(at, name, consumer, step, [RecordedItem(*item) for item in items])
