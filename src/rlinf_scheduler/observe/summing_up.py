"""What a job does, given what its processes have measured of themselves, now and the time before. Pure."""

from __future__ import annotations

import heapq
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlinf_scheduler import events as told
from rlinf_scheduler.addresses import process_order, worker_address
from rlinf_scheduler.events import Event
from rlinf_scheduler.observe.process_stats import (
    CHANNEL_PROCESSES,
    DRIVERS,
    IDLE_RANK,
    LOST,
    RUNNING,
    STARTING,
    UNRESPONSIVE,
    WAITING,
    WORKERS,
    DeviceMemory,
    GoneProcess,
    ProcessStats,
    RunningCall,
    Silent,
)
from rlinf_scheduler.observe.status import (
    MAX_EVENTS,
    MAX_QUEUES,
    NUM_WAITING,
    CallStatus,
    ChannelStatus,
    DeviceStatus,
    EventRecord,
    GroupStatus,
    JobStatus,
    NodeStatus,
    QueueStatus,
    RankStatus,
    SilentProcess,
    WaitingOperation,
    WeightsStatus,
)
from rlinf_scheduler.planning import Node
from rlinf_scheduler.queueing.stats import ChannelStats, ChannelUser
from rlinf_scheduler.wording import counted, seconds_text, size_text

INFO, WARNING, ERROR = "info", "warning", "error"
MAX_CHANNELS = 4096
# Workers' lines have a log of their own, and a group's launch tells of its ranks.
UNTOLD = (told.WorkerLogged, told.WorkerPrinted, told.WorkerStarted)


@dataclass(frozen=True, slots=True)
class LostRank:
    """A rank that was lost: why, and when, in seconds since 1970."""

    reason: str
    at_s: float


class EventLog:
    """What has happened in a job.

    Attributes:
        lost: the ranks that were lost and have not come back, by address.
        counts: how many events there were of each class, by its name.
        nodes: the state of each node that is not well, by rank, and why it is.

    >>> log = EventLog()
    >>> log.note(told.WorkerLost("actor", 1, "killed by signal 9"), 1000.0)
    >>> log.records()[0].text, log.lost["actor:1"].reason
    ('actor:1 was lost: killed by signal 9', 'killed by signal 9')
    >>> log.note(told.WorkerReturned("actor", 1, 0, 77, 1, 2.5), 1002.5)
    >>> log.lost
    {}
    """

    def __init__(self) -> None:
        self._records: deque[EventRecord] = deque(maxlen=MAX_EVENTS)
        # The last channels that were opened; whose process is lost is told under its name, as if that were a group.
        self._channels: OrderedDict[str, None] = OrderedDict()
        self.counts: Counter[str] = Counter()
        self.lost: dict[str, LostRank] = {}
        self.nodes: dict[int, tuple[str, str]] = {}

    def note(self, event: Event, at_s: float) -> None:
        """An event has happened, at a moment in seconds since 1970."""
        self.counts[type(event).__name__] += 1
        if not isinstance(event, UNTOLD):
            level, text = told_as(event)
            self._records.append(EventRecord(at_s, type(event).__name__, text, level))
        match event:
            case told.ChannelOpened(name):
                self._channels[name] = None
                if len(self._channels) > MAX_CHANNELS:
                    self._channels.popitem(last=False)
            case told.WorkerLost(group, rank, reason) if group not in self._channels:
                self.lost[f"{group}:{rank}"] = LostRank(reason, at_s)
            case told.WorkerStarted(group, rank) | told.WorkerReturned(group, rank):
                self.lost.pop(f"{group}:{rank}", None)
            case told.NodeLost(rank, _, _, reason):
                self.nodes[rank] = "lost", reason
            case told.NodeDraining(rank, _, _, reason):
                self.nodes[rank] = "draining", reason
            case told.NodeUnresponsive(rank, _, _, reason):
                self.nodes[rank] = "unresponsive", reason
            case told.NodeJoined(rank) | told.NodeResponsive(rank):
                self.nodes.pop(rank, None)

    def records(self) -> tuple[EventRecord, ...]:
        """The last events, the newest last."""
        return tuple(self._records)

    def forget_lost(self, before_s: float) -> None:
        """Ranks that were lost before a moment are not told of any more: their groups have ended, perhaps."""
        self.lost = {address: lost for address, lost in self.lost.items() if lost.at_s >= before_s}


