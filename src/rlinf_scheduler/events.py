"""What happens in a job, as frozen dataclasses: logs, metrics and live views are views of these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeJoined:
    """A node of the cluster was probed."""

    node_rank: int
    node_id: str
    ip: str
    num_accelerators: int


@dataclass(frozen=True, slots=True)
class NodeLost:
    """A node is gone, and every process of the job on it; `reason` names it and says why and when."""

    node_rank: int
    node_id: str
    ip: str
    reason: str


@dataclass(frozen=True, slots=True)
class NodeDraining:
    """A node is to be given back: Ray starts nothing on it any more, and its ranks leave it in the time left.

    Attributes:
        node_rank: which,
        node_id: by Ray's name,
        ip: and its address.
        reason: the node, and until when it lasts.
        left_s: how long that is, in seconds; None: no limit was said.
    """

    node_rank: int
    node_id: str
    ip: str
    reason: str
    left_s: float | None


@dataclass(frozen=True, slots=True)
class JobLost:
    """This process has lost its job and leaves it; `reason` says what it has lost, why and when.

    Ray's head is gone, or the job server of a job that outlives its drivers; another driver has stopped that job; or
    this process was declared dead.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class NodeUnresponsive:
    """A node's raylet has not answered for `silent_s` seconds: the node is cut off, or the raylet is stopped."""

    node_rank: int
    node_id: str
    ip: str
    reason: str
    silent_s: float


@dataclass(frozen=True, slots=True)
class NodeResponsive:
    """A node's raylet answers again, after so many seconds."""

    node_rank: int
    node_id: str
    ip: str
    silent_s: float


@dataclass(frozen=True, slots=True)
class TransportFellBack:
    """A process sends to others of its machine by a slower way than it could; `reason` says to whom and why."""

    process: str
    reason: str


@dataclass(frozen=True, slots=True)
class GroupLaunched:
    """Every rank of a worker group has finished `__init__`; their seeds are derived from `seed`."""

    group: str
    num_workers: int
    took_s: float
    seed: int = 0


@dataclass(frozen=True, slots=True)
class GroupResized:
    """A group has grown or shrunk: calls go to `new_ranks` from now on.

    Attributes:
        epoch: how often it was resized.
        took_s: how long that took, in seconds.
        why: who wanted it.
    """

    group: str
    old_ranks: tuple[int, ...]
    new_ranks: tuple[int, ...]
    epoch: int
    took_s: float
    why: str


@dataclass(frozen=True, slots=True)
class RankDrained:
    """A rank has left its group; its process has ended.

    Attributes:
        took_s: how long it took to finish what it had, in seconds.
        forced: it had not finished in time, or died meanwhile.
    """

    group: str
    rank: int
    took_s: float
    forced: bool


@dataclass(frozen=True, slots=True)
class Autoscaled:
    """The policy of a group had it grow or shrink; in a dry run it would have.

    Attributes:
        before, after: how many ranks it had, and has.
        reason: why, with the figures that the policy goes by.
    """

    group: str
    before: int
    after: int
    reason: str
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class WorkerStarted:
    """One rank has finished `__init__`; `devices` are the accelerators that it sees, by UUID where that is known.

    `seed` is its `self.seed`.
    """

    group: str
    rank: int
    node_rank: int
    pid: int
    took_s: float
    devices: tuple[str, ...] = ()
    seed: int = 0


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A rank's process is gone without having been asked to stop."""

    group: str
    rank: int
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerReturned:
    """Another process has taken the place of a rank that was lost: calls go there now.

    Attributes:
        node_rank: its node.
        pid: its process's id there.
        num_restarts: how many processes had its place before.
        after_s: how long the rank was away, in seconds.
    """

    group: str
    rank: int
    node_rank: int
    pid: int
    num_restarts: int
    after_s: float


@dataclass(frozen=True, slots=True)
class WorkerGivenUp:
    """A rank, or a durable channel, that was lost does not come back, although it was to; `reason` says why."""

    group: str
    rank: int
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerUnresponsive:
    """A rank lives and has not been heard of for a while: stopped, stuck, or cut off; `reason` says which."""

    group: str
    rank: int
    reason: str
    silent_s: float


@dataclass(frozen=True, slots=True)
class WorkerResponsive:
    """A rank that was told to be unresponsive is heard of again."""

    group: str
    rank: int
    silent_s: float


@dataclass(frozen=True, slots=True)
class ChildJoined:
    """A process that a rank started has joined the job as the worker `address`, "rollout:3/0"."""

    address: str
    pid: int
    node_rank: int


@dataclass(frozen=True, slots=True)
class ChildLeft:
    """Such a process has ended in order; one that goes with its rank is not told of."""

    address: str


@dataclass(frozen=True, slots=True)
class ChildLost:
    """Such a process has died, or was declared dead, and its rank has not; its rank hears of it, too."""

    address: str
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerLogged:
    """A worker wrote a log record (`Worker.log_info` and its siblings).

    Attributes:
        group: the group's name,
        rank: and the rank in it.
        level: of `logging`.
        below: of a worker below that rank, the numbers on the way to it: "0" of "rollout:3/0"; "" of a rank.
    """

    group: str
    rank: int
    level: int
    message: str
    below: str = ""

    @property
    def address(self) -> str:
        """The worker's: "rollout:3"."""
        return f"{self.group}:{self.rank}" + (f"/{self.below}" if self.below else "")


@dataclass(frozen=True, slots=True)
class WorkerPrinted:
    """A worker's process wrote lines to its standard output or error: `stream` is "stdout" or "stderr"."""

    group: str
    rank: int
    lines: tuple[str, ...]
    stream: str = "stdout"


@dataclass(frozen=True, slots=True)
class ChannelOpened:
    """A channel is ready, in the process of that name and id."""

    name: str
    node_rank: int
    maxsize: int
    process: str
    pid: int


@dataclass(frozen=True, slots=True)
class ChannelRestored:
    """Another process holds a durable channel since its last one died, with all that was accepted.

    Attributes:
        epoch: which process this is, of those that have held it; 1 is the first.
        process: its name.
        after_s: how long nobody held the channel, in seconds.
    """

    name: str
    epoch: int
    process: str
    pid: int
    after_s: float


@dataclass(frozen=True, slots=True)
class Stalled:
    """A call, or an operation on a channel, takes longer than the `stall_after_s` of its group or channel.

    It is told again whenever it has taken twice as long.

    Attributes:
        group: whose call it is; "" of an operation on a channel.
        channel: which; "" of a call.
        operation: the method, or the operation and its queue.
        processes: the ranks that have not answered, or the process whose operation it is.
        waited_s: how long it takes already, in seconds.
        why: what those processes wait for or are at, then who waits for whom in the job, as `cluster.why()` says it.
    """

    group: str
    channel: str
    operation: str
    processes: tuple[str, ...]
    waited_s: float
    why: str


Event = (
    NodeJoined
    | NodeLost
    | NodeDraining
    | JobLost
    | NodeUnresponsive
    | NodeResponsive
    | TransportFellBack
    | GroupLaunched
    | GroupResized
    | RankDrained
    | Autoscaled
    | WorkerStarted
    | WorkerLost
    | WorkerReturned
    | WorkerGivenUp
    | WorkerUnresponsive
    | WorkerResponsive
    | ChildJoined
    | ChildLeft
    | ChildLost
    | WorkerLogged
    | WorkerPrinted
    | ChannelOpened
    | ChannelRestored
    | Stalled
)
Listener = Callable[[Event], None]
