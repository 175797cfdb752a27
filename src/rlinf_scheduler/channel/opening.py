"""How a process comes to hold a channel."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from rlinf_scheduler.channel.checkpoint import SavedChannel, read_channel
from rlinf_scheduler.channel.durable import DurableChannel
from rlinf_scheduler.channel.features import FEATURES
from rlinf_scheduler.channel.features.checkpoints import restore
from rlinf_scheduler.channel.features.explain import ExplainFeature, watch_channel
from rlinf_scheduler.channel.found_journal import (
    FoundCommit,
    FoundJournal,
    header_of,
    open_journal,
    read_journal,
)
from rlinf_scheduler.channel.journal import Journal, NewJournal
from rlinf_scheduler.channel.refusals import why_unregistered
from rlinf_scheduler.channel.server import ChannelServer
from rlinf_scheduler.channel.spec import KIND, ChannelRef, ChannelSpec
from rlinf_scheduler.comm.directory import RETURNS, Entry
from rlinf_scheduler.comm.framing import Buffer, total_bytes
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.shm.kernel import trim_heap
from rlinf_scheduler.errors import ChannelLost, NameTaken
from rlinf_scheduler.session import Session

# The directory hears of the end of a process a little later than its lock is free.
TAKE_OVER_S = 30.0
AGAIN_S = 0.05
# So much of a journal is read before it happens again, with so much for what each turn takes besides its frames.
READ_BYTES = 16 << 20
_COMMIT_BYTES = 1 << 10

HeldChannel = ChannelServer | DurableChannel


def open_channel(
    session: Session,
    spec: ChannelSpec,
    about: Mapping[str, Any] | None = None,
    on_stopped: Callable[[], None] | None = None,
    claims: Sequence[str] = (),
) -> Promise[HeldChannel]:
    """Start the server of a channel in this process and make it known; the promise of the server.

    Args:
        session: this process's.
        spec: the channel.
        about: what the directory shall know besides, msgpack-able.
        on_stopped: called once on the I/O thread when the channel was deleted or stopped: nobody needs this
            process for it any more.
        claims: further names that the channel takes in the directory.

    Raises (from the promise):
        ChannelExists: a name is taken.
        ChannelJournalError: the journal of a durable channel is held by a process that lives, damaged, or another's.
        CheckpointError: `spec.restore` cannot be read, or does not fit.
    """
    if spec.durable:
        durable = _DurableOpening(session, spec, dict(about or {}), on_stopped, claims)
        session.messenger.run_beside(durable.read)
        return durable.opened
    opened: Promise[HeldChannel] = Promise()
    opening = partial(_open, session, spec, about or {}, on_stopped, claims, opened)
    if spec.restore:
        session.messenger.run_beside(_read, session, spec, opened, opening)
    else:
        opening(None)
    return opened


def _read(
    session: Session,
    spec: ChannelSpec,
    opened: Promise[HeldChannel],
    opening: Callable[[SavedChannel | None], None],
) -> None:
    """Read what a channel is to hold, on a thread of its own."""
    try:
        saved = _read_saved(session, spec)
    except Exception as error:  # noqa: BLE001 - it belongs to the waiter for the channel
        opened.set_exception(error)
    else:
        session.messenger.submit(partial(opening, saved))


def _open(
    session: Session,
    spec: ChannelSpec,
    about: Mapping[str, Any],
    on_stopped: Callable[[], None] | None,
    claims: Sequence[str],
    opened: Promise[HeldChannel],
    saved: SavedChannel | None,
) -> None:
    server = ChannelServer(session.messenger, spec, FEATURES)
    if saved is not None:
        restore(server, saved)
    explain = partial(server.feature, ExplainFeature)
    forget = watch_channel(session, spec, lambda: explain().activity(), lambda: explain().stats())

    def stopped(tell: Callable[[], None] | None = on_stopped) -> None:
        forget()
        if tell is not None:
            tell()

    def free_names(then: Callable[[], None]) -> None:
        freed = [session.directory.unregister_async(name) for name in (*claims, spec.address)]
        # The directory answers in order.
        freed[-1].add_done_callback(lambda _: then())

    server.on_stopped, server.on_delete = stopped, free_names

    def settle(registered: Promise[Any]) -> None:
        error = registered.exception()
        if error is None:
            opened.set_result(server)
            return
        server.on_stopped = partial(stopped, None)  # it has never begun
        server.stop()
        opened.set_exception(why_unregistered(spec.name, error))

    entry = Entry(spec.address, session.messenger.endpoint, {**about, **spec.to_info()})
    session.directory.register_async(entry, claims).add_done_callback(settle)


def host_channel(
    session: Session, spec: ChannelSpec, on_stopped: Callable[[], None] | None = None
) -> HeldChannel:
    """As `open_channel`, and wait until it is known.

    Raises:
        ChannelExists: the name is taken.
        ChannelJournalError, CheckpointError: as of `open_channel`.
    """
    return open_channel(session, spec, on_stopped=on_stopped).result()


class _DurableOpening:
    """A durable channel on its way: its journal is read, what that says happens again, its name is taken."""

    def __init__(
        self,
        session: Session,
        spec: ChannelSpec,
        about: dict[str, Any],
        on_stopped: Callable[[], None] | None,
        claims: Sequence[str],
    ) -> None:
        self.opened: Promise[HeldChannel] = Promise()
        self._session = session
        self._spec = spec
        self._about = about
        self._on_stopped = on_stopped
        self._claims = claims
        self._began = session.messenger.now()

    def read(self) -> None:
        """Read the journal, in a thread of its own: it may be large."""
        try:
            journal = open_journal(self._spec, self._session.messenger.disk)
            try:
                found = read_journal(journal, self._spec)
                saved = _read_saved(self._session, self._spec)
            except BaseException:
                journal.close()
                raise
        except Exception as error:  # noqa: BLE001 - it belongs to the waiter for the channel
            self.opened.set_exception(error)
        else:
            self._session.messenger.submit(partial(self._begin, journal, found, saved))

    def _begin(self, journal: Journal, found: FoundJournal, saved: SavedChannel | None) -> None:
        channel = DurableChannel(self._session, found.spec, journal, self._claims)
        self._try(channel, lambda: channel.begin(found, saved))
        found.snapshot = None  # what is over by now is to go
        if found.is_there:
            self._read_more(channel, found)
        elif not self.opened.done():
            snapshot = (lambda: (b"", [])) if saved is None else channel.snapshot()
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
        if not self.opened.done():
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
        if self.opened.done():
            return
        more = bool(commits)
        self._try(channel, lambda: channel.recover(commits))
        if channel.is_going:
            # Its journal goes with it; nothing that has happened after that matters.
            lost = ChannelLost(channel.spec.name, "its process died while it was deleted; it is deleted now")
            channel.on_stopped = partial(self.opened.set_exception, lost)
        elif commits:
            self._session.messenger.submit(partial(self._recover, channel, found, commits))
        elif more:
            self._read_more(channel, found)
        elif not self.opened.done():
            # Much of what was read is over by now.
            self._session.messenger.run_beside(trim_heap)
            self._go_live(channel)

    def _go_live(self, channel: DurableChannel) -> None:
        self._try(channel, channel.go_live)
        if not self.opened.done():
            # Its journal may fail before the directory has answered.
            channel.on_stopped = partial(self._on_failed, channel)
            self._register(channel)

    def _on_failed(self, channel: DurableChannel) -> None:
        self.opened.set_exception(ChannelLost(channel.spec.name, channel.why_over))

    def _try(self, channel: DurableChannel, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - it belongs to the waiter for the channel
            channel.stop()
            self.opened.set_exception(error)

    def _register(self, channel: DurableChannel) -> None:
        info = {**self._about, **channel.spec.to_info(), "epoch": channel.epoch, RETURNS: True}
        entry = Entry(channel.spec.address, self._session.messenger.endpoint, info)
        registered = self._session.directory.register_async(entry, self._claims)
        registered.add_done_callback(partial(self._on_registered, channel))

    def _on_registered(self, channel: DurableChannel, registered: Promise[Any]) -> None:
        error = registered.exception(0)
        if self.opened.done():
            return
        if error is None:
            channel.on_stopped = self._on_stopped
            self.opened.set_result(channel)
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
        self.opened.set_exception(why_unregistered(channel.spec.name, error))


def _is_of(entry: Entry, spec: ChannelSpec) -> bool:
    """Whether an entry is of a process that holds, or has held, a channel."""
    return KIND in entry.info and ChannelRef.from_entry(spec.name, entry).spec.channel_id == spec.channel_id


def _read_saved(session: Session, spec: ChannelSpec) -> SavedChannel | None:
    if not spec.restore:
        return None
    saved = read_channel(spec.restore, session.messenger.disk)
    saved.check_fits(spec)
    return saved