def told_as(event: Event) -> tuple[str, str]:
    """An event's level, and it in a line."""
    level, say = _SAID.get(type(event), (INFO, repr))
    return level, say(event).partition("\n")[0]


def _of_rank(verb: str) -> Callable[[Any], str]:
    return lambda event: f"{event.group}:{event.rank} {verb}: {event.reason}"


_SAID: dict[type, tuple[str, Callable[[Any], str]]] = {
    told.NodeJoined: (
        INFO,
        lambda event: (
            f"node {event.node_rank} ({event.ip}) joined with {counted(event.num_accelerators, 'accelerator')}"
        ),
    ),
    told.NodeLost: (ERROR, lambda event: event.reason),
    told.Autoscaled: (
        INFO,
        lambda event: (
            f"'{event.group}' {'would have' if event.dry_run else 'has'} {event.after} ranks, not {event.before}: "
            f"{event.reason}"
        ),
    ),
    told.NodeDraining: (WARNING, lambda event: event.reason),
    told.JobLost: (ERROR, lambda event: f"this process leaves the job: {event.reason}"),
    told.NodeUnresponsive: (WARNING, lambda event: event.reason),
    told.NodeResponsive: (
        INFO,
        lambda event: (
            f"node {event.node_rank} ({event.ip}) answers again, after {seconds_text(event.silent_s)}"
        ),
    ),
    told.TransportFellBack: (WARNING, lambda event: event.reason),
    told.GroupLaunched: (
        INFO,
        lambda event: (
            f"{event.group}: {counted(event.num_workers, 'rank')} launched in {seconds_text(event.took_s)}"
        ),
    ),
    told.GroupResized: (
        INFO,
        lambda event: (
            f"{event.group}: {event.why}: {counted(len(event.new_ranks), 'rank')} after {len(event.old_ranks)}"
        ),
    ),
    told.RankDrained: (
        INFO,
        lambda event: (
            f"{event.group}:{event.rank} has left after {seconds_text(event.took_s)}"
            f"{', by force' if event.forced else ''}"
        ),
    ),
    told.WorkerLost: (ERROR, _of_rank("was lost")),
    told.WorkerReturned: (
        INFO,
        lambda event: (
            f"{event.group}:{event.rank} is back after {seconds_text(event.after_s)}, on node {event.node_rank}"
        ),
    ),
    told.WorkerGivenUp: (ERROR, _of_rank("does not come back")),
    told.WorkerUnresponsive: (WARNING, _of_rank("is unresponsive")),
    told.WorkerResponsive: (
        INFO,
        lambda event: f"{event.group}:{event.rank} answers again, after {seconds_text(event.silent_s)}",
    ),
    told.ChildJoined: (INFO, lambda event: f"{event.address} joined, process {event.pid}"),
    told.ChildLeft: (INFO, lambda event: f"{event.address} left"),
    told.ChildLost: (ERROR, lambda event: f"{event.address} was lost: {event.reason}"),
    told.ChannelOpened: (INFO, lambda event: f"channel '{event.name}' is open, held by {event.process}"),
    told.ChannelRestored: (
        WARNING,
        lambda event: (
            f"channel '{event.name}' is held by {event.process} now, "
            f"after {seconds_text(event.after_s)} without a process"
        ),
    ),
    told.Stalled: (
        WARNING,
        lambda event: (
            f"{event.group or event.channel}: {event.operation} takes {seconds_text(event.waited_s)}"
        ),
    ),
}


_ORDER_OF_KINDS = {DRIVERS: 0, WORKERS: 1, CHANNEL_PROCESSES: 2}


