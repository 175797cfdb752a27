"""The file of a durable channel: what has happened to it since it was last written whole.

    folder/journal          the magic, then blocks: the first says what channel this is, the second is a snapshot of it
                            (empty at first), all others are what has happened since, in order
    folder/journal.new-*    the next one, while it is being written
    folder/lock             locked by the process that holds the channel, as long as it lives

    block = u64 length of the body, u32 CRC of the length, u32 CRC of the body; then the body:
            u32 length of the head, the head, the frames one after the other

All numbers are little-endian. A block that is not whole, with nothing whole behind it, is what a death has cut off: it
was never answered, and is dropped. Any other damage is refused.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import NamedTuple

import numpy as np

from rlinf_scheduler.comm.disk import DISK, Disk
from rlinf_scheduler.comm.framing import JOIN_BYTES, Buffer, flat
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.errors import ChannelJournalError
from rlinf_scheduler.record_log.framing import append_all, append_whole

logger = Reporter(__name__)

MAGIC = b"RLINFCH\x03"
_HEADER = struct.Struct("<QII")
_LENGTH = struct.Struct("<I")
_CHUNK = 1 << 20
_NEW = "journal.new-"
_OF_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class FramesOnDisk:
    """The frames of a large block, one after the other: so much of them is read as is asked for, when it is.

    A snapshot is as large as all that a channel holds, which is to be in memory once.
    """

    def __init__(self, disk: Disk, fd: int, begin: int, end: int) -> None:
        self._disk, self._fd, self._begin, self._end = disk, fd, begin, end

    def __len__(self) -> int:
        return self._end - self._begin

    def __getitem__(self, part: slice) -> memoryview:
        begin, end, _ = part.indices(len(self))
        return memoryview(self._disk.read(self._fd, self._begin + begin, end - begin))


class JournalBlock(NamedTuple):
    """One block: what it says, and bytes that are not looked into, one after the other."""

    head: bytes
    frames: memoryview | FramesOnDisk


class NewJournal(NamedTuple):
    """A journal that is being written, with a name of its own: the channel's next process may write one meanwhile."""

    fd: int
    path: str
    disk: Disk

    def drop(self) -> None:
        """It takes nobody's place."""
        self.disk.close(self.fd)
        self.disk.remove(self.path)


