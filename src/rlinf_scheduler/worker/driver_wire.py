"""What a job server and the drivers that take part in its job say to each other."""

from __future__ import annotations

import msgspec

# Services of the job server.
ATTACH = "kept.attach"
LEAVE = "kept.leave"
DESCRIBE = "kept.describe"
NODES = "kept.nodes"
STOP = "kept.stop"
# Of a driver.
EVENT = "kept.event"
ENDING = "kept.ending"


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