@dataclass(frozen=True, slots=True)
class JobStats:
    """One look at all processes of a job.

    Attributes:
        at_s: when, in seconds since 1970.
        stats: of those that answered, by name.
    """

    at_s: float
    stats: Mapping[str, ProcessStats] = field(default_factory=dict)
    silent: tuple[Silent, ...] = ()
    gone: tuple[GoneProcess, ...] = ()
    took_s: float = 0.0


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What is known of a job besides.

    Attributes:
        job: what its driver runs.
        home: the process that keeps the job's directory.
        ailing_nodes: the state of each node that is not well, by rank, and why.
        lost: the ranks that were lost, by address.
        events: the last ones, the newest last.
        event_counts: how many there were of each class, by its name.
        earlier: of processes that answered before, what they said last and when, in seconds since 1970.
    """

    job: str = ""
    driver_pid: int = 0
    home: str = "driver"
    nodes: tuple[Node, ...] = ()
    ailing_nodes: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    lost: Mapping[str, LostRank] = field(default_factory=dict)
    events: tuple[EventRecord, ...] = ()
    event_counts: Mapping[str, int] = field(default_factory=dict)
    earlier: Mapping[str, tuple[ProcessStats, float]] = field(default_factory=dict)


def status_of(look: JobStats, before: JobStats | None, facts: JobFacts) -> JobStatus:
    """What a job does.

    Args:
        look: at it.
        before: an earlier one, which rates are from; None: they are 0.
        facts: what is known besides.
    """
    earlier: Mapping[str, ProcessStats] = {} if before is None else before.stats
    ranks = [*_answering(look, earlier), *_unresponsive(look, facts), *_lost(look, facts)]
    return JobStatus(
        at_s=look.at_s,
        job=facts.job,
        driver_pid=facts.driver_pid,
        home=facts.home,
        took_s=look.took_s,
        nodes=tuple(_nodes(facts, look.stats.values(), [rank for _, rank in ranks])),
        groups=_groups(ranks),
        channels=_channels(look.stats.values(), earlier),
        weights=_weights(look.stats.values()),
        events=facts.events,
        event_counts=dict(facts.event_counts),
        silent=tuple(
            SilentProcess(each.process, each.pid, each.state, each.detail, each.silent_s)
            for each in look.silent
        ),
        gone=look.gone,
    )


# -- ranks -------------------------------------------------------------------------------------------


def _answering(look: JobStats, earlier: Mapping[str, ProcessStats]) -> Iterator[tuple[str, RankStatus]]:
    for name, stats in look.stats.items():
        memory = [each.reserved_bytes for each in stats.device_memory]
        yield (
            stats.kind,
            RankStatus(
                name,
                rank_of(name),
                stats.node_rank,
                stats.pid,
                stats.host,
                stats.devices,
                state_of(stats, earlier.get(name)),
                method=stats.method,
                method_since_s=stats.method_since_s,
                wait=stats.wait,
                wait_since_s=stats.wait_since_s,
                cpu_percent=_cpu_percent(stats, earlier.get(name)),
                cpu_s=stats.cpu_s,
                rss_bytes=stats.rss_bytes,
                device_memory_bytes=sum(memory) if memory else None,
                restarts=stats.num_restarts,
                calls_queued=stats.calls_queued,
                calls=tuple(map(_call, stats.calls)),
                items_per_s=_items_per_s(stats, earlier.get(name)),
                pulled_bytes=stats.pulls.size_bytes,
                not_pulled=stats.pulls.why,
            ),
        )


def state_of(stats: ProcessStats, before: ProcessStats | None) -> str:
    """What a process that answers is at, in a word, given what it said before."""
    if stats.is_starting:
        return STARTING
    if stats.wait:
        return WAITING
    is_at_work = stats.method or not stats.takes_calls or _items_per_s(stats, before) > 0
    return RUNNING if is_at_work else IDLE_RANK


def _call(call: RunningCall) -> CallStatus:
    wait, since_s = ("", 0.0) if call.wait is None else (call.wait.operation, call.wait.since_s)
    return CallStatus(call.method, call.since_s or 0.0, call.caller, wait, since_s)


def _items_per_s(stats: ProcessStats, before: ProcessStats | None) -> float:
    """How many items go through the channels that a process holds."""
    span_s = _span_s(stats, before)
    if before is None or not span_s:
        return 0.0
    old = {each.name: each for each in before.channels}
    pairs = ((each, old.get(each.name, each)) for each in stats.channels)
    moved = (
        max(0, now.num_puts - then.num_puts) + max(0, now.num_delivered - then.num_delivered)
        for now, then in pairs
    )
    return sum(moved) / span_s


def _cpu_percent(stats: ProcessStats, before: ProcessStats | None) -> float:
    span_s = _span_s(stats, before)
    return 0.0 if before is None or not span_s else 100 * max(0.0, stats.cpu_s - before.cpu_s) / span_s


def _span_s(stats: ProcessStats, before: ProcessStats | None) -> float:
    """How much later a process said one thing than another, in seconds; 0 if it is not the same process."""
    if before is None or before.pid != stats.pid or before.host != stats.host:
        return 0.0
    return max(0.0, stats.clock_s - before.clock_s)


def _unresponsive(look: JobStats, facts: JobFacts) -> Iterator[tuple[str, RankStatus]]:
    for silent in look.silent:
        name = silent.process
        if silent.state == "gone" or name in facts.lost or name in look.stats:
            continue
        known, answered_s = facts.earlier.get(name, (ProcessStats(name, silent.pid, "", 0.0), look.at_s))
        silent_s = max(silent.silent_s, look.at_s - answered_s)
        yield _away(known, UNRESPONSIVE, silent.detail, silent_s)


def _lost(look: JobStats, facts: JobFacts) -> Iterator[tuple[str, RankStatus]]:
    for name, lost in facts.lost.items():
        if name not in look.stats:
            known, _ = facts.earlier.get(name, (ProcessStats(name, 0, "", 0.0), 0.0))
            yield _away(known, LOST, lost.reason, max(0.0, look.at_s - lost.at_s))


def _away(known: ProcessStats, state: str, detail: str, silent_s: float) -> tuple[str, RankStatus]:
    rank = RankStatus(
        known.process,
        rank_of(known.process),
        known.node_rank,
        known.pid,
        known.host,
        known.devices,
        state,
        detail,
        silent_s,
        known.method,
        cpu_s=known.cpu_s,
        restarts=known.num_restarts,
    )
    return known.kind, rank


def group_of(name: str) -> str:
    """Which group a process belongs to.

    >>> group_of("rollout:1"), group_of("rollout:1/0"), group_of("driver")
    ('rollout', 'rollout', 'driver')
    """
    address = worker_address(name)
    return name if address is None else address.group


def rank_of(name: str) -> int:
    """A process's number in its group, or that of the rank below which it is; 0 of one that is in none."""
    address = worker_address(name)
    return 0 if address is None else address.path[0]


