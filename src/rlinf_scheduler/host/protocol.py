"""What the launching process and a worker's host say to each other, as data."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from rlinf_scheduler.comm import ClusterSecret, Endpoint
from rlinf_scheduler.comm.port_range import PortRange
from rlinf_scheduler.comm.transport.peer_session import GRACE_S
from rlinf_scheduler.planning import HardwareUnit, Node, Placement
from rlinf_scheduler.session.membership import GroupMembers

# A service of the job's home.
LOG = "worker.log"
NODE_GONE = "node.gone"
OUTPUT = "worker.output"
FELL_BACK = "worker.fell_back"
# Services of a worker's host.
CALL = "worker.call"
AGAIN = "worker.result_again"
CANCEL = "worker.cancel"
NEXT = "worker.next_value"
STOP = "worker.stop"
FINISH = "worker.finish"
DRAIN = "worker.drain"
PREPARE = "worker.prepare_resize"
# What a class may have to follow a resize of its group: it is called with the ranks that were, and those that are.
ON_RESIZE = "on_resize"

# Progress of a rank, in order.
STARTING = "starting"
RUNNING = "running"
CHECKING = "checking"
IMPORTING = "importing"
LOOKING = "looking at its devices"
CONSTRUCTING = "in __init__"
CATCHING_UP = "catching up"
READY = "ready"
FAILED = "failed"


class FellBack(msgspec.Struct, frozen=True, array_like=True):
    """The sender does without shared memory, which costs copies, for this reason."""

    reason: str


class HostStarted(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """A rank's process runs. The answer's frames: its assignment, pickled, the topology, packed, its class, encoded.

    Attributes:
        port: what it reserved for rendezvous; 0 on other ranks than the first.
        born: when its process began, as the kernel counts it; with `pid` no other process has it.
    """

    rank: int
    endpoint: Endpoint
    pid: int
    port: int
    born: int = 0


class Progress(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """How far a rank's launch has come; with FAILED, its frame is what `dump_failure` wrote.

    Attributes:
        took_s: with READY, how long it took since its process began, in seconds.
        failed_in: with FAILED, what it was at.
        devices: with READY, the accelerators that its process sees, by UUID where that is known, else by name.
    """

    rank: int
    reached: str
    took_s: float = 0.0
    failed_in: str = ""
    devices: tuple[str, ...] = ()


# What hosts tell the launch that they belong to, which serves it under its own name.
HostReport: TypeAlias = HostStarted | Progress


class Drain(msgspec.Struct, frozen=True, array_like=True):
    """A notice for the service DRAIN: the rank takes no more work, finishes what it has, and ends.

    Attributes:
        why: for what reason.
        left_s: how long it has until it is killed, in seconds; 0: any time.
    """

    why: str
    left_s: float = 0.0


class Prepare(msgspec.Struct, frozen=True, array_like=True):
    """For the service PREPARE: the rank's group is to be resized -> `Prepared`.

    Attributes:
        reserves_port: this rank will be the first of its group: it is to have another port for rendezvous.
    """

    reserves_port: bool


class Prepared(msgspec.Struct, frozen=True, array_like=True):
    """A rank's answer to whether its group may be resized.

    Attributes:
        meets: `torch.distributed` is initialized there: the ranks have met.
        follows: its class has ON_RESIZE.
        port: that was reserved; 0 for none.
    """

    meets: bool
    follows: bool
    port: int = 0


class LogLine(msgspec.Struct, frozen=True, array_like=True):
    """A line that a worker logged, and at which level of `logging`; `below`: the way to one below that rank."""

    group: str
    rank: int
    level: int
    message: str
    below: str = ""


class NodeGone(msgspec.Struct, frozen=True, array_like=True):
    """The sender's node takes part no more, and neither will the sender in a moment.

    Attributes:
        cause: what ended, and how that showed.
    """

    node_id: str
    cause: str
    at: float


class OutputLines(msgspec.Struct, frozen=True, array_like=True):
    """Lines that a worker's process wrote to its standard output or error; `stream` says which."""

    group: str
    rank: int
    lines: list[str]
    stream: str = "stdout"


# What a call is: of a method, of a method that streams its values, or a look at an attribute.
CallKind: TypeAlias = Literal["call", "stream", "get"]


class CallRequest(msgspec.Struct, frozen=True, array_like=True):
    """A call, for the service CALL; its frames are the arguments, (args, kwargs), encoded.

    Attributes:
        method: what is called, or the attribute.
        number: which call of its caller it is; the same when its arguments are sent once more.
    """

    method: str
    number: int
    kind: CallKind = "call"


