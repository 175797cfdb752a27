"""A channel that survives its process: its journal, its server, and what leads to it. On the I/O thread only."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import msgspec

from rlinf_scheduler.channel import control_wire, wire
from rlinf_scheduler.channel.clients import KnownClient
from rlinf_scheduler.channel.features import FEATURES
from rlinf_scheduler.channel.features.ends import EndsFeature
from rlinf_scheduler.channel.features.explain import ExplainFeature, watch_channel
from rlinf_scheduler.channel.features.leases import LeasesFeature
from rlinf_scheduler.channel.features.successors import ProducersFeature, SubscriptionsFeature
from rlinf_scheduler.channel.server import ChannelServer
from rlinf_scheduler.channel.spec import ChannelSpec
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.peer import Request
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.durable.journal import Journal, NewJournal
from rlinf_scheduler.durable.journal_records import (
    FoundCommit,
    FoundJournal,
    LoadedSnapshot,
    ServerRecord,
    header_of,
    write_snapshot,
)
from rlinf_scheduler.durable.journaled import WriteAheadRuntime
from rlinf_scheduler.errors import ChannelLost
from rlinf_scheduler.queueing.snapshot import ripening
from rlinf_scheduler.queueing.stats import ChannelStats
from rlinf_scheduler.session import Session

logger = Reporter(__name__)

# So much of it may be left to be copied on the I/O thread.
_SMALL_BYTES = 1 << 20
# What has happened is told again for so long at a time.
MOMENT_S = 0.05
# It is written whole when it has grown by so much, and by twice what it was then, or by so many turns.
GROWN_BYTES = 64 << 20
GROWN_COMMITS = 100_000
DELETED = "the channel was deleted"


class JournalGrowth:
    """How much a journal has grown since it was last written whole, or that was tried.

    Args:
        num_commits: how many have happened since then.
        size_bytes: what it was then.
    """

    def __init__(self, num_commits: int = 0, size_bytes: int = 0) -> None:
        self._num_commits = num_commits
        self._max_commits = GROWN_COMMITS
        self._size_bytes = size_bytes

    def add_commit(self, size_bytes: int) -> bool:
        """Count a turn, after which the journal has this size; whether it is to be written whole now."""
        self._num_commits += 1
        grown_bytes = size_bytes - self._size_bytes
        return grown_bytes > max(GROWN_BYTES, 2 * self._size_bytes) or self._num_commits > self._max_commits

    def begin(self) -> None:
        """It is being written whole: what comes now has happened since then."""
        self._num_commits = 0

    def succeed(self, size_bytes: int) -> None:
        """It was written whole, and was of this size then."""
        self._max_commits, self._size_bytes = GROWN_COMMITS, size_bytes

    def fail(self, size_bytes: int) -> None:
        """It was not: it is to grow from this size by as much once more, or by twice as many turns."""
        self._max_commits, self._size_bytes = 2 * self._max_commits, size_bytes


class DurableChannel:
    """Holds one durable channel.

    Args:
        journal: its, open.
        claims: names that it has in the directory besides its address.

    Attributes:
        on_stopped: called once on the I/O thread when it was deleted, or can go on no more.
        why_over: why it can go on no more, if its journal is to blame.
    """

    def __init__(
        self, session: Session, spec: ChannelSpec, journal: Journal, claims: Sequence[str] = ()
    ) -> None:
        self.spec = spec
        self.why_over = ""
        self.on_stopped: Callable[[], None] | None = None
        self._session = session
        self._journal = journal
        self._names = (*claims, spec.address)
        self._aside = wire.service(spec.channel_id, wire.ASIDE)
        self._runtime = WriteAheadRuntime(
            session.messenger, spec.channel_id, journal, self._on_failed, self._on_commit
        )
        # The lock is not for the process: it may leave the job and live on, and have children.
        session.messenger.at_end(self._end)
        session.on_fork(journal.close)
        self._server: ChannelServer | None = None
        self._growth = JournalGrowth()
        self._num_recovered = 0
        self._is_writing = self._is_over = False
        self._say_no_more: Callable[[], None] = lambda: None

    @property
    def epoch(self) -> int:
        """Which process this is, of those that have held the channel; 1 is the first."""
        return self._runtime.epoch

    def begin(self, found: FoundJournal, restore: Callable[[ChannelServer], None] | None = None) -> None:
        """Begin with what its journal has been written whole with, if there is anything; `recover` is to follow.

        Args:
            found: what the journal says.
            restore: has the server hold a checkpoint; then the journal is empty.
        """
        snapshot = found.snapshot
        if snapshot is not None:
            self._runtime.load(snapshot)
        beside = self._session.messenger
        self._server = ChannelServer(self._runtime, self.spec, FEATURES, beside)
        self._server.on_stopped = self._on_deleted
        if restore is not None:
            restore(self._server)
        if snapshot is not None:
            _resume(self._server, snapshot)
            self._runtime.resume_timers(snapshot.world.timers)

    def recover(self, commits: deque[FoundCommit]) -> None:
        """Let happen again what has happened since, as much as can be done in a moment.

        Raises:
            ChannelJournalError: the blocks make no sense.
        """
        until = self._session.messenger.now() + MOMENT_S
        try:
            while commits and self._session.messenger.now() < until:
                self._runtime.replay(*commits.popleft())
                self._num_recovered += 1
        except (ValueError, msgspec.DecodeError) as error:
            raise self._journal.damaged(f"cannot be read: {error}") from error

    def go_live(self) -> None:
        """Serve clients from now on.

        Raises:
            ChannelLost: its journal cannot be written.
        """
        self._growth = JournalGrowth(self._num_recovered, self._journal.snapshot_bytes)
        self._runtime.go_live(self._session.home.process_id)
        if self.why_over:
            raise ChannelLost(self.spec.name, self.why_over)
        self._session.messenger.serve(
            self._aside, self._on_aside, control_wire.OfSaves | control_wire.OfReports
        )
        self._say_no_more = watch_channel(self._session, self.spec, self._activity, self._stats)
        # What clients said before they left is written down, though nothing more will follow from it here.
        self._session.on_close(self._settle)

    def _settle(self) -> None:
        self._session.messenger.submit(self._runtime.settle)

    def _activity(self) -> ChannelStats | None:
        """What goes on in it."""
        if self._is_over or self._server is None:
            return None
        self._runtime.settle()
        return self._server.feature(ExplainFeature).activity()

    def _stats(self) -> ChannelStats | None:
        """The same in a few numbers; what is said now and not written yet has not happened."""
        return None if self._is_over or self._server is None else self._server.feature(ExplainFeature).stats()

    def _on_aside(self, request: Request) -> None:
        # What was said before it has happened before it, also what would wait to be written with more.
        self._runtime.settle()
        if self._is_over or self._server is None:
            request.fail(ChannelLost(self.spec.name, self.why_over or DELETED))
        else:
            self._server.answer(request)

    def stop(self) -> None:
        """Hold it no more: another process is to do so. From any thread."""
        self._session.messenger.submit(self._leave)

    @property
    def is_going(self) -> bool:
        """Whether it was deleted, and goes as soon as its names are free."""
        return self._runtime.withholds

    def _leave(self) -> None:
        if self.is_going:
            return
        self._runtime.stop("it is not held by its process any more", returns=True)
        self._tell_stopped()
        self._journal.close()

    # -- ends ------------------------------------------------------------------------------------

    def _end(self) -> None:
        """The process leaves the job: a thread that writes the journal whole has nothing to do with it any more."""
        self._is_over = True
        self._journal.close()

    def _on_deleted(self) -> None:
        """Free the names, then answer."""
        self._runtime.withholds = True
        freed = [self._session.directory.unregister_async(name) for name in self._names]
        # The directory answers in order.
        freed[-1].add_done_callback(self._on_freed)

    def _on_freed(self, _freed: Any) -> None:
        self._is_over = True
        self._session.messenger.off_end(self._end)  # it would close what is about to be removed
        self._session.messenger.run_beside(self._remove)

    def _remove(self) -> None:
        """Remove the journal, in a thread of its own: of a large one it takes a while."""
        try:
            self._journal.remove()
        except OSError as error:
            logger.warning("channel '%s': its journal cannot be removed: %s", self.spec.name, error)
            self._journal.close()
        self._session.messenger.submit(self._on_removed)

    def _on_removed(self) -> None:
        self._runtime.stop(DELETED, returns=False)
        self._tell_stopped()

    def _on_failed(self, error: OSError) -> None:
        reason = self.why_over = f"its journal cannot be written: {error}"
        logger.warning(
            "channel '%s': %s; it can be created again once that is mended", self.spec.name, reason
        )
        for name in self._names:
            self._session.directory.unregister_async(name)
        self._runtime.stop(reason, returns=False)
        self._tell_stopped()
        self._journal.close()

    def _tell_stopped(self) -> None:
        self._is_over = True
        self._say_no_more()
        self._session.messenger.unserve(self._aside)
        self._session.messenger.off_end(self._end)
        self._session.forget(self._settle)
        self._session.forget(self._journal.close)
        if self.on_stopped is not None:
            self.on_stopped()

    # -- the journal -----------------------------------------------------------------------------

    def _on_commit(self) -> None:
        if self._growth.add_commit(self._journal.size_bytes):
            self.write_whole()

    def write_whole(self) -> None:
        """Write the journal anew, without what is over: look at what there is, and write it in a thread of its own."""
        if self._is_writing:
            return
        self._growth.begin()
        self._is_writing = True
        self._session.messenger.run_beside(self._write, self.snapshot(), self._journal.size_bytes)

    def snapshot(self) -> Callable[[], tuple[bytes, Iterable[Buffer]]]:
        """Take a snapshot of the channel; the function that is returned gives it as bytes, in any thread."""
        if self._server is None:
            return lambda: (b"", [])
        world, said = self._runtime.look()
        snapshot, server = self._server.state.snapshot(), _record_of(self._server)
        return partial(write_snapshot, snapshot, server, world, said)

    def _write(self, snapshot: Callable[[], tuple[bytes, Iterable[Buffer]]], since: int) -> None:
        try:
            new = self._journal.begin(header_of(self.spec), *snapshot())
        except Exception as error:  # noqa: BLE001 - without it everything is there, too; it only takes more room
            self._session.messenger.submit(partial(self._on_not_written, error))
        else:
            self._follow(new, since)

    def _follow(self, new: NewJournal, since: int) -> None:
        """Write what has happened meanwhile, too, and have it on the disk; in a thread of its own."""
        submit = self._session.messenger.submit
        until = self._journal.size_bytes
        try:
            self._journal.copy_since(new, since, until)
            self._journal.sync(new)
        except Exception as error:  # noqa: BLE001 - as above
            new.drop()
            submit(partial(self._on_not_written, error))
        else:
            submit(partial(self._on_written, new, until))

    def _on_not_written(self, error: Exception) -> None:
        self._is_writing = False
        if not self._is_over:
            logger.warning("channel '%s': its journal is not made smaller: %r", self.spec.name, error)
            self._growth.fail(self._journal.size_bytes)

    def _on_written(self, new: NewJournal, since: int) -> None:
        if self._is_over:
            self._session.messenger.run_beside(new.drop)
            return
        if self._journal.size_bytes - since > _SMALL_BYTES:  # much has happened since
            self._session.messenger.run_beside(self._follow, new, since)
            return
        try:
            self._journal.finish(new, since)
        except OSError as error:
            self._on_not_written(error)
        else:
            self._is_writing = False
            self._growth.succeed(self._journal.snapshot_bytes)


def _record_of(server: ChannelServer) -> ServerRecord:
    """Return what a server knows besides its queues, between two turns."""
    leases, ends = server.find(LeasesFeature), server.find(EndsFeature)
    since = None if ends is None else ends.since
    return ServerRecord(
        server.feature(ProducersFeature).producers.copy(),
        {} if leases is None else leases.dues,
        None if since is None else [(*delivery, began) for delivery, began in since.items()],
        {client: (known.endpoint, known.name) for client, known in server.clients.items()},
    )


def _resume(server: ChannelServer, snapshot: LoadedSnapshot) -> None:
    """Let a server that is new go on with what another one knew."""
    producers, dues, since, clients = snapshot.server
    server.state.restore(snapshot.state, snapshot.items)
    server.clients |= {client: KnownClient(client, *about) for client, about in clients.items()}
    server.feature(LeasesFeature).resume(dues)
    server.feature(ProducersFeature).resume(producers)
    server.feature(SubscriptionsFeature).resume()
    if since is not None:
        server.feature(EndsFeature).begin({(client, ticket): began for client, ticket, began in since})
    server.carry_out(ripening(server.state.queues))