class Journal:
    """The journal of one channel, open in the process that holds it.

    Args:
        folder: where it lies; made if it is not there.
        channel: the channel's name, for messages.
        survives: "machine": what was appended is on the disk; "process": in the memory of the operating system.
        disk: where the folder is.

    Attributes:
        size_bytes: how long it is.
        snapshot_bytes: of these, how many were there when it was last written whole.

    Raises:
        ChannelJournalError: another process holds it, or the folder cannot be used, or is not this user's alone to
            write to.
    """

    def __init__(self, folder: str, channel: str, survives: str = "machine", disk: Disk = DISK) -> None:
        self._disk = disk
        self._folder = folder
        self._channel = channel
        self._to_disk = survives == "machine"
        self._path = os.path.join(folder, "journal")
        self._fd = -1
        # Of the file: its device's number and its own.
        self._ident = (0, 0)
        # The folder may not say on the disk yet that this file is the journal.
        self._is_unnamed = False
        self.size_bytes = self.snapshot_bytes = 0
        self._lock = self._take_lock()
        try:
            disk.ftruncate(self._lock, 0)
            disk.pwritev(self._lock, [f"pid {os.getpid()}".encode()], 0)
            self._remove_new()
        except OSError as error:
            self.close()
            raise self._error(f"cannot be used: {error}") from error

    def _take_lock(self) -> int:
        disk, path = self._disk, os.path.join(self._folder, "lock")
        while True:
            try:
                disk.makedirs(self._folder, 0o700, exist_ok=True)
                status = disk.stat(self._folder)
                # Whoever may write there says what is read, and it is more than items.
                if status.st_uid != os.getuid():
                    raise self._error(f"lies in a folder of another user, whose id is {status.st_uid}")
                if status.st_mode & _OF_OTHERS:
                    mode = stat.S_IMODE(status.st_mode)
                    raise self._error(
                        f"lies in a folder that others may write to (mode {mode:04o}); name one for this channel alone,"
                        " which is made with mode 0700 if it is not there"
                    )
                fd = disk.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise self._error(f"cannot be used: {error}") from error
            try:
                disk.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                holder = disk.pread(fd, 100, 0).decode(errors="replace")
                disk.close(fd)
                raise self._error(f"is held by a process that lives: {holder or 'unknown'}") from error
            # Whoever had it may have removed it, with the channel.
            with suppress(FileNotFoundError):
                if disk.stat(path).st_ino == disk.fstat(fd).st_ino:
                    return fd
            disk.close(fd)

    @property
    def exists(self) -> bool:
        """Whether there is one, of a channel before."""
        return self._disk.exists(self._path)

    def begin(self, head: bytes, snapshot: bytes = b"", frames: Iterable[Buffer] = ()) -> NewJournal:
        """Begin to write it anew beside the present one; `finish` puts it in its place. From any thread.

        Raises:
            OSError: it cannot be written.
        """
        disk, path = self._disk, os.path.join(self._folder, f"{_NEW}{os.urandom(8).hex()}")
        fd = disk.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        new = NewJournal(fd, path, disk)
        try:
            end = append_whole(fd, 0, [MAGIC, *_block(head, ())], disk)
            _append_as_it_comes(disk, fd, end, snapshot, frames)
        except BaseException:
            new.drop()
            raise
        return new

    def sync(self, new: NewJournal) -> None:
        """Have what was begun on the disk; from any thread."""
        self._disk.fsync(new.fd)

    def finish(self, new: NewJournal, since: int) -> None:
        """Put what was begun into the place of the present one, with what has happened since that had this size.

        Raises:
            ChannelJournalError: it is closed: another process may hold it.
            OSError: it cannot be; then the present one goes on, and what was begun is gone.
        """
        disk, fd = self._disk, new.fd
        if self._lock < 0:
            new.drop()
            raise self._error("is held by this process no more")
        try:
            if self._fd >= 0:
                self._check_place()
                _copy(disk, self._fd, since, self.size_bytes, fd)
            snapshot_bytes = self._disk.fstat(fd).st_size - (self.size_bytes - since)
            self._disk.fsync(fd)
            disk.replace(new.path, self._path)
        except OSError:
            new.drop()
            raise
        if self._fd >= 0:
            disk.close_beside(self._fd)
        self._open(fd)
        self._is_unnamed = True
        self.size_bytes, self.snapshot_bytes = self._disk.fstat(fd).st_size, snapshot_bytes

    def _open(self, fd: int) -> None:
        status = self._disk.fstat(fd)
        self._fd, self._ident = fd, (status.st_dev, status.st_ino)

    def append(self, head: bytes, frames: Sequence[Buffer]) -> None:
        """Write one block; when this returns it is where `survives` says.

        Raises:
            OSError: it cannot be written, the disk being full, say, and nothing of it is there; or somebody has
                deleted, moved or replaced the journal.
        """
        end = append_whole(self._fd, self.size_bytes, _block(head, frames), self._disk)
        try:
            if self._to_disk:
                self._disk.fdatasync(self._fd)
            self._check_place()
            if self._is_unnamed:
                self._disk.sync_folder(self._folder)
                self._is_unnamed = False
        except OSError:
            with suppress(OSError):
                self._disk.ftruncate(self._fd, self.size_bytes)
            raise
        self.size_bytes = end

    def _check_place(self) -> None:
        """Raise if its files are not where another process would look for them: one may hold the channel, too.

        Raises:
            OSError: somebody has deleted, moved or replaced the journal, its lock or the folder.
        """
        try:
            found = self._disk.stat(self._path)
        except FileNotFoundError:
            found = None
        if (
            found is None
            or (found.st_dev, found.st_ino) != self._ident
            or not self._disk.fstat(self._lock).st_nlink
        ):
            problem = "its journal, or the lock beside it, was deleted, moved or replaced"
            raise FileNotFoundError(errno.ENOENT, problem, self._path)

    def copy_since(self, new: NewJournal, since: int, until: int) -> None:
        """Copy what has happened meanwhile to what was begun; from any thread."""
        _copy(self._disk, self._fd, since, until, new.fd)

    def read(self) -> Iterator[JournalBlock]:
        """The blocks that are there, the first two included; then it can be appended to.

        Raises:
            ChannelJournalError: it is no journal, or damaged.
        """
        self._open(self._disk.open(self._path, os.O_RDWR | os.O_CLOEXEC))
        size = self._disk.fstat(self._fd).st_size
        if self._disk.pread(self._fd, len(MAGIC), 0) != MAGIC:
            raise self._error("is not the journal of a channel, or of another version of this library")
        position, number = len(MAGIC), 0
        while position < size:
            found = _read_block(self._disk, self._fd, position, size)
            if found is None:
                if number < 2 or self._is_whole_behind(position, size):
                    raise self._error(f"is damaged at byte {position} of {size}; restore an older copy of it")
                logger.warning(
                    "channel '%s': the last %d bytes of its journal were cut off by the end of its process, and were "
                    "never answered; they are dropped",
                    self._channel,
                    size - position,
                )
                self._disk.ftruncate(self._fd, position)
                break
            block, position = found
            number += 1
            if number == 2:
                self.snapshot_bytes = position
            yield block
        if number < 2:
            raise self._error("is empty")
        self.size_bytes = position

    def remove(self) -> None:
        """Delete it: the channel is no more. Nothing happens once another process may have it."""
        if self._lock < 0:
            return
        with suppress(OSError):  # it is not its own any more, or somebody else's files lie there too
            if self._fd >= 0:
                self._check_place()
            self._remove_new()
            self._disk.remove(self._path)
            self._disk.remove(os.path.join(self._folder, "lock"))
            self._disk.rmdir(self._folder)
        self.close()

    def _remove_new(self) -> None:
        """Remove what was begun, and not finished, by whoever had it before."""
        for name in self._disk.listdir(self._folder):
            if name.startswith(_NEW):
                self._disk.remove(os.path.join(self._folder, name))

    def close(self) -> None:
        """Let another process have it."""
        for fd in (self._fd, self._lock):
            if fd >= 0:
                self._disk.close(fd)
        self._fd = self._lock = -1

    def damaged(self, problem: str) -> ChannelJournalError:
        """The error of a journal whose blocks are whole and cannot be made sense of."""
        return self._error(problem)

    def _is_whole_behind(self, position: int, size: int) -> bool:
        """Whether a whole block follows after one that is damaged."""
        length, check, _ = _HEADER.unpack(
            self._disk.pread(self._fd, _HEADER.size, position).ljust(_HEADER.size)
        )
        if zlib.crc32(length.to_bytes(8, "little")) == check:
            behind = position + _HEADER.size + length
            return behind < size and _read_block(self._disk, self._fd, behind, size) is not None
        # Its length is not known: a whole block may begin anywhere.
        return any(
            _read_block(self._disk, self._fd, start, size) is not None
            for start in _likely_blocks(self._disk, self._fd, position + 1, size)
        )

    def _error(self, problem: str) -> ChannelJournalError:
        return ChannelJournalError(self._channel, self._path, problem)


