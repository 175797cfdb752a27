"""What the launching process and a worker's host say to each other, as data."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from rlinf.scheduler.comm import ClusterSecret, Endpoint
from rlinf.scheduler.planning import HardwareUnit, Placement

# A service of the job's home.
LOG = "worker.log"
# Services of a worker's host.
CALL = "worker.call"
AGAIN = "worker.result_again"
CANCEL = "worker.cancel"
NEXT = "worker.next_value"
STOP = "worker.stop"

# Progress of a rank, in order.
STARTING = "starting"
GREETED = "greeted"
CHECKING = "checking"
IMPORTING = "importing"
CONSTRUCTING = "in __init__"
READY = "ready"
FAILED = "failed"


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """A rank's process runs. The answer's frames: its assignment and the topology, pickled, and its class, encoded.

    Attributes:
        rank: its rank.
        endpoint: how its process is reached.
        pid: its process id.
        port: what it reserved for rendezvous; 0 on other ranks than the first.
    """

    rank: int
    endpoint: Endpoint
    pid: int
    port: int


class Progress(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """How far a rank's launch has come; with FAILED, its frame is what `dump_failure` wrote.

    Attributes:
        rank: its rank.
        reached: one of the words above.
        took_s: with READY, how long it took since its process began, in seconds.
        failed_in: with FAILED, what it was at.
    """

    rank: int
    reached: str
    took_s: float = 0.0
    failed_in: str = ""


# What hosts tell the launch that they belong to, which serves it under its own name.
Report: TypeAlias = Hello | Progress


class LogLine(msgspec.Struct, frozen=True, array_like=True):
    """A line that a worker logged, and at which level of `logging`."""

    group: str
    rank: int
    level: int
    message: str


# What a call is: of a method, of a method that streams its values, or a look at an attribute.
Kind: TypeAlias = Literal["call", "stream", "get"]


class Call(msgspec.Struct, frozen=True, array_like=True):
    """A call, for the service CALL; its frames are the arguments, (args, kwargs), encoded.

    Attributes:
        method: what is called, or the attribute.
        number: which call of its caller it is; the same when its arguments are sent once more.
        kind: what is to be done.
    """

    method: str
    number: int
    kind: Kind = "call"


class Returned(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """The answer of a method that returned; its frames are the result, encoded.

    Attributes:
        durations: what was timed meanwhile, in seconds.
    """

    durations: dict[str, float] = {}


class Raised(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The answer of a method that raised; its frame is what `dump_failure` wrote.

    Attributes:
        durations: what was timed until then, in seconds.
    """

    durations: dict[str, float] = {}


class Unread(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The arguments lie in shared memory that the rank cannot read: it keeps the call's place and wants the bytes.

    Attributes:
        reason: why it cannot.
    """

    reason: str


class Cancelled(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The answer of a method that was left, or never begun, because its caller gave it up.

    Attributes:
        durations: what was timed until then, in seconds.
    """

    durations: dict[str, float] = {}


Answer: TypeAlias = Returned | Raised | Unread | Cancelled


class Cancel(msgspec.Struct, frozen=True, array_like=True):
    """A notice for the service CANCEL: the sender gives up its call of that number."""

    number: int


class Next(msgspec.Struct, frozen=True, array_like=True):
    """A request for the next value of a call that streams, for the service NEXT.

    Attributes:
        number: the call's.
        item: this request's own, as calls have them: under it the value can be asked for again.
    """

    number: int
    item: int


class Value(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """A value of a stream; its frames are the value, encoded."""


class Ended(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """There is no further value: the call itself was answered before this."""


NextAnswer: TypeAlias = Value | Ended


class Again(msgspec.Struct, frozen=True, array_like=True):
    """A request for a result as bytes, for the service AGAIN; the answer is as that of the call.

    Attributes:
        number: the call's.
        reason: why the caller cannot read the result where it lies.
    """

    number: int
    reason: str


class HostSpec(msgspec.Struct, frozen=True):
    """What a host's process is started with: enough to report to the launching process.

    Attributes:
        launch: the service, of the process below, to which it reports.
        group: its group's name.
        rank: its rank.
        launcher: the process that launches the group.
        home: the process that keeps the job's directory.
        secret: admits the process to the job.
        node_ip: its node's address.
        crosses_machines: whether peers may be on other machines.
        encryption: whether what goes from machine to machine is encrypted.
        sys_path: the launching process's import path, for modules that lie beside its script.
        log_level: the lowest level of log lines that somebody wants to see.
        timeout_s: how long the whole launch may take, in seconds.
        registers_itself: the worker makes its name known; otherwise the host does, before it constructs the worker.
    """

    launch: str
    group: str
    rank: int
    launcher: Endpoint
    home: Endpoint
    secret: ClusterSecret
    node_ip: str
    crosses_machines: bool
    encryption: bool
    sys_path: tuple[str, ...]
    log_level: int
    timeout_s: float
    registers_itself: bool = False


class Assignment(msgspec.Struct, frozen=True):
    """What a rank becomes, once every rank of its group has a process.

    Attributes:
        placement: its place.
        world_size: how many ranks the group has.
        environment: variables to set before the user's code is imported.
        max_concurrency: how many calls may run at a time.
        master_address: rank 0's node.
        master_port: rank 0's port for rendezvous.
        hardware: what the worker finds in `self.hardware`.
        units: the declared pieces among it, to be checked before the worker is constructed.
    """

    placement: Placement
    world_size: int
    environment: dict[str, str]
    max_concurrency: int
    master_address: str
    master_port: int
    hardware: tuple[object, ...] = ()
    units: tuple[HardwareUnit, ...] = ()


class WorkerFactory(msgspec.Struct, frozen=True):
    """The user's class and its arguments: pickled once for all ranks."""

    worker_class: type[Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
