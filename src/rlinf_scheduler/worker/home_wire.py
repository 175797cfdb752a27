"""What the home of a job's groups, where it is a job server, and the other processes of the job say to each other."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from rlinf_scheduler.comm import Endpoint
from rlinf_scheduler.config.fleet import Fleet
from rlinf_scheduler.host.output import LogFolder
from rlinf_scheduler.session.membership import GroupMembers
from rlinf_scheduler.worker.deaths import RankState, Verdict

# Services of the home: for groups,
LAUNCH = "home.launch"
FOLLOW = "home.follow"
END = "home.end"
RESTART = "home.restart"
RESIZE = "home.resize"
# and for drivers.
ATTACH = "home.attach"
LEAVE = "home.leave"
DESCRIBE = "home.describe"
NODES = "home.nodes"
STOP = "home.stop"
# Of a process that follows a group.
NEWS = "home.news"
# Of a driver.
EVENT = "home.event"
ENDING = "home.ending"


class LaunchGroup(msgspec.Struct, frozen=True, array_like=True):
    """Launch the group whose name the sender has -> `GroupRecord`.

    The frames: the `GroupOrder` without its factory, pickled; the worker's class, encoded, in so many frames; the
    factory.

    Attributes:
        detached: it stays when the sender has left.
    """

    name: str
    detached: bool
    num_class_frames: int


class FollowGroup(msgspec.Struct, frozen=True, array_like=True):
    """Say how a group is, and what becomes of it -> `GroupRecord`, with the worker's class as frames."""

    name: str


class EndGroup(msgspec.Struct, frozen=True, array_like=True):
    """End a group; answered when it has ended.

    Attributes:
        finishes: whether it answers the calls first that it has got.
        timeout_s: after which what has not finished is killed; None: never.
    """

    number: int
    finishes: bool
    timeout_s: float | None


class RestartRank(msgspec.Struct, frozen=True, array_like=True):
    """Have another process take a rank's place; answered when it has, within so many seconds."""

    number: int
    rank: int
    timeout_s: float


class ResizeGroup(msgspec.Struct, frozen=True, array_like=True):
    """Let a group grow or shrink -> the numbers of the ranks that came, or left, when it has.

    The frames: the `Growth` or `Shrinkage`, encoded.
    """

    number: int


class RankUpdate(msgspec.Struct, frozen=True, array_like=True):
    """How a rank is.

    Attributes:
        rank: which.
        state: see `RankState`.
        reason: why it is not there; "" if it is.
        gone: why its process is gone; "" as long as it is not.
        endpoint: how the process is reached.
        pid: its process id on its node.
        num_restarts: how many processes had its place before.
        placement: where it runs, pickled.
    """

    rank: int
    state: RankState
    reason: str
    gone: str
    endpoint: Endpoint | None
    pid: int
    num_restarts: int
    placement: bytes


class GroupRecord(msgspec.Struct, frozen=True, array_like=True):
    """A group, for those that call it.

    Attributes:
        number: the job server's; no two groups have the same, also if one has the name of another that has ended.
        members: the ranks that it has.
        on_failure: what the death of a rank means.
        stall_after_s: see `LaunchOptions`.
        ranks: how each of them is, and those that leave.
    """

    number: int
    members: GroupMembers
    on_failure: Verdict
    stall_after_s: float
    ranks: list[RankUpdate]


class GroupUpdate(msgspec.Struct, frozen=True, array_like=True):
    """What has become of a group: of one rank, or of all of it; where neither is said it is being ended.

    Attributes:
        rank: how a rank is now.
        ended: all of it has ended.
        members: its ranks from now on.
        why: who wanted that, of members.
    """

    number: int
    rank: RankUpdate | None
    ended: bool = False
    members: GroupMembers | None = None
    why: str = ""


class Attach(msgspec.Struct, frozen=True, array_like=True):
    """A driver takes part from now on -> None; the frame is `JobWelcome`, pickled."""

    host: str
    pid: int
    program: str


class AskNodes(msgspec.Struct, frozen=True, array_like=True):
    """Say which nodes there are -> None; the frame is `NodesKnown`, pickled.

    Attributes:
        refresh_s: how long the nodes may take to be probed anew, in seconds; None: they are not.
    """

    refresh_s: float | None = None


class StopJob(msgspec.Struct, frozen=True, array_like=True):
    """End all of the job; answered when its groups have ended. `who` wants it, for those who are in it."""

    who: str


class JobDriver(msgspec.Struct, frozen=True):
    """A driver that takes part in a job.

    Attributes:
        host: its machine.
        pid: its process id there.
        program: what it runs.
        since: when it came, in seconds since 1970.
    """

    host: str
    pid: int
    program: str
    since: float


class JobGroup(msgspec.Struct, frozen=True):
    """A group of a job.

    Attributes:
        ends_with: the process whose end it does not outlive; "" if it stays until somebody ends it.
    """

    name: str
    world_size: int
    ends_with: str


class JobDescription(msgspec.Struct, frozen=True):
    """A job that outlives its drivers: who takes part in it now."""

    drivers: list[JobDriver]
    groups: list[JobGroup]


@dataclass(frozen=True, slots=True)
class JobWelcome:
    """What a driver has to know of the job that it comes to."""

    fleet: Fleet
    log_folder: LogFolder


@dataclass(frozen=True, slots=True)
class NodesKnown:
    """What the job server knows of the nodes; see `Cluster.fleet` and `lost_nodes`."""

    fleet: Fleet
    lost: dict[int, str]
