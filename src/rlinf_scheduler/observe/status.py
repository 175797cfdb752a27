"""What a job does at one moment: its nodes, ranks, channels, weights and last events, as data. Pure.

The terminal view, the page and the metrics are three renderings of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from rlinf_scheduler.addresses import parent_name
from rlinf_scheduler.observe.process_stats import IDLE_RANK, WORKERS, GoneProcess

# So many events are told of, and of each channel so many queues and operations that wait.
MAX_EVENTS, MAX_QUEUES, NUM_WAITING = 200, 16, 8


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """One accelerator.

    Attributes:
        index: its number on its node.
        kind: what it is, e.g. "NVIDIA H200".
        uuid: its vendor's name of it; "" where that is not known.
        holders: the ranks that see it.
        memory_used_bytes: what all processes use of its memory; None where no rank has initialised it.
        memory_total_bytes: how much it has; None likewise.
    """

    index: int
    kind: str
    uuid: str = ""
    holders: tuple[str, ...] = ()
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One machine.

    Attributes:
        rank: its number in the job.
        node_id: Ray's name of it.
        ip: its address in the cluster.
        state: "alive", "unresponsive", "draining" or "lost".
        detail: why it is not alive; "" while it is.
        devices: its accelerators.
    """

    rank: int
    node_id: str
    ip: str
    state: str = "alive"
    detail: str = ""
    devices: tuple[DeviceStatus, ...] = ()


@dataclass(frozen=True, slots=True)
class CallStatus:
    """A call that runs.

    Attributes:
        method: what was called.
        since_s: for how long it runs, in seconds.
        caller: the process that called it.
        wait: what it waits for in this library; "" for nothing.
        wait_since_s: for how long, in seconds.
    """

    method: str
    since_s: float
    caller: str = ""
    wait: str = ""
    wait_since_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RankStatus:
    """One process of the job.

    Attributes:
        address: its name, e.g. "rollout:1"; of a worker below that rank "rollout:1/0".
        rank: the rank's number in its group.
        node_rank: its node; -1 where that is not known.
        pid: its process id there.
        host: its node's name.
        devices: the accelerators that it sees, by their numbers on its node.
        state: "running", "idle", "waiting", "unresponsive", "lost" or "starting".
        detail: why it is unresponsive or lost; "" otherwise.
        silent_s: for how long nothing was heard of one that is unresponsive or lost, in seconds.
        method: the call that runs: the first of several, of those that wait for nothing if there are any. "" if none.
        method_since_s: for how long, in seconds.
        wait: what that call waits for in this library; "" for nothing.
        wait_since_s: for how long, in seconds.
        cpu_percent: of one core, since the look before; more than 100 where several threads compute.
        cpu_s: processor time since it began, in seconds.
        rss_bytes: memory that it has, shared memory included.
        device_memory_bytes: what its PyTorch has reserved on its devices; None where it has initialised none.
        restarts: how many processes had its place before, and died.
        calls_queued: calls that it has got and not begun.
        calls: those that run, the first one first, each with what it waits for itself; at most 32.
        items_per_s: items put into, and got from, the channels that it holds, per second, since the look before.
        pulled_bytes: what it has pulled from other machines (`RLINF_PULL`).
        not_pulled: why the last piece of an object was not; "" for nothing.
    """

    address: str
    rank: int
    node_rank: int = -1
    pid: int = 0
    host: str = ""
    devices: tuple[int, ...] = ()
    state: str = IDLE_RANK
    detail: str = ""
    silent_s: float = 0.0
    method: str = ""
    method_since_s: float = 0.0
    wait: str = ""
    wait_since_s: float = 0.0
    cpu_percent: float = 0.0
    cpu_s: float = 0.0
    rss_bytes: int = 0
    device_memory_bytes: int | None = None
    restarts: int = 0
    calls_queued: int = 0
    calls: tuple[CallStatus, ...] = ()
    items_per_s: float = 0.0
    pulled_bytes: int = 0
    not_pulled: str = ""

    @property
    def is_below(self) -> bool:
        """Whether it is no rank, but a worker below that one."""
        return bool(parent_name(self.address))


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """The processes of one group.

    Attributes:
        name: the group's; "driver" of the driver alone.
        ranks: in the order of their numbers.
        kind: "workers"; "channels" of processes that only hold channels; "driver".
    """

    name: str
    ranks: tuple[RankStatus, ...]
    kind: str = WORKERS


@dataclass(frozen=True, slots=True)
class WaitingOperation:
    """An operation that waits at a channel: whose, at which queue, what, and for how long, in seconds."""

    process: str
    queue: str
    operation: str
    since_s: float


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """One queue: its name as `repr` writes it, its items, and the age of the one that comes next, in seconds."""

    name: str
    depth: int
    oldest_age_s: float | None = None