class Returned(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """The answer of a method that returned; its frames are the result, encoded."""

    durations: dict[str, float] = {}


class Raised(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The answer of a method that raised; its frame is what `dump_failure` wrote."""

    durations: dict[str, float] = {}


class Unread(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The arguments lie in shared memory that the rank cannot read: it keeps the call's place and wants the bytes."""

    reason: str


class Cancelled(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The answer of a method that was left, or never begun, because its caller gave it up."""

    durations: dict[str, float] = {}


class Abandoned(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """The answer of a method that goes on while its rank ends; one that was never begun has none before the goodbye."""


CallAnswer: TypeAlias = Returned | Raised | Unread | Cancelled | Abandoned


class Cancel(msgspec.Struct, frozen=True, array_like=True):
    """A notice for the service CANCEL: the sender gives up its call of that number."""

    number: int


class Next(msgspec.Struct, frozen=True, array_like=True):
    """A request for the next value of a call that streams, for the service NEXT.

    Attributes:
        item: this request's own, as calls have them: under it the value can be asked for again.
    """

    number: int
    item: int


class StreamValue(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """A value of a stream; its frames are the value, encoded."""


class Ended(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """There is no further value: the call itself was answered before this."""


NextAnswer: TypeAlias = StreamValue | Ended


class ResultAsBytes(msgspec.Struct, frozen=True, array_like=True):
    """A request for a result as bytes, for the service AGAIN; the answer is as that of the call."""

    number: int
    reason: str


class HostSpec(msgspec.Struct, frozen=True):
    """What a host's process is started with: enough to report to the launching process.

    Attributes:
        launch: the service, of the process below, to which it reports.
        secret: admits the process to the job.
        crosses_machines: whether peers may be on other machines.
        ports: the first and the last of the ports that the job takes; None: any.
        sys_path: the launching process's import path, for modules that lie beside its script.
        log_level: the lowest level of log lines that somebody wants to see.
        timeout_s: how long the whole launch may take, in seconds.
        reserves_port: it is the first of its group, and has the group's port for rendezvous.
        registers_itself: the worker makes its name known; otherwise the host does, before it constructs the worker.
        unreachable_after_s: how long a process may be unreachable before it is dead, in seconds.
        unresponsive_after_s: how long this one may be stopped or stuck before it is dead, in seconds; None: for ever.
        log_folder: where it writes what its process prints; "" where that goes to what it was started with.
        library_level: the lowest level of what other loggers say that is sent to the driver; 0 for none of it.
        master_port: the group's port for rendezvous, which the first rank is to have again; 0: it picks one.
        detached_job: the job's name, if that outlives its drivers; else "".
        extension: the module that it imports before its class, or "".
        replaces_rlinf: our face is in the place of an RLinf checkout's own scheduler there, too.
        emulates_network: whether what is sent to it comes over emulated links.
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
    reserves_port: bool = False
    registers_itself: bool = False
    node_id: str = ""
    unreachable_after_s: float = GRACE_S
    unresponsive_after_s: float | None = None
    log_folder: str = ""
    library_level: int = 0
    master_port: int = 0
    ports: PortRange | None = None
    detached_job: str = ""
    extension: str = ""
    replaces_rlinf: bool = False
    emulates_network: bool = False


class Assignment(msgspec.Struct, frozen=True):
    """What a rank becomes, once every rank of its group has a process.

    Attributes:
        placement: its place.
        node: its node, as it was probed.
        members: the ranks of its group.
        environment: variables to set before the user's code is imported.
        max_concurrency: how many calls may run at a time.
        hardware: what the worker finds in `self.hardware`.
        units: the declared pieces among it, to be checked before the worker is constructed.
        num_restarts: how many processes had its place before.
        returns: whether another process may take its place if this one dies.
        ready_when: the method that a rank that comes back or joins runs before it is called; "" for none.
        seed: of its random numbers.
        seeds_generators: the process's generators are seeded with it.
        settings: the job's `JobSettings`, pickled; empty where they say nothing.
        launched_ns: when its group was launched, in nanoseconds since 1970.
    """

    placement: Placement
    node: Node
    members: GroupMembers
    environment: dict[str, str]
    max_concurrency: int
    hardware: tuple[object, ...] = ()
    units: tuple[HardwareUnit, ...] = ()
    num_restarts: int = 0
    returns: bool = False
    ready_when: str = ""
    seed: int = 0
    seeds_generators: bool = False
    settings: bytes = b""
    launched_ns: int = 0


class WorkerFactory(msgspec.Struct, frozen=True):
    """The user's class and its arguments: pickled once for all ranks."""

    worker_class: type[Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
