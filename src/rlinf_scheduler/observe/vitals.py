"""What each process measures of itself when the job is looked at, as data: cheap, and without stacks."""

from __future__ import annotations

import msgspec

from rlinf_scheduler.observe.notes import RunningCall
from rlinf_scheduler.observe.status import WORKERS
from rlinf_scheduler.queueing import ChannelStats

# Of the calls that run in a process, so many are told of.
MAX_CALLS = 32


class DeviceMemory(msgspec.Struct, frozen=True, array_like=True):
    """Memory of one device that a process has initialised, all in bytes.

    Attributes:
        index: the device's number on its node; of a process that is no rank, among those that it sees.
        reserved_bytes: what this process's PyTorch has reserved.
        used_bytes: what all processes use.
        total_bytes: how much there is.
    """

    index: int
    reserved_bytes: int
    used_bytes: int
    total_bytes: int


class PublishedVersion(msgspec.Struct, frozen=True, array_like=True):
    """Weights that a process publishes: their name, the newest version, -1 for none, and its size in bytes."""

    name: str
    version: int
    size_bytes: int


class Vitals(msgspec.Struct, frozen=True, array_like=True):
    """What a process measures of itself.

    Attributes:
        process: its name, e.g. "rollout:1".
        pid: its number on its node.
        host: the node's name.
        clock_s: when this was, on the process's own monotonic clock.
        cpu_s: processor time that it has used, in seconds.
        rss_bytes: memory that it has, shared memory included.
        device_memory: of the devices that its PyTorch has initialised, as of a moment ago.
        takes_calls: whether it is a rank, which runs calls.
        is_starting: whether it is a rank that is not ready yet.
        method: the call that runs: of several the one that runs longest, of those that wait for nothing if there are
            any. "" if none does.
        method_since_s: for how long, in seconds.
        calls_queued: calls that it has got and not begun.
        wait: what that call waits for in this library, or without any, the process's main thread; "" for nothing.
        wait_since_s: for how long, in seconds.
        kind: what its group is to the job; see `GroupStatus`.
        node_rank: its node; -1 where it does not know.
        devices: the accelerators that it sees, by their numbers on its node.
        num_restarts: how many processes had its place before.
        channels: that it holds.
        weights: that it publishes.
        fetched: the newest version of weights that it has fetched, by name.
        calls: those that run, the first one first; at most `MAX_CALLS`.
    """

    process: str
    pid: int
    host: str
    clock_s: float
    cpu_s: float = 0.0
    rss_bytes: int = 0
    device_memory: tuple[DeviceMemory, ...] = ()
    takes_calls: bool = False
    is_starting: bool = False
    method: str = ""
    method_since_s: float = 0.0
    calls_queued: int = 0
    wait: str = ""
    wait_since_s: float = 0.0
    kind: str = WORKERS
    node_rank: int = -1
    devices: tuple[int, ...] = ()
    num_restarts: int = 0
    channels: tuple[ChannelStats, ...] = ()
    weights: tuple[PublishedVersion, ...] = ()
    fetched: dict[str, int] = {}
    calls: tuple[RunningCall, ...] = ()
