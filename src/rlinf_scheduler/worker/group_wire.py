"""What a job server, and the processes whose groups it launches or that call them, say to each other."""

from __future__ import annotations

import msgspec

from rlinf_scheduler.comm import Endpoint
from rlinf_scheduler.worker.deaths import RankState, Verdict

# Services of the job server.
CLAIM = "kept.claim"
# A name that was claimed, and for which nothing is launched.
DISCLAIM = "kept.disclaim"
LAUNCH = "kept.launch"
FOLLOW = "kept.follow"
END = "kept.end"
RESTART = "kept.restart"
# Of a process that follows a group.
NEWS = "kept.news"


class ClaimName(msgspec.Struct, frozen=True, array_like=True):
    """A name for a group that is about to be launched -> the name.

    Attributes:
        wanted: the name; None for the class's, with a number where that is taken.
        world_size: how many ranks it will have.
    """

    wanted: str | None
    class_name: str
    world_size: int


class LaunchGroup(msgspec.Struct, frozen=True, array_like=True):
    """Launch the group whose name the sender has claimed -> `GroupRecord`.

    The frames: the placements, `LaunchOptions` and `RestartLimit`, pickled together; the worker's class, encoded, in so
    many frames; its factory, encoded.

    Attributes:
        on_failure: what the death of a rank means.
        detached: it stays when the sender has left.
    """

    name: str
    on_failure: Verdict
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
        on_failure: what the death of a rank means.
        stall_after_s: see `LaunchOptions`.
        ranks: how each of them is.
    """

    number: int
    name: str
    on_failure: Verdict
    stall_after_s: float
    ranks: list[RankUpdate]


class GroupUpdate(msgspec.Struct, frozen=True, array_like=True):
    """What has become of a group: of one rank, or (None) all of it is being ended.

    Attributes:
        rank: how a rank is now.
        ended: all of it has ended.
    """

    number: int
    rank: RankUpdate | None
    ended: bool = False