def _block(head: bytes, frames: Sequence[Buffer]) -> list[Buffer]:
    body: list[Buffer] = [_LENGTH.pack(len(head)), head, *(flat(frame) for frame in frames)]
    if sum(map(len, body)) <= JOIN_BYTES:
        body = [b"".join(body)]
    check = 0
    for piece in body:
        check = zlib.crc32(piece, check)
    length = sum(map(len, body))
    return [_HEADER.pack(length, zlib.crc32(length.to_bytes(8, "little")), check), *body]


def _append_as_it_comes(disk: Disk, fd: int, end: int, head: bytes, frames: Iterable[Buffer]) -> None:
    """Append a block whose frames need not be in memory together; its header, which counts them, is written last."""
    place, checksum = end + _HEADER.size, 0

    def checked() -> Iterator[Buffer]:
        nonlocal checksum
        for piece in chain([_LENGTH.pack(len(head)), head], map(flat, frames)):
            checksum = zlib.crc32(piece, checksum)
            yield piece

    length = append_all(fd, place, checked(), disk) - place
    header = _HEADER.pack(length, zlib.crc32(length.to_bytes(8, "little")), checksum)
    append_whole(fd, end, [header], disk)


def _read_block(disk: Disk, fd: int, position: int, size: int) -> tuple[JournalBlock, int] | None:
    header = disk.pread(fd, _HEADER.size, position)
    if len(header) < _HEADER.size:
        return None
    length, check, body_check = _HEADER.unpack(header)
    start, end = position + _HEADER.size, position + _HEADER.size + length
    if zlib.crc32(header[:8]) != check or length < _LENGTH.size or end > size:
        return None
    if length > _CHUNK:
        return _read_large(disk, fd, start, end, body_check)
    body = memoryview(disk.read(fd, start, length))
    if zlib.crc32(body) != body_check:
        return None
    frames_at = _frames_at(body)
    return JournalBlock(bytes(body[_LENGTH.size : frames_at]), body[frames_at:]), end


def _read_large(
    disk: Disk, fd: int, start: int, end: int, body_check: int
) -> tuple[JournalBlock, int] | None:
    check = 0
    for place in range(start, end, _CHUNK):
        check = zlib.crc32(disk.read(fd, place, min(_CHUNK, end - place)), check)
    if check != body_check:
        return None
    frames_at = _frames_at(disk.read(fd, start, _LENGTH.size))
    head = disk.read(fd, start + _LENGTH.size, frames_at - _LENGTH.size)
    return JournalBlock(bytes(head), FramesOnDisk(disk, fd, start + frames_at, end)), end


def _frames_at(body: Buffer) -> int:
    """Return where in the body of a block its frames begin."""
    (head_length,) = _LENGTH.unpack(body[: _LENGTH.size])
    return _LENGTH.size + int(head_length)


def _likely_blocks(disk: Disk, fd: int, position: int, size: int) -> Iterator[int]:
    """Where from a position on something stands that is the length of a block, going by its check."""
    while position < size - _HEADER.size:
        rest = disk.pread(fd, min(size - position, _CHUNK + _HEADER.size), position)
        for shift in range(8):
            lengths = np.frombuffer(rest, "<u8", offset=shift, count=(len(rest) - shift) // 8)
            for index in np.flatnonzero((lengths >= _LENGTH.size) & (lengths <= size - position)):
                start = shift + 8 * int(index)
                check = int.from_bytes(rest[start + 8 : start + 12], "little")
                if zlib.crc32(rest[start : start + 8]) == check:
                    yield position + start
        position += _CHUNK


def _copy(disk: Disk, source: int, start: int, end: int, target: int) -> None:
    size = disk.fstat(target).st_size
    while start < end:
        piece = disk.pread(source, min(_CHUNK, end - start), start)
        if not piece:
            raise OSError(errno.EIO, f"it ends at byte {start} and not at {end}")
        start += len(piece)
        size = append_whole(target, size, [piece], disk)