@dataclass(frozen=True, slots=True)
class ChannelStatus:
    """One channel.

    Attributes:
        held_by: the process that holds it; "" if nobody does now.
        node_rank: that process's node; -1 where that is not known.
        depth: the items that getters can take, of all queues.
        bytes: what it holds, leased items included.
        max: its bounds in words, e.g. "8 items, 5.9 GiB"; "" without.
        puts_per_s: items accepted per second, since the look before.
        gets_per_s: items delivered per second, likewise; those that come back count again.
        bytes_per_s: bytes accepted per second, likewise.
        num_put: items accepted since it was created.
        num_got: items delivered since its present process holds it.
        bytes_put: bytes accepted since it was created.
        oldest_age_s: how long the item has been there that has waited longest to be taken; None without one.
        leased: items on lease.
        putters: how many items each process puts per second.
        getters: how many each gets per second.
        waiting: operations that wait, the longest first.
        queues: those with most items.
        num_queues: how many there are.
    """

    name: str
    held_by: str
    node_rank: int = -1
    depth: int = 0
    bytes: int = 0
    max: str = ""
    puts_per_s: float = 0.0
    gets_per_s: float = 0.0
    bytes_per_s: float = 0.0
    num_put: int = 0
    num_got: int = 0
    bytes_put: int = 0
    oldest_age_s: float | None = None
    leased: int = 0
    putters: dict[str, float] = field(default_factory=dict)
    getters: dict[str, float] = field(default_factory=dict)
    waiting: tuple[WaitingOperation, ...] = ()
    queues: tuple[QueueStatus, ...] = ()
    num_queues: int = 0


@dataclass(frozen=True, slots=True)
class WeightsStatus:
    """Weights that a process publishes.

    Attributes:
        name: what they are called.
        version: the newest; -1 where there is none yet.
        publisher: the process that publishes them; "" where only readers are left.
        bytes: the size of the newest version.
        readers: the newest version that each process has fetched.
        lag: by how much the reader that is farthest behind is behind the newest version; 0 without readers.
        read_bytes: how much all readers have read last, by which way: "device", "node" or "network".
        copies: how many have come to other machines as "delta", or as a whole, by the reason.
        delta_bytes: how large the last deltas were, of all publishers.
    """

    name: str
    version: int
    publisher: str
    bytes: int = 0
    readers: dict[str, int] = field(default_factory=dict)
    lag: int = 0
    read_bytes: dict[str, int] = field(default_factory=dict)
    copies: dict[str, int] = field(default_factory=dict)
    delta_bytes: int = 0


@dataclass(frozen=True, slots=True)
class EventRecord:
    """An event of the job.

    Attributes:
        at_s: when it happened, in seconds since 1970.
        kind: its class, e.g. "WorkerLost".
        text: it in words.
        level: "info", "warning" or "error".
    """

    at_s: float
    kind: str
    text: str
    level: str = "info"


@dataclass(frozen=True, slots=True)
class SilentProcess:
    """A process that did not answer: its state and what the kernel says of it, and since when, in seconds."""

    address: str
    pid: int
    state: str
    detail: str = ""
    silent_s: float = 0.0


@dataclass(frozen=True, slots=True)
class JobStatus:
    """What a job does: `cluster.status()`.

    Attributes:
        at_s: when it was looked at, in seconds since 1970.
        job: its name: what its driver runs.
        driver_pid: its driver's process id.
        home: the process that keeps the job's directory, mostly "driver".
        took_s: how long it took to ask all processes, in seconds.
        nodes: in the order of their ranks.
        groups: the driver, then groups of workers by name, then channels' processes.
        channels: by name.
        weights: by name.
        events: the last ones, the newest last.
        event_counts: how many there were of each class, by its name, since the job began; lines are not counted.
        silent: the processes that did not answer.
        gone: those that are gone, the last ones.
    """

    at_s: float
    job: str
    driver_pid: int
    home: str = "driver"
    took_s: float = 0.0
    nodes: tuple[NodeStatus, ...] = ()
    groups: tuple[GroupStatus, ...] = ()
    channels: tuple[ChannelStatus, ...] = ()
    weights: tuple[WeightsStatus, ...] = ()
    events: tuple[EventRecord, ...] = ()
    event_counts: dict[str, int] = field(default_factory=dict)
    silent: tuple[SilentProcess, ...] = ()
    gone: tuple[GoneProcess, ...] = ()

    @property
    def ranks(self) -> tuple[RankStatus, ...]:
        """All processes of the job."""
        return tuple(rank for group in self.groups for rank in group.ranks)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        data: dict[str, Any] = msgspec.to_builtins(self)
        return data
