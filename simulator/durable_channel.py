"""A durable channel of the product: its process dies, alone or with its machine, and another one reads its journal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec

from rlinf_scheduler.channel.connection import ChannelConnection
from rlinf_scheduler.channel.opening import ChannelOpening
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.durable import durable_channel, opening
from rlinf_scheduler.durable.durable_channel import DurableChannel
from rlinf_scheduler.durable.journal import NewJournal
from rlinf_scheduler.durable.journal_records import JournaledCommit
from rlinf_scheduler.durable.journaled import WriteAheadRuntime
from simulator.cluster import Cluster
from simulator.disk import SimulatedDisk
from simulator.host import Host
from simulator.processes import replaced
from simulator.product import ProductPart, StorySpec
from simulator.script import Script
from simulator.watched import Names
from simulator.world import Violation, World

FOLDER = "/channels/durable"
# So many turns of a story are followed by a snapshot.
SNAPSHOT_SHARES = (0.0, 0.05, 0.3, 0.6)
# The I/O thread comes so late to a snapshot that is written.
LATE_S = 0.02
# A timer may ring so early by another clock.
EARLY_US = 1_000
# A process whose channel has stopped ends, and the channel is created again after so long.
ENDS_US = 1_000_000
# How often its disk fails.
FAILURES = (0, 0, 0, 0, 0, 0, 1, 2)


class _Silence:
    """What hears nothing."""

    def __getattr__(self, _name: str) -> Any:
        return self

    def __call__(self, *_args: Any, **_options: Any) -> Any:
        return None


class Telling:
    """What a server tells the books: not what it is told again, which they have heard already.

    Attributes:
        is_again: it is told something again.
        now: the channel's own clock.
    """

    def __init__(self, world: World, names: Names) -> None:
        self.is_again = False
        self.now: Callable[[], float] = lambda: 0.0
        self._world = world
        self._names = names

    def books(self, books: Any) -> Any:
        """Return books that hear what is not told again."""
        return _Books(self, books)

    @property
    def now_us(self) -> int:
        """The time of the channel."""
        return round(self.now() * 1e6)

    @property
    def latest_us(self) -> int:
        """The same, where it may have been early."""
        return self.now_us + EARLY_US

    def note(self, *what: Any) -> None:
        """Write into the history."""
        if not self.is_again:
            self._world.note(*what)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._names, name)


class _Books:
    def __init__(self, telling: Telling, books: Any) -> None:
        self._telling = telling
        self._books = books

    def __getattr__(self, name: str) -> Any:
        return getattr(_Silence() if self._telling.is_again else self._books, name)


class _Runtime(WriteAheadRuntime):
    """What stands around the server of a story."""

    part: DurableChannelPart

    def _apply(self, commit: JournaledCommit, frames: list[Buffer], heads: Any) -> None:
        written = msgspec.msgpack.encode(commit)
        telling = self.part.telling
        telling.is_again = written in self.part.applied
        if not telling.is_again and not self._live:
            self.part.cluster.world.note(self._messenger.name, "was not told", len(commit.records))
        super()._apply(commit, frames, heads)
        telling.is_again = False
        self.part.applied.add(written)


class _Channel(DurableChannel):
    """The channel of a story, in one process."""

    part: DurableChannelPart

    def __init__(self, *args: Any) -> None:
        with replaced(durable_channel, "WriteAheadRuntime", self.part.runtime_type):
            super().__init__(*args)
        self.part.telling.now = self._runtime.now

    def begin(self, *args: Any) -> None:
        with self.part.watched():
            super().begin(*args)

    def go_live(self) -> None:
        # Who looks at a process looks again and again: no world with that comes to rest.
        with replaced(durable_channel, "watch_channel", lambda *_about: lambda: None):
            super().go_live()

    def _on_commit(self) -> None:
        super()._on_commit()
        if self.part.draw.random() < self.part.snapshot_share:
            self.part.cluster.world.note(self._session.name, "takes a snapshot")
            self.write_whole()

    def _follow(self, new: NewJournal, since: int) -> None:
        # Others go on while a thread writes, also from one of its steps to the next.
        self._session.messenger.run_beside(super()._follow, new, since)

    def _on_written(self, new: NewJournal, since: int) -> None:
        late_s = LATE_S * self.part.draw.random()
        self._session.messenger.call_later(late_s, partial(super()._on_written, new, since))


class _Opening(opening.DurableOpening):
    part: DurableChannelPart

    def _begin(self, *args: Any) -> None:
        with replaced(opening, "DurableChannel", self.part.channel_type):
            super()._begin(*args)


class DurableChannelPart(ProductPart):
    """One durable channel of the product, and a client in every process.

    Attributes:
        telling: what its server tells the books.
        applied: the turns that have happened, as they are written.
        draw: decides when a snapshot is taken.
        snapshot_share: of the turns, after which one is.
    """

    def __init__(self, cluster: Cluster, script: Script) -> None:
        self.applied: set[bytes] = set()
        self.draw = cluster.world.randomness("journal")
        self.snapshot_share = self.draw.choice(SNAPSHOT_SHARES)
        self.telling = Telling(cluster.world, cluster.processes.names)
        self.runtime_type = type("_Runtime", (_Runtime,), {"part": self})
        self.channel_type = type("_Channel", (_Channel,), {"part": self})
        self._opening_type = type("_Opening", (_Opening,), {"part": self})
        self._gone_since_us: int | None = 0
        self._gone_us = 0
        super().__init__(cluster, script)
        length_us = script.steps[-1].at_us if script.steps else 0
        for _ in range(self.draw.choice(FAILURES)):
            cluster.world.schedule(self.draw.randint(0, length_us), None, self._fail_disk)

    # -- the process that holds the channel ----------------------------------------------------------

    def _make_spec(self, **options: Any) -> StorySpec:
        return super()._make_spec(durable=FOLDER, survives=self.script.survives, **options)

    def _told(self) -> tuple[Any, Any, Any, Any]:
        telling = self.telling
        return telling, telling.books(self.ledger), telling.books(self.places), telling

    def _start_server(self) -> None:
        """Have the process that is to hold the channel read its journal."""
        process = self._server_process
        stopped = partial(self._on_stopped, process.host)
        begun = ChannelOpening(process.session, self._spec, on_stopped=stopped)
        begun.opened.add_done_callback(partial(self._on_opened, process.host))
        process.messenger.submit(lambda: process.messenger.run_beside(self._read, begun))

    def _read(self, begun: ChannelOpening) -> None:
        with replaced(opening, "DurableOpening", self._opening_type):
            begun.read()

    def restarted(self) -> None:
        """Another process holds now what the one that died has held."""
        self._start_server()

    def _on_opened(self, host: Host, opened: Promise[Any]) -> None:
        error = opened.exception(0)
        disk = self._disk_of(host)
        if error is not None and disk.has_failed:
            self.cluster.fail_over(host, ENDS_US)
            return
        if error is not None:
            raise Violation(
                f"{host.name} does not come to hold the channel: {error}", (host.name,)
            ) from error
        world = self.cluster.world
        world.note(host.name, "holds the channel")
        self.ledger.follow([], self._known_state, world.now_us)
        self._gone_us += world.now_us - (self._gone_since_us or 0)
        self._gone_since_us = None

    def _disk_of(self, host: Host) -> SimulatedDisk:
        return self.cluster.processes.kernel.disks[host.name]

    def _fail_disk(self) -> None:
        if self.cluster.channel_host.alive:
            self._disk_of(self.cluster.channel_host).fails = True

    def _on_stopped(self, host: Host) -> None:
        """Its disk has failed: it is created again once that is mended."""
        if host.alive:
            self.cluster.world.note(host.name, "does not hold the channel any more")
            host.later(self.draw.randrange(ENDS_US), self.cluster.fail_over, host, ENDS_US)

    def died(self, host: Host) -> None:
        """A process has died."""
        super().died(host)
        if host is self.cluster.channel_host and self._gone_since_us is None:
            self._gone_since_us = self.cluster.world.now_us

    def finish(self) -> Iterator[None]:
        """End the story and check it; the world comes to rest before the first step, and after each."""
        self._disk_of(self.cluster.channel_host).fails = False
        yield from super().finish()

    # -- what users see of it ------------------------------------------------------------------------

    @property
    def _own(self) -> ChannelConnection:
        return self._connection(self.cluster.processes.of(self.cluster.hosts["home"]))

    @property
    def _now_us(self) -> int:
        return self.telling.now_us

    def _hindered_us(self, host: Host) -> int:
        """How long a process and the servers could not do or say anything, all in all."""
        since_us = self._gone_since_us
        gone_us = self._gone_us + (0 if since_us is None else self.cluster.world.now_us - since_us)
        unreachable_us = self.cluster.network.unreachable_us
        servers = [each for name, each in self.cluster.hosts.items() if name.startswith("server")]
        return (
            host.paused_us
            + gone_us
            + sum(each.paused_us for each in servers)
            + sum(unreachable_us.get(frozenset((host.name, each.name)), 0) for each in servers)
        )
