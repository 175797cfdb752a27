"""What processes say of themselves when the job asks what they are at, as data."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.pull.records import PullStats
from rlinf_scheduler.comm.waits import Wait
from rlinf_scheduler.queueing.stats import ChannelStats

# States of a rank.
RUNNING, IDLE_RANK, WAITING, UNRESPONSIVE, LOST, STARTING = (
    "running",
    "idle",
    "waiting",
    "unresponsive",
    "lost",
    "starting",
)
# What the processes of a group are to the job.
WORKERS, CHANNEL_PROCESSES, DRIVERS = "workers", "channels", "driver"
# Of the calls that run in a process, so many are told of.
MAX_CALLS = 32


@dataclass(frozen=True, slots=True)
class GoneProcess:
    """A process that was part of the job and is gone: why, and how long ago, in seconds."""

    address: str
    reason: str
    ago_s: float


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """A line of a stack.

    Attributes:
        calls: what is called there, e.g. "time.sleep", as far as the bytecode tells; "" where it was not asked.
        is_own: whether it belongs to this library.
        is_library: whether it belongs to Python's library or to an installed package, this one included.
    """

    file: str
    line: int
    function: str
    calls: str = ""
    is_own: bool = False
    is_library: bool = False


class Stack(msgspec.Struct, frozen=True, array_like=True):
    """What one thread, or one task of an event loop, is at.

    Attributes:
        name: the thread's, e.g. "MainThread"; of a task, "task".
        wait: what it waits for in this library; None where it waits for nothing there.
        same_for_s: for how long it was seen at the same line, in seconds; 0 where nobody looked before.
        still_for_s: for how long of that the kernel has not let it run: it is in one call that has not returned.
        thread: the thread's number in its process; of a task, its loop's.
    """

    name: str
    frames: tuple[Frame, ...]
    wait: Wait | None = None
    same_for_s: float = 0.0
    still_for_s: float = 0.0
    thread: int = 0


class RunningCall(msgspec.Struct, frozen=True, array_like=True):
    """A call that a rank has got and not answered.

    Attributes:
        since_s: for how long it runs, in seconds; None: it waits for its turn.
        thread: the number of the thread that runs it; of an `async def` method, its event loop's.
        wait: what it waits for in this library or in a collective, where that was looked at.
    """

    method: str
    since_s: float | None
    caller: str
    thread: int = 0
    wait: Wait | None = None


class DeviceMemory(msgspec.Struct, frozen=True, array_like=True):
    """Memory of one device that a process has initialised, all in bytes.

    Attributes:
        index: the device's number on its node; of a process that is no rank, among those that it sees.
        reserved_bytes: what this process's PyTorch has reserved.
    """

    index: int
    reserved_bytes: int
    used_bytes: int
    total_bytes: int


class PublishedVersion(msgspec.Struct, frozen=True, array_like=True):
    """Weights that a process publishes: their name, the newest version, -1 for none, and its size in bytes.

    Attributes:
        copies: how many copies have come to other machines as "delta", or as a whole, by the reason.
        delta_bytes: how large the last delta was.
    """

    name: str
    version: int
    size_bytes: int
    copies: dict[str, int] = {}
    delta_bytes: int = 0


class ProcessStats(msgspec.Struct, frozen=True, array_like=True):
    """What a process measures of itself.

    Attributes:
        process: its name, e.g. "rollout:1".
        clock_s: when this was, on the process's own monotonic clock.
        device_memory: of the devices that its PyTorch has initialised, as of a moment ago.
        takes_calls: whether it is a rank, which runs calls.
        is_starting: whether it is a rank that is not ready yet.
        method: the call that runs: of several the one that runs longest, of those that wait for nothing if there are
            any. "" if none does.
        calls_queued: calls that it has got and not begun.
        wait: what that call waits for in this library, or without any, the process's main thread; "" for nothing.
        kind: what its group is to the job; see `GroupStatus`.
        node_rank: its node; -1 where it does not know.
        devices: the accelerators that it sees, by their numbers on its node.
        fetched: the newest version of weights that it has fetched, by name,
        read_bytes: and how many bytes of that came by which way.
        calls: those that run, the first one first; at most `MAX_CALLS`.
        pulls: what it has pulled from other machines.
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
    read_bytes: dict[str, dict[str, int]] = {}
    calls: tuple[RunningCall, ...] = ()
    pulls: PullStats = PullStats()


class TurnNote(msgspec.Struct, frozen=True, array_like=True):
    """A rank that has devices alone, or waits for them, or for ranks that are to have theirs together with it."""

    process: str
    devices: tuple[str, ...]
    since_s: float
    granted: bool
    missing: tuple[str, ...] = ()


class LinkNote(msgspec.Struct, frozen=True, array_like=True):
    """Something that is on its way to a process over an emulated link.

    Attributes:
        source: the process that has sent it.
        kind: of the waits that end when it is there, as of `Wait`.
        bytes_per_s: the most that the link carries; 0 where nothing limits it.
        left_s: when it is there, in seconds from now; None: it waits for its turn on the link.
    """

    source: str
    kind: str
    size_bytes: int
    bytes_per_s: float
    left_s: float | None


class Activity(msgspec.Struct, frozen=True, array_like=True):
    """What a process is at.

    Attributes:
        calls: that it has got and not answered, the first one first; None of a process that takes none.
        stacks: of its threads, its main thread first, and of tasks that run calls; not of this library's own threads.
        weights: that it publishes: the name and the newest version.
        turns: on devices, of the job's home.
        links: what is on its way there over emulated links.
        failures: ranks that have failed in calls of this process which has not taken that yet, in words.
    """

    process: str
    pid: int
    host: str
    calls: tuple[RunningCall, ...] | None = None
    stacks: tuple[Stack, ...] = ()
    channels: tuple[ChannelStats, ...] = ()
    weights: dict[str, int] = {}
    turns: tuple[TurnNote, ...] = ()
    links: tuple[LinkNote, ...] = ()
    failures: tuple[str, ...] = ()


class Enlist(msgspec.Struct, frozen=True, array_like=True):
    """A process takes part in the job, and this is how it is looked at from outside when it does not answer.

    Attributes:
        born: when it began, as the kernel counts it.
        stack_signal: a signal that makes it write its stacks, whatever it is at; 0: none does.
    """

    endpoint: Endpoint
    pid: int
    born: int
    stack_signal: int = 0


class Silent(msgspec.Struct, frozen=True, array_like=True):
    """A process that does not answer, as seen from outside.

    Attributes:
        state: "stopped", "gone", "stuck": it runs or sleeps, and something keeps its interpreter; "unknown": nobody on
            its machine could look, or it is cut off.
        detail: what the kernel says of it, a phrase.
        silent_s: for how long nothing was heard of it, in seconds; 0 where that is not known.
        process_id: its id in the job, by which others call it that are not connected with it yet; "" where not known.
    """

    process: str
    pid: int
    state: str
    detail: str = ""
    silent_s: float = 0.0
    stacks: tuple[Stack, ...] = ()
    process_id: str = ""


class JobActivity(msgspec.Struct, frozen=True, array_like=True):
    """What all processes of a job are at."""

    doing: tuple[Activity, ...] = ()
    silent: tuple[Silent, ...] = ()
    gone: tuple[GoneProcess, ...] = ()
    took_s: float = 0.0
