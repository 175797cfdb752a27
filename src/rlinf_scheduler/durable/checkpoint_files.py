"""Checkpoints as they lie on disk: of one channel, a file; of a job, a folder of such files, and an index.

The index names the others, and has the caller's own state. It takes the place of the one before when all of them are
on disk; so what is there is always one whole checkpoint.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar
from urllib.parse import quote

import msgspec

from rlinf_scheduler.channel.checkpoint import Checkpoint
from rlinf_scheduler.channel.spec import ChannelSpec
from rlinf_scheduler.comm.codec import decode
from rlinf_scheduler.comm.disk import DISK, Disk
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.rundir import private_file
from rlinf_scheduler.comm.shm.payload import ReceivedPayload
from rlinf_scheduler.errors import CheckpointError
from rlinf_scheduler.queueing.item import as_name
from rlinf_scheduler.queueing.policies import ChannelData
from rlinf_scheduler.queueing.producers import ProducerPlaces
from rlinf_scheduler.record_log import NEW, Record, lock, read_record, record, write_whole

# How a file begins, with the version of its format; then come records: a head, which says how many follow, and these.
MAGIC = b"\x93RLINF\r\n"
VERSION = 3
# The version of this library that wrote files of a format, for those that are read no more.
WRITTEN_BY = {1: "0.1.0 up to November 2026", 2: "0.1.0 up to 26 November 2026"}
_VERSION = struct.Struct("<I")
_SIZE = struct.Struct("<Q")
WRITTEN_NOW = "another process, or thread, writes it now"

HeadT = TypeVar("HeadT", bound=msgspec.Struct)

# What a folder's files are called: the one that counts, and the ending of those that it names.
INDEX = "checkpoint"
PART = ".channel"
MAX_NAME = 80
# Files of channels as `JobFolder` names them, also unfinished ones; what else is in a folder is not its own.
_PARTS = re.compile(
    rf"[A-Za-z0-9_.~%-]{{1,{MAX_NAME}}}-[0-9]+-[0-9a-f]{{8}}{re.escape(PART)}({re.escape(NEW)})?"
)


class ChannelHead(msgspec.Struct, array_like=True, tag="channel"):
    """The first record of a channel's file; its payloads follow, one a record.

    Attributes:
        places: for each item that `state` numbers, the place of its payload, which subscriptions see too; empty where
            each has its own.
    """

    num_payloads: int
    spec: ChannelSpec
    state: ChannelData
    producers: ProducerPlaces
    saved_at: float
    places: list[int] = []


class PartNote(msgspec.Struct, array_like=True):
    """A channel's file, in the same folder."""

    channel: str
    file: str
    num_items: int
    size_bytes: int


class JobHead(msgspec.Struct, array_like=True, tag="job"):
    """The first record of a checkpoint's main file, which names the others; the caller's own state follows."""

    parts: list[PartNote]
    saved_at: float


@dataclass(frozen=True, slots=True)
class SavedChannel:
    """The contents of a channel's file."""

    path: str
    head: ChannelHead
    items: list[ReceivedPayload]

    def check_fits(self, spec: ChannelSpec) -> None:
        """Raise CheckpointError if what was saved breaks a bound that it did not have then."""
        was, state = self.head.spec, self.head.state
        for queue in state.queues:
            # Subscriptions have bounds of their own.
            num_items = 0 if queue.terms is not None else len(queue.returned) + len(queue.items)
            if _is_closer(spec.maxsize, was.maxsize) and num_items > spec.maxsize:
                held = f"queue {as_name(queue.name)!r} holds {num_items} items"
                self._refuse(f"{held}, and maxsize is {spec.maxsize}", f"maxsize={was.maxsize}")
        seen = (queue for queue in state.queues if queue.terms is not None)
        twins = {item.payload for queue in seen for item in (*queue.returned, *queue.items)}
        size_bytes = sum(item.size_bytes for place, item in enumerate(self.items) if place not in twins)
        if _is_closer(spec.max_bytes or 0, was.max_bytes or 0) and size_bytes > (spec.max_bytes or 0):
            self._refuse(
                f"it holds {size_bytes} bytes, and max_bytes is {spec.max_bytes}",
                f"max_bytes={was.max_bytes}",
            )

    def _refuse(self, problem: str, was: str) -> None:
        raise CheckpointError(self.path, f"{problem}; channel '{self.head.spec.name}' was saved with {was}")


