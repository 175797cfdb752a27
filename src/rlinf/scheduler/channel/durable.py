"""A channel that survives its process: its journal, its server, and what leads to it. On the I/O thread only."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import metadata
from typing import Any

import msgspec

from rlinf.scheduler.channel import durable_wire, wire
from rlinf.scheduler.channel.byte_bound import SHARE
from rlinf.scheduler.channel.checkpoint import SavedChannel, read_channel
from rlinf.scheduler.channel.durable_wire import JournaledTurn
from rlinf.scheduler.channel.image import ChannelImage
from rlinf.scheduler.channel.journal import Journal, JournalBlock
from rlinf.scheduler.channel.journaled import JournaledOutside
from rlinf.scheduler.channel.server import ChannelServer
from rlinf.scheduler.channel.spec import KIND, ChannelSpec
from rlinf.scheduler.comm.directory import RETURNS, Entry
from rlinf.scheduler.comm.framing import Buffer
from rlinf.scheduler.comm.peer import Request
from rlinf.scheduler.comm.promise import Promise
from rlinf.scheduler.comm.reports import Reporter
from rlinf.scheduler.comm.shm.kernel import trim_heap
from rlinf.scheduler.comm.shm.limit import memory_bytes
from rlinf.scheduler.comm.threads import run_beside
from rlinf.scheduler.errors import ChannelExists, ChannelJournalError, ChannelLost, NameTaken
from rlinf.scheduler.session import Session

logger = Reporter(__name__)

# It is written whole when it has grown by so much, and by twice what it was then, or by so many turns.
GROWN_BYTES = 64 << 20
GROWN_TURNS = 100_000
# What is left of it then is copied on the I/O thread.
_SMALL_BYTES = 1 << 20
# The lock of a process that is being killed is free after a moment; the directory hears of its end a little later.
LOCK_S = 2.0
TAKE_OVER_S = 30.0
AGAIN_S = 0.05
# What has happened is told again for so long at a time.
MOMENT_S = 0.05
# What is said at the creation, and holds for the whole life of a channel.
_FOR_LIFE = ("name", "maxsize", "max_bytes", "producers", "successor_s", "max_attempts", "max_leased")
DELETED = "the channel was deleted"


class DurableChannel:
    """Holds one durable channel.

    Args:
        session: this process's.
        spec: the channel.
        journal: its, open.
        claims: names that it has in the directory besides its address.

    Attributes:
        spec: see above.
        on_stopped: called once on the I/O thread when it was deleted, or can go on no more.
    """

    def __init__(
        self, session: Session, spec: ChannelSpec, journal: Journal, claims: Sequence[str] = ()
    ) -> None:
        self.spec = spec
        self.on_stopped: Callable[[], None] | None = None
        self._session = session
        self._journal = journal
        self._names = (*claims, spec.address)
        self._aside = durable_wire.aside_service(spec.channel_id)
        self._outside = JournaledOutside(
            session.messenger, spec.channel_id, journal, self._on_failed, self._on_turn
        )
        # The lock is not for the process: it may leave the job and live on, and have children.
        session.messenger.at_end(journal.close)
        session.on_fork(journal.close)
        self._server: ChannelServer | None = None
        self._num_turns = 0
        self._grown_turns = GROWN_TURNS
        self._is_writing = self._is_over = False
        self._why_over = ""

    @property
    def epoch(self) -> int:
        """Which process this is, of those that have held the channel; 1 is the first."""
        return self._outside.epoch

    def begin(self, blocks: list[JournalBlock], saved: SavedChannel | None = None) -> None:
        """Begin with the image, if there is one, which is the first of the journal's blocks; `recover` is to follow.

        Args:
            blocks: of the journal.
            saved: a checkpoint to begin with; then there are none.

        Raises:
            ChannelJournalError: it cannot be read.
        """
        self._num_turns = len(blocks)
        try:
            image = ChannelImage.read(*blocks[0]) if blocks and blocks[0].head else None
        except (ValueError, msgspec.DecodeError) as error:
            raise self._journal.damaged(f"cannot be read: {error}") from error
        if image is not None:
            self._take(image)
        self._server = ChannelServer(
            self._outside,
            self.spec,
            saved=saved,
            image=None if image is None else image.server,
            beside=self._session.messenger,
        )
        self._server.on_stopped = self._on_deleted
        if image is not None:
            self._outside.resume_timers(image.timers)

    def recover(self, turns: deque[JournalBlock]) -> None:
        """Let happen again what has happened since, as much as can be done in a moment.

        Raises:
            ChannelJournalError: the blocks make no sense.
        """
        until = time.monotonic() + MOMENT_S
        try:
            while turns and time.monotonic() < until:
                block = turns.popleft()
                self._outside.replay(msgspec.msgpack.decode(block.head, type=JournaledTurn), block.frames)
        except (ValueError, msgspec.DecodeError) as error:
            raise self._journal.damaged(f"cannot be read: {error}") from error

    def _take(self, image: ChannelImage) -> None:
        outside = self._outside
        outside.streams, outside.names, outside.lines = image.streams, image.names, image.lines
        outside.epoch, outside.job = image.epoch, image.job
        outside.resume_at(image.now)

    def go_live(self) -> None:
        """Serve clients from now on.

        Raises:
            ChannelLost: its journal cannot be written.
        """
        self._outside.go_live(self._session.home.process_id)
        if self._why_over:
            raise ChannelLost(self.spec.name, self._why_over)
        self._session.messenger.serve(self._aside, self._on_aside, wire.OfSaves)
        # What clients said before they left is written down, though nothing more will follow from it here.
        self._session.on_close(lambda: self._session.messenger.submit(self._outside.settle))

    def _on_aside(self, request: Request) -> None:
        # What was said before it has happened before it, also what would wait to be written with more.
        self._outside.settle()
        if self._is_over or self._server is None:
            request.fail(ChannelLost(self.spec.name, self._why_over or DELETED))
        else:
            self._server.save(request)

    def stop(self) -> None:
        """Hold it no more: another process is to do so. From any thread."""
        self._session.messenger.submit(self._leave)

    @property
    def is_going(self) -> bool:
        """Whether it was deleted, and goes as soon as its names are free."""
        return self._outside.withholds

    def _leave(self) -> None:
        if self.is_going:
            return
        self._outside.stop("it is not held by its process any more", returns=True)
        self._tell_stopped()
        self._journal.close()

    # -- ends ------------------------------------------------------------------------------------

    def _on_deleted(self) -> None:
        """Free the names, then answer."""
        self._outside.withholds = True
        freed = [self._session.directory.unregister_async(name) for name in self._names]
        # The directory answers in order.
        freed[-1].add_done_callback(self._on_freed)

    def _on_freed(self, _freed: Any) -> None:
        self._outside.stop(DELETED, returns=False)
        self._is_over = True
        self._journal.remove()
        self._tell_stopped()

    def _on_failed(self, error: OSError) -> None:
        reason = self._why_over = f"its journal cannot be written: {error}"
        logger.warning("channel '%s': %s; it can be created again when it can be", self.spec.name, reason)
        for name in self._names:
            self._session.directory.unregister_async(name)
        self._outside.stop(reason, returns=False)
        self._tell_stopped()
        self._journal.close()

    def _tell_stopped(self) -> None:
        self._is_over = True
        self._session.messenger.unserve(self._aside)
        if self.on_stopped is not None:
            self.on_stopped()

    # -- the journal -----------------------------------------------------------------------------

    def _on_turn(self) -> None:
        self._num_turns += 1
        journal = self._journal
        grown_bytes = journal.size_bytes - journal.image_bytes
        is_large = grown_bytes > max(GROWN_BYTES, 2 * journal.image_bytes)
        if (is_large or self._num_turns > self._grown_turns) and not self._is_writing:
            self.write_whole()

    def write_whole(self) -> None:
        """Write the journal anew, without what is over; in a thread of its own."""
        self._num_turns = 0
        try:
            head, frames = self.image()
        except Exception as error:  # noqa: BLE001 - such as too many that wait for each other's queues
            # Without it everything is there, too; it only takes more room.
            self._put_off(error)
            return
        self._is_writing = True
        run_beside(self._write, head, frames, self._journal.size_bytes)

    def image(self) -> tuple[bytes, list[Buffer]]:
        """All that there is, as bytes."""
        outside, server = self._outside, self._server
        if server is None:
            return b"", []
        image = ChannelImage(
            server.image(),
            outside.streams,
            outside.names,
            outside.lines,
            outside.epoch,
            outside.job,
            outside.now(),
            outside.dues,
        )
        return image.write()

    def _write(self, head: bytes, frames: list[Buffer], since: int) -> None:
        journal = self._journal
        try:
            fd = journal.begin(_header(self.spec), head, frames)
        except OSError as error:
            self._session.messenger.submit(partial(self._on_not_written, error))
            return
        try:
            while (until := journal.size_bytes) - since > _SMALL_BYTES:
                journal.copy_since(fd, since, until)
                since = until
            journal.sync(fd)
        except OSError as error:
            os.close(fd)
            self._session.messenger.submit(partial(self._on_not_written, error))
        else:
            self._session.messenger.submit(partial(self._on_written, fd, since))

    def _on_not_written(self, error: OSError) -> None:
        self._is_writing = False
        self._put_off(error)

    def _put_off(self, error: Exception) -> None:
        """Try again when it has grown by as much once more, and by twice as many turns."""
        logger.warning("channel '%s': its journal is not made smaller: %r", self.spec.name, error)
        self._journal.image_bytes = self._journal.size_bytes
        self._grown_turns *= 2

    def _on_written(self, fd: int, since: int) -> None:
        self._is_writing = False
        if self._is_over:
            os.close(fd)
            return
        try:
            self._journal.finish(fd, since)
        except OSError as error:
            self._put_off(error)
        else:
            self._grown_turns = GROWN_TURNS


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
    run_beside(opening.read)
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
        self._began = time.monotonic()

    def read(self) -> None:
        """Read the journal, in a thread of its own: it may be large."""
        try:
            journal = _open_journal(self._spec)
            try:
                spec, blocks = _read(journal, self._spec)
                saved = _read_saved(self._spec)
            except BaseException:
                journal.close()
                raise
        except Exception as error:  # noqa: BLE001 - it belongs to whoever waits for the channel
            self.opened.set_exception(error)
        else:
            self._session.messenger.submit(partial(self._begin, journal, spec, blocks, saved))

    def _begin(
        self, journal: Journal, spec: ChannelSpec, blocks: list[JournalBlock], saved: SavedChannel | None
    ) -> None:
        channel = DurableChannel(self._session, spec, journal, self._claims)
        self._try(channel, lambda: channel.begin(blocks, saved))
        turns = deque(blocks[1:])
        if blocks:
            blocks.clear()
            self._recover(channel, turns)
        elif not self.opened.done():  # it is new
            head, frames = (b"", []) if saved is None else channel.image()
            run_beside(self._write, channel, journal, head, frames)

    def _write(self, channel: DurableChannel, journal: Journal, head: bytes, frames: list[Buffer]) -> None:
        """Write what a channel begins with, in a thread of its own."""
        self._try(channel, lambda: journal.finish(journal.begin(_header(channel.spec), head, frames), 0))
        self._session.messenger.submit(partial(self._recover, channel, deque()))

    def _recover(self, channel: DurableChannel, turns: deque[JournalBlock]) -> None:
        """Go on for a while, and let others have the I/O thread in between."""
        if self.opened.done():
            return
        self._try(channel, lambda: channel.recover(turns))
        if turns:
            self._session.messenger.submit(partial(self._recover, channel, turns))
        elif not self.opened.done():
            # Much of what was read is over by now.
            run_beside(trim_heap)
            self._go_live(channel)

    def _go_live(self, channel: DurableChannel) -> None:
        if channel.is_going:
            lost = ChannelLost(channel.spec.name, "its process died while it was deleted; it is deleted now")
            channel.on_stopped = partial(self.opened.set_exception, lost)
            return
        self._try(channel, channel.go_live)
        if not self.opened.done():
            self._register(channel)

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
        elif isinstance(error, NameTaken) and time.monotonic() - self._began < TAKE_OVER_S:
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
        if isinstance(error, NameTaken):
            taken = ChannelExists(channel.spec.name, str(error))
            taken.__cause__ = error
            error = taken
        self.opened.set_exception(error)


def _open_journal(spec: ChannelSpec) -> Journal:
    until = time.monotonic() + LOCK_S
    while True:
        try:
            return Journal(spec.durable, spec.name, spec.survives)
        except ChannelJournalError as error:
            if error.__cause__ is None or not isinstance(error.__cause__, BlockingIOError):
                raise
            if time.monotonic() >= until:
                raise
            time.sleep(AGAIN_S)


def _read(journal: Journal, spec: ChannelSpec) -> tuple[ChannelSpec, list[JournalBlock]]:
    if spec.restore and journal.exists:
        raise journal.damaged("is there already: a checkpoint is restored into a channel that is new")
    spec = msgspec.structs.replace(spec, restore="")
    if not journal.exists:
        # A share of this machine's memory is fixed now: it decides who waits, and must not change.
        bound = memory_bytes() // SHARE if spec.max_bytes is None else spec.max_bytes
        spec = msgspec.structs.replace(spec, max_bytes=bound)
        return spec, []
    header, *blocks = journal.read()
    try:
        version, raw = msgspec.msgpack.decode(header.head, type=tuple[str, msgspec.Raw])
        # What has happened is to follow by the same rules again.
        if version != _version():
            problem = f"was written by version {version} of this library, and this is {_version()}"
            raise journal.damaged(
                f"{problem}; save what it holds with that one, and restore it with this one"
            )
        known = msgspec.msgpack.decode(raw, type=ChannelSpec)
    except msgspec.DecodeError as error:
        raise journal.damaged("is not the journal of a channel of this version") from error
    if spec.max_bytes is None:
        spec = msgspec.structs.replace(spec, max_bytes=known.max_bytes)
    others = [name for name in _FOR_LIFE if getattr(known, name) != getattr(spec, name)]
    if others:
        said = ", ".join(
            f"{name}={getattr(known, name)!r} and not {getattr(spec, name)!r}" for name in others
        )
        raise journal.damaged(f"is of a channel that was created with {said}")
    return spec, blocks


def _read_saved(spec: ChannelSpec) -> SavedChannel | None:
    if not spec.restore:
        return None
    saved = read_channel(spec.restore)
    saved.check_fits(spec)
    return saved


def _header(spec: ChannelSpec) -> bytes:
    return msgspec.msgpack.encode((_version(), spec))


def _version() -> str:
    try:
        return metadata.version("rlinf-scheduler")
    except metadata.PackageNotFoundError:
        return "unknown"