def _groups(ranks: Iterable[tuple[str, RankStatus]]) -> tuple[GroupStatus, ...]:
    found: dict[str, tuple[str, list[RankStatus]]] = {}
    for kind, rank in ranks:
        found.setdefault(group_of(rank.address), (kind, []))[1].append(rank)
    groups = (
        GroupStatus(name, tuple(sorted(members, key=lambda each: process_order(each.address))), kind)
        for name, (kind, members) in found.items()
    )
    return tuple(sorted(groups, key=lambda group: (_ORDER_OF_KINDS.get(group.kind, 1), group.name)))


# -- channels ----------------------------------------------------------------------------------------


def _channels(
    stats: Iterable[ProcessStats], earlier: Mapping[str, ProcessStats]
) -> tuple[ChannelStatus, ...]:
    found = []
    for holder in stats:
        before = earlier.get(holder.process)
        span_s = _span_s(holder, before)
        old = {each.name: each for each in before.channels} if before is not None and span_s else {}
        found += [
            _channel(holder, each, old.get(each.name, each), span_s or math.inf) for each in holder.channels
        ]
    return tuple(sorted(found, key=lambda channel: channel.name))


def _channel(holder: ProcessStats, now: ChannelStats, then: ChannelStats, span_s: float) -> ChannelStatus:
    def per_s(now: int, then: int) -> float:
        return max(0, now - then) / span_s

    def each_per_s(count: Callable[[ChannelUser], int]) -> dict[str, float]:
        old = {user.name: count(user) for user in then.users}
        new = {user.name: number for user in now.users if (number := count(user))}
        return {name: per_s(number, old.get(name, 0)) for name, number in new.items()}

    per_queue = f"{counted(now.maxsize, 'item')} a queue" if now.maxsize else ""
    waiting = [
        WaitingOperation(each.who, repr(queue.depth.name), each.operation, each.since_s)
        for queue in now.shown
        for each in queue.waiting
    ]
    largest = heapq.nlargest(MAX_QUEUES, now.shown, key=lambda queue: queue.depth.num_items)
    return ChannelStatus(
        now.name,
        holder.process,
        holder.node_rank,
        depth=now.num_items,
        bytes=now.held_bytes,
        max=", ".join(filter(None, [per_queue, size_text(now.max_bytes) if now.max_bytes else ""])),
        puts_per_s=per_s(now.num_puts, then.num_puts),
        gets_per_s=per_s(now.num_delivered, then.num_delivered),
        bytes_per_s=per_s(now.bytes_in, then.bytes_in),
        num_put=now.num_puts,
        num_got=now.num_delivered,
        bytes_put=now.bytes_in,
        oldest_age_s=now.oldest_s,
        leased=now.num_leased,
        putters=each_per_s(lambda user: user.num_put),
        getters=each_per_s(lambda user: user.num_got),
        waiting=tuple(heapq.nlargest(NUM_WAITING, waiting, key=lambda each: each.since_s)),
        queues=tuple(
            QueueStatus(repr(each.depth.name), each.depth.num_items, each.oldest_s) for each in largest
        ),
        num_queues=now.num_queues,
    )