def write_file(path: str, head: msgspec.Struct, items: Iterable[Sequence[Buffer]], disk: Disk = DISK) -> int:
    """Write a file of a head and items; what was at its place stays there until it is complete, and on disk.

    Returns:
        Its size in bytes.

    Raises:
        CheckpointError: it cannot be written, or somebody else writes it now.
    """
    records = chain([record(msgspec.msgpack.encode(head))], (record(_sizes(item), item) for item in items))
    pieces = chain([MAGIC + _VERSION.pack(VERSION)], chain.from_iterable(records))
    try:
        return write_whole(path, pieces, disk)
    except BlockingIOError as error:
        raise CheckpointError(path, WRITTEN_NOW) from error
    except OSError as error:
        raise CheckpointError(path, f"it cannot be written: {error}") from error


def _sizes(item: Sequence[Buffer]) -> bytes:
    return b"".join(_SIZE.pack(memoryview(frame).nbytes) for frame in item)


class RecordFile:
    """A file that was written by `write_file`, to be read once from its beginning.

    Args:
        disk: of what.

    Raises:
        CheckpointError: it is not there, no such file, of another format, cut off or corrupt. All methods raise that.
    """

    def __init__(self, path: str, disk: Disk = DISK) -> None:
        self.path = path
        self._disk = disk
        self._num_read = 0
        self._place = len(MAGIC) + _VERSION.size
        with self._reading():
            self._file = disk.open_to_read(path)
            self._size = disk.fstat(self._file.fileno()).st_size
        try:
            self._check_begin()
        except BaseException:
            self.close()
            raise

    def _check_begin(self) -> None:
        path = self.path
        with self._reading():
            begin = self._disk.pread(self._file.fileno(), self._place, 0)
        if begin[: len(MAGIC)] != MAGIC[: len(begin)] or not begin:
            raise CheckpointError(path, f"it is no checkpoint: it begins with {begin[:8]!r}")
        if len(begin) < self._place:
            raise self._damaged()
        (version,) = _VERSION.unpack(begin[len(MAGIC) :])
        if version < 1:
            raise CheckpointError(path, f"it is corrupt: it has format {version}, which there never was")
        if version in WRITTEN_BY:
            problem = f"it has format {version}, which version {WRITTEN_BY[version]} of this library wrote"
            what_to_do = "restore it with that one, and let what it holds be taken there"
            raise CheckpointError(path, f"{problem}, and this one reads format {VERSION}; {what_to_do}")
        if version > VERSION:
            problem = (
                f"it has format {version}, of a newer version of this library; this one reads up to {VERSION}"
            )
            raise CheckpointError(path, problem)

    def head(self, kind: type[HeadT], what: str) -> HeadT:
        """Read the first record, which is to be of a kind, `what` in words."""
        try:
            return msgspec.msgpack.decode(self._record().head, type=kind)
        except msgspec.MsgspecError as error:
            raise CheckpointError(self.path, f"it is not {what}: {error}") from error

    def frames(self) -> list[Buffer]:
        """Read the frames of the next item."""
        found = self._record()
        if len(found.head) % _SIZE.size:
            raise self._damaged()
        sizes = [size for (size,) in _SIZE.iter_unpack(found.head)]
        if sum(sizes) != len(found.frames):
            raise self._damaged()
        with self._reading():
            return found.cut(sizes)

    def _record(self) -> Record:
        self._num_read += 1
        with self._reading():
            found = read_record(self._disk, self._file.fileno(), self._place, self._size)
        if found is None:
            raise self._damaged()
        read, self._place = found
        return read

    def end(self) -> None:
        """Make sure that nothing follows."""
        if self._size > self._place:
            num_more = self._size - self._place
            raise CheckpointError(
                self.path, f"it is corrupt: {num_more} bytes too much follow its last record"
            )

    def close(self) -> None:
        """Close it."""
        self._file.close()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CheckpointError(self.path, f"it cannot be read: {error.strerror}") from error

    def _damaged(self) -> CheckpointError:
        return CheckpointError(self.path, f"it is cut off, or corrupt, in record {self._num_read}")


