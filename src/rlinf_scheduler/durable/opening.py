"""How a process comes to hold a durable channel."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from rlinf_scheduler.channel.opening import ChannelOpening
from rlinf_scheduler.channel.refusals import why_unregistered
from rlinf_scheduler.channel.server import ChannelServer
from rlinf_scheduler.channel.spec import KIND, ChannelRef, ChannelSpec
from rlinf_scheduler.comm.directory import RETURNS, Entry
from rlinf_scheduler.comm.framing import Buffer, total_bytes
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.shm.kernel import trim_heap
from rlinf_scheduler.durable.checkpoints import read_to_restore
from rlinf_scheduler.durable.durable_channel import DurableChannel
from rlinf_scheduler.durable.journal import Journal, NewJournal
from rlinf_scheduler.durable.journal_records import (
    FoundCommit,
    FoundJournal,
    header_of,
    read_journal,
)
from rlinf_scheduler.errors import ChannelJournalError, ChannelLost, NameTaken

# The directory hears of the end of a process a little later than its lock is free.
TAKE_OVER_S = 30.0
# The lock of a process that is being killed is free after a moment.
LOCK_S = 2.0
AGAIN_S = 0.05
# So much of a journal is read before it happens again, with so much for what each turn takes besides its frames.
READ_BYTES = 16 << 20
_COMMIT_BYTES = 1 << 10


class DurableOpening:
    """A durable channel on its way: its journal is read, what that says happens again, its name is taken."""

    def __init__(self, begun: ChannelOpening) -> None:
        self._begun = begun
        self._session = begun.session
        self._opened = begun.opened
        self._began = begun.session.messenger.now()

    def read(self) -> None:
        """Read the journal, in a thread of its own: it may be large."""
        messenger, spec = self._session.messenger, self._begun.spec
        disk = messenger.disk
        try:
            journal = Journal(spec.durable, spec.name, spec.survives, disk)
        except ChannelJournalError as error:
            is_locked = isinstance(error.__cause__, BlockingIOError)
            if not is_locked or messenger.now() - self._began >= LOCK_S:
                raise
            messenger.call_later(AGAIN_S, partial(messenger.run_beside, self._read_again))
            return
        try:
            found = read_journal(journal, spec)
            restore = read_to_restore(spec, disk) if spec.restore else None
        except BaseException:
            journal.close()
            raise
        messenger.submit(partial(self._begin, journal, found, restore))

    def _read_again(self) -> None:
        try:
            self.read()
        except Exception as error:  # noqa: BLE001 - it belongs to the waiter for the channel
            self._opened.set_exception(error)

    def _begin(
        self, journal: Journal, found: FoundJournal, restore: Callable[[ChannelServer], None] | None
    ) -> None:
        channel = DurableChannel(self._session, found.spec, journal, self._begun.claims)
        self._try(channel, lambda: channel.begin(found, restore))
        found.snapshot = None  # what is over by now is to go
        if found.is_there:
            self._read_more(channel, found)
        elif not self._opened.done():
            snapshot = (lambda: (b"", [])) if restore is None else channel.snapshot()
            self._session.messenger.run_beside(self._write, channel, journal, snapshot)

    def _write(
        self,
        channel: DurableChannel,
        journal: Journal,
        snapshot: Callable[[], tuple[bytes, Iterable[Buffer]]],
    ) -> None:
        """Write what a channel begins with, in a thread of its own."""

        def write() -> None:
            new = journal.begin(header_of(channel.spec), *snapshot())
            journal.sync(new)
            self._session.messenger.submit(partial(self._finish, channel, journal, new))

        self._try(channel, write)

    def _finish(self, channel: DurableChannel, journal: Journal, new: NewJournal) -> None:
        # On the I/O thread, which lets another process have it.
        self._try(channel, lambda: journal.finish(new, 0))
        self._recover(channel, FoundJournal(channel.spec), deque())

    def _read_more(self, channel: DurableChannel, found: FoundJournal) -> None:
        if not self._opened.done():
            self._session.messenger.run_beside(self._read_commits, channel, found)

    def _read_commits(self, channel: DurableChannel, found: FoundJournal) -> None:
        """Read what happens next, as much as may be in memory before it happens; in a thread of its own."""

        def read() -> None:
            commits, size_bytes = deque[FoundCommit](), 0
            for each in found.commits:
                commits.append(each)
                size_bytes += _COMMIT_BYTES + total_bytes(each.frames)
                if size_bytes >= READ_BYTES:
                    break
            self._session.messenger.submit(partial(self._recover, channel, found, commits))

        self._try(channel, read)

    def _recover(self, channel: DurableChannel, found: FoundJournal, commits: deque[FoundCommit]) -> None:
        """Go on for a while, and let others have the I/O thread in between."""
        if self._opened.done():
            return
        more = bool(commits)
        self._try(channel, lambda: channel.recover(commits))
        if channel.is_going:
            # Its journal goes with it; nothing that has happened after that matters.
            lost = ChannelLost(channel.spec.name, "its process died while it was deleted; it is deleted now")
            channel.on_stopped = partial(self._opened.set_exception, lost)
        elif commits:
            self._session.messenger.submit(partial(self._recover, channel, found, commits))
        elif more:
            self._read_more(channel, found)
        elif not self._opened.done():
            # Much of what was read is over by now.
            self._session.messenger.run_beside(trim_heap)
            self._go_live(channel)

    def _go_live(self, channel: DurableChannel) -> None:
        self._try(channel, channel.go_live)
        if not self._opened.done():
            # Its journal may fail before the directory has answered.
            channel.on_stopped = lambda: self._opened.set_exception(
                ChannelLost(channel.spec.name, channel.why_over)
            )
            self._register(channel)

    def _try(self, channel: DurableChannel, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - it belongs to the waiter for the channel
            channel.stop()
            self._opened.set_exception(error)

    def _register(self, channel: DurableChannel) -> None:
        info = {**self._begun.about, **channel.spec.to_info(), "epoch": channel.epoch, RETURNS: True}
        entry = Entry(channel.spec.address, self._session.messenger.endpoint, info)
        registered = self._session.directory.register_async(entry, self._begun.claims)
        registered.add_done_callback(partial(self._on_registered, channel))

    def _on_registered(self, channel: DurableChannel, registered: Promise[Any]) -> None:
        error = registered.exception(0)
        if self._opened.done():
            return
        if error is None:
            channel.on_stopped = self._begun.on_stopped
            self._opened.set_result(channel)
        elif isinstance(error, NameTaken) and self._session.messenger.now() - self._began < TAKE_OVER_S:
            found = self._session.directory.lookup_async(channel.spec.address, 0)
            found.add_done_callback(partial(self._on_taken, channel, error))
        else:
            self._fail(channel, error)

    def _on_taken(self, channel: DurableChannel, taken: NameTaken, found: Promise[Entry]) -> None:
        """Try again if the name is free by now, or of this channel's last process, which is dead."""
        if found.exception(0) is None and not _is_of(found.result(0), channel.spec):
            self._fail(channel, taken)
        else:
            self._session.messenger.call_later(AGAIN_S, partial(self._register, channel))

    def _fail(self, channel: DurableChannel, error: BaseException) -> None:
        channel.stop()
        self._opened.set_exception(why_unregistered(channel.spec.name, error))


def _is_of(entry: Entry, spec: ChannelSpec) -> bool:
    """Whether an entry is of a process that holds, or has held, a channel."""
    return KIND in entry.info and ChannelRef.from_entry(spec.name, entry).spec.channel_id == spec.channel_id