# -- weights -----------------------------------------------------------------------------------------


def _weights(stats: Iterable[ProcessStats]) -> tuple[WeightsStatus, ...]:
    every = list(stats)
    readers: dict[str, dict[str, int]] = {}
    for process in every:
        for name, version in process.fetched.items():
            readers.setdefault(name, {})[process.process] = version
    published = {each.name: (process.process, each) for process in every for each in process.weights}
    found = []
    for name in sorted({*readers, *published}):
        publisher, newest = published.get(name, ("", None))
        version = max(readers.get(name, {}).values(), default=-1) if newest is None else newest.version
        oldest = min(readers.get(name, {}).values(), default=version)
        those = [each for process in every for each in process.weights if each.name == name]
        size_bytes = 0 if newest is None else newest.size_bytes
        found.append(
            WeightsStatus(
                name,
                version,
                publisher,
                size_bytes,
                readers.get(name, {}),
                max(0, version - oldest),
                sum((Counter(process.read_bytes.get(name)) for process in every), Counter()),
                sum((Counter(each.copies) for each in those), Counter()),
                sum(each.delta_bytes for each in those),
            )
        )
    return tuple(found)


# -- nodes -------------------------------------------------------------------------------------------


def _nodes(
    facts: JobFacts, stats: Iterable[ProcessStats], ranks: Iterable[RankStatus]
) -> Iterator[NodeStatus]:
    holders: dict[tuple[int, int], list[str]] = {}
    for rank in sorted(ranks, key=lambda each: process_order(each.address)):
        for device in rank.devices:
            holders.setdefault((rank.node_rank, device), []).append(rank.address)
    memory = {(each.node_rank, device.index): device for each in stats for device in each.device_memory}
    for number, node in enumerate(facts.nodes):
        state, detail = facts.ailing_nodes.get(number, ("alive", ""))
        devices = (_device(facts, number, index, holders, memory) for index in range(node.num_accelerators))
        yield NodeStatus(number, node.node_id, node.ip, state, detail, tuple(devices))


def _device(
    facts: JobFacts,
    node_rank: int,
    index: int,
    holders: Mapping[tuple[int, int], list[str]],
    memory: Mapping[tuple[int, int], DeviceMemory],
) -> DeviceStatus:
    node, key = facts.nodes[node_rank], (node_rank, index)
    found = memory.get(key)
    return DeviceStatus(
        index,
        node.accelerator_model or node.accelerator_type,
        node.uuids[index] if node.uuids else "",
        tuple(holders.get(key, ())),
        None if found is None else found.used_bytes,
        None if found is None else found.total_bytes,
    )