def read_channel(path: str, disk: Disk = DISK) -> SavedChannel:
    """Read a channel's file.

    Raises:
        CheckpointError: it is none, or is not whole.
    """
    if os.path.isdir(path):
        raise CheckpointError(path, "it is a folder; what is restored from is Cluster.load(path)")
    with contextlib.closing(RecordFile(path, disk)) as file:
        head = file.head(ChannelHead, "a channel's")
        payloads = [ReceivedPayload(file.frames()) for _ in range(head.num_payloads)]
        file.end()
    items = [payloads[place] for place in head.places] if head.places else payloads
    return SavedChannel(path, head, items)


def load_job(path: str | os.PathLike[str], *, missing_ok: bool = False) -> Checkpoint:
    """Read a job's checkpoint; see `Cluster.load`."""
    folder = os.path.abspath(path)
    index = os.path.join(folder, INDEX)
    if missing_ok and not os.path.exists(index):
        return Checkpoint(folder)
    with contextlib.closing(RecordFile(index)) as file:
        head = file.head(JobHead, "a job's")
        frames = file.frames()
        file.end()
    channels = {part.channel: os.path.join(folder, part.file) for part in head.parts}
    for part in head.parts:
        check_part(channels[part.channel], part.size_bytes)
    return Checkpoint(folder, decode(frames[0], frames[1:]), channels, head.saved_at)


def check_part(path: str, size_bytes: int) -> None:
    """Make sure that a channel's file is there as it was written.

    Raises:
        CheckpointError: it is not.
    """
    try:
        found = os.stat(path).st_size
    except OSError as error:
        problem = f"it cannot be seen here ({error.strerror}); processes on several nodes need a folder that all share"
        raise CheckpointError(path, problem) from error
    if found != size_bytes:
        raise CheckpointError(path, f"it has {found} bytes, and was written with {size_bytes}")


class JobFolder:
    """The folder of a job's checkpoint, while it is written; nobody else writes there meanwhile.

    Args:
        path: the folder; it is made if it is not there.

    Raises:
        CheckpointError: it cannot be written, or somebody else does now.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._token = secrets.token_hex(4)
        try:
            os.makedirs(path, mode=0o700, exist_ok=True)
            self._lock = open(  # noqa: SIM115 - until `close`
                os.path.join(path, ".lock"), "a", opener=private_file
            )
        except OSError as error:
            raise CheckpointError(path, f"it cannot be written: {error}") from error
        try:
            lock(self._lock)
        except BaseException as error:
            self.close()
            if isinstance(error, BlockingIOError):
                raise CheckpointError(path, WRITTEN_NOW) from error
            raise

    def file_for(self, channel: str, number: int) -> str:
        """Return the path of a channel's new file, by its number."""
        # Long names may differ after what is left of them here.
        name = quote(channel, safe="")[:MAX_NAME]
        return os.path.join(self._path, f"{name}-{number}-{self._token}{PART}")

    def finish(self, parts: Sequence[PartNote], extra: Sequence[Buffer]) -> None:
        """All files are there: from now on they are the checkpoint, and what was it before goes."""
        for part in parts:
            check_part(os.path.join(self._path, part.file), part.size_bytes)
        write_file(os.path.join(self._path, INDEX), JobHead(list(parts), time.time()), [extra])
        named = {part.file for part in parts}
        for name in os.listdir(self._path):
            if _PARTS.fullmatch(name) and name not in named:
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(self._path, name))

    def close(self) -> None:
        """Let others write."""
        self._lock.close()


def _is_closer(bound: int, than: int) -> bool:
    return bound > 0 and (than == 0 or bound < than)
