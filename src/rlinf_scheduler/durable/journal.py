"""The file of a durable channel: what has happened to it since it was last written whole.

    folder/journal          the magic, then records: the first says what channel this is, the second is a snapshot of it
                            (empty at first), all others are what has happened since, in order
    folder/journal.new-*    the next one, while it is being written
    folder/lock             locked by the process that holds the channel, as long as it lives

A record that a death has cut off was never answered, and is dropped. Any other damage is refused.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from rlinf_scheduler.comm.disk import DISK, Disk
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.errors import ChannelJournalError
from rlinf_scheduler.record_log import (
    Record,
    append_copy,
    append_record,
    append_whole,
    is_whole_behind,
    lock,
    read_record,
    record,
)

logger = Reporter(__name__)

MAGIC = b"RLINFCH\x03"
_NEW = "journal.new-"
_OF_OTHERS = stat.S_IWGRP | stat.S_IWOTH


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
                lock(fd, disk)
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
            end = append_whole(fd, 0, [MAGIC, *record(head)], disk)
            append_record(fd, end, snapshot, frames, disk)
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
                append_copy(self._fd, since, self.size_bytes, fd, disk)
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
        """Write one record; when this returns it is where `survives` says.

        Raises:
            OSError: it cannot be written, the disk being full, say, and nothing of it is there; or somebody has
                deleted, moved or replaced the journal.
        """
        end = append_whole(self._fd, self.size_bytes, record(head, frames), self._disk)
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
        append_copy(self._fd, since, until, new.fd, self._disk)

    def read(self) -> Iterator[Record]:
        """The records that are there, the first two included; then it can be appended to.

        Raises:
            ChannelJournalError: it is no journal, or damaged.
        """
        self._open(self._disk.open(self._path, os.O_RDWR | os.O_CLOEXEC))
        size = self._disk.fstat(self._fd).st_size
        if self._disk.pread(self._fd, len(MAGIC), 0) != MAGIC:
            raise self._error("is not the journal of a channel, or of another version of this library")
        position, number = len(MAGIC), 0
        while position < size:
            found = read_record(self._disk, self._fd, position, size)
            if found is None:
                if number < 2 or is_whole_behind(self._disk, self._fd, position, size):
                    raise self._error(f"is damaged at byte {position} of {size}; restore an older copy of it")
                logger.warning(
                    "channel '%s': the last %d bytes of its journal were cut off by the end of its process, and were "
                    "never answered; they are dropped",
                    self._channel,
                    size - position,
                )
                self._disk.ftruncate(self._fd, position)
                break
            each, position = found
            number += 1
            if number == 2:
                self.snapshot_bytes = position
            yield each
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
        """The error of a journal whose records are whole and cannot be made sense of."""
        return self._error(problem)

    def _error(self, problem: str) -> ChannelJournalError:
        return ChannelJournalError(self._channel, self._path, problem)
