"""How a process comes to hold a durable channel: its journal is read, what it says happens again, its name is taken."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from rlinf_scheduler.channel.checkpoint import SavedChannel, read_channel
from rlinf_scheduler.channel.durable import DurableChannel
from rlinf_scheduler.channel.found_journal import (
    FoundJournal,
    FoundTurn,
    header_of,
    open_journal,
    read_journal,
)
from rlinf_scheduler.channel.journal import Journal, NewJournal
from rlinf_scheduler.channel.refusals import why_unregistered
from rlinf_scheduler.channel.spec import KIND, ChannelSpec
from rlinf_scheduler.comm.directory import RETURNS, Entry
from rlinf_scheduler.comm.framing import Buffer, total_bytes
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.shm.kernel import trim_heap
from rlinf_scheduler.comm.threads import run_beside_in_time
from rlinf_scheduler.errors import ChannelLost, NameTaken
from rlinf_scheduler.session import Session

# The directory hears of the end of a process a little later than its lock is free.
TAKE_OVER_S = 30.0
AGAIN_S = 0.05
# So much of a journal is read before it happens again, with so much for what each turn takes besides its frames.
READ_BYTES = 16 << 20
_TURN_BYTES = 1 << 10


def open_durable(
    session: Session,
    spec: ChannelSpec,
    about: Mapping[str, Any] | None = None,
    on_stopped: Callable[[], None] | None = None,
    claims: Sequence[str] = (),
) -> Promise[DurableChannel]:
    """Hold a durable channel in this process, with what its journal knows, and make it known; as `open_channel`.

    Raises (from the promise):
        ChannelExists: a name is taken.
        ChannelJournalError: its journal is held by a process that lives, damaged, or of another channel.
    """
    opening = _DurableOpening(session, spec, dict(about or {}), on_stopped, claims)
    run_beside_in_time(session.messenger.call_later, opening.read)
    return opening.opened


class _DurableOpening:
    """A durable channel on its way; for the arguments see `open_durable`."""

    def __init__(
        self,
        session: Session,
        spec: ChannelSpec,
        about: dict[str, Any],
        on_stopped: Callable[[], None] | None,
        claims: Sequence[str],
    ) -> None:
        self.opened: Promise[DurableChannel] = Promise()
        self._session = session
        self._spec = spec
        self._about = about
        self._on_stopped = on_stopped
        self._claims = claims
        self._began = session.messenger.now()

    def read(self) -> None:
        """Read the journal, in a thread of its own: it may be large."""
        try:
            journal = open_journal(self._spec)
            try:
                found = read_journal(journal, self._spec)
                saved = _read_saved(self._spec)
            except BaseException:
                journal.close()
                raise
        except Exception as error:  # noqa: BLE001 - it belongs to whoever waits for the channel
            self.opened.set_exception(error)
        else:
            self._session.messenger.submit(partial(self._begin, journal, found, saved))

    def _begin(self, journal: Journal, found: FoundJournal, saved: SavedChannel | None) -> None:
        channel = DurableChannel(self._session, found.spec, journal, self._claims)
        self._try(channel, lambda: channel.begin(found, saved))
        found.image = None  # what is over by now is to go
        if found.is_there:
            self._read_more(channel, found)
        elif not self.opened.done():
            image = (lambda: (b"", [])) if saved is None else channel.image()
            self._beside(self._write, channel, journal, image)

    def _write(
        self, channel: DurableChannel, journal: Journal, image: Callable[[], tuple[bytes, Iterable[Buffer]]]
    ) -> None:
        """Write what a channel begins with, in a thread of its own."""

        def write() -> None:
            new = journal.begin(header_of(channel.spec), *image())
            journal.sync(new)
            self._session.messenger.submit(partial(self._finish, channel, journal, new))

        self._try(channel, write)

    def _finish(self, channel: DurableChannel, journal: Journal, new: NewJournal) -> None:
        # On the I/O thread, which lets another process have it.
        self._try(channel, lambda: journal.finish(new, 0))
        self._recover(channel, FoundJournal(channel.spec), deque())

    def _read_more(self, channel: DurableChannel, found: FoundJournal) -> None:
        if not self.opened.done():
            self._beside(self._read_turns, channel, found)

    def _read_turns(self, channel: DurableChannel, found: FoundJournal) -> None:
        """Read what happens next, as much as may be in memory before it happens; in a thread of its own."""

        def read() -> None:
            turns, size_bytes = deque[FoundTurn](), 0
            for each in found.turns:
                turns.append(each)
                size_bytes += _TURN_BYTES + total_bytes(each.frames)
                if size_bytes >= READ_BYTES:
                    break
            self._session.messenger.submit(partial(self._recover, channel, found, turns))

        self._try(channel, read)

    def _recover(self, channel: DurableChannel, found: FoundJournal, turns: deque[FoundTurn]) -> None:
        """Go on for a while, and let others have the I/O thread in between."""
        if self.opened.done():
            return
        more = bool(turns)
        self._try(channel, lambda: channel.recover(turns))
        if channel.is_going:
            # Its journal goes with it; nothing that has happened after that matters.
            lost = ChannelLost(channel.spec.name, "its process died while it was deleted; it is deleted now")
            channel.on_stopped = partial(self.opened.set_exception, lost)
        elif turns:
            self._session.messenger.submit(partial(self._recover, channel, found, turns))
        elif more:
            self._read_more(channel, found)
        elif not self.opened.done():
            # Much of what was read is over by now.
            self._beside(trim_heap)
            self._go_live(channel)

    def _go_live(self, channel: DurableChannel) -> None:
        self._try(channel, channel.go_live)
        if not self.opened.done():
            self._register(channel)

    def _beside(self, function: Callable[..., None], *args: Any) -> None:
        run_beside_in_time(self._session.messenger.call_later, function, *args)

    def _try(self, channel: DurableChannel, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - it belongs to whoever waits for the channel
            channel.stop()
            self.opened.set_exception(error)

    def _register(self, channel: DurableChannel) -> None:
        info = {**self._about, **channel.spec.to_info(), "epoch": channel.epoch, RETURNS: True}
        entry = Entry(channel.spec.address, self._session.messenger.endpoint, info)
        registered = self._session.directory.register_async(entry, self._claims)
        registered.add_done_callback(partial(self._on_registered, channel))

    def _on_registered(self, channel: DurableChannel, registered: Promise[Any]) -> None:
        error = registered.exception(0)
        if error is None:
            channel.on_stopped = self._on_stopped
            self.opened.set_result(channel)
        elif isinstance(error, NameTaken) and self._session.messenger.now() - self._began < TAKE_OVER_S:
            found = self._session.directory.lookup_async(channel.spec.address, 0)
            found.add_done_callback(partial(self._on_taken, channel, error))
        else:
            self._fail(channel, error)

    def _on_taken(self, channel: DurableChannel, taken: NameTaken, found: Promise[Entry]) -> None:
        """Whoever has the name is this channel's last process, which is dead, or somebody else."""
        info = {} if found.exception(0) is not None else found.result(0).info
        if found.exception(0) is None and info.get(KIND, {}).get("channel_id") != channel.spec.channel_id:
            self._fail(channel, taken)
        else:
            self._session.messenger.call_later(AGAIN_S, partial(self._register, channel))

    def _fail(self, channel: DurableChannel, error: BaseException) -> None:
        channel.stop()
        self.opened.set_exception(why_unregistered(channel.spec.name, error))


def _read_saved(spec: ChannelSpec) -> SavedChannel | None:
    if not spec.restore:
        return None
    saved = read_channel(spec.restore)
    saved.check_fits(spec)
    return saved
