"""What is known of each node, as data. Nothing here looks at a machine, and nothing judges."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


class Software(msgspec.Struct, frozen=True):
    """Of what a node's processes run on; "" for what is not installed.

    Attributes:
        python: such as "3.11.7".
        libraries: by name, of what objects are sent with.
    """

    python: str = ""
    ray: str = ""
    package: str = ""
    libraries: dict[str, str] = {}


class TokenFacts(msgspec.Struct, frozen=True):
    """Ray's authentication, as a node has it.

    Attributes:
        mode: "token" or "disabled".
        others_can_read: whether other users of the machine can read it there.
        turned_on_by: the file with which Ray turns authentication on for each Ray that this user starts; "": none.
    """

    mode: str = "disabled"
    fingerprint: str = ""
    source: str = ""
    others_can_read: bool = False
    turned_on_by: str = ""


class MemoryFacts(msgspec.Struct, frozen=True):
    """Memory that processes share, and the folder for temporary files.

    Attributes:
        shm_bytes: how much fits into /dev/shm; None where it is not there.
        ray_store_bytes: how much of it Ray wants for its objects; None where Ray is not asked.
        memfd_error: why memory without a name cannot be had; "" where it can.
        temporary_folder: Ray's, or this user's.
    """

    shm_bytes: int | None = None
    shm_free_bytes: int | None = None
    ray_store_bytes: int | None = None
    memfd_error: str = ""
    temporary_folder: str = ""
    temporary_free_bytes: int | None = None
    others_can_write: bool = False


class LimitFacts(msgspec.Struct, frozen=True):
    """What the kernel allows a process of this user; None: as much as it wants.

    Attributes:
        open_files: descriptors at once.
        processes: processes and threads of the user.
        pidfd_error: why processes cannot be watched by descriptors; "" where they can.
        peer_memory_error: why what another process of this user has open cannot be opened; "" where it can.
        ptrace_scope: Yama's (0 to 3), or None.
    """

    open_files: int | None = None
    processes: int | None = None
    pidfd_error: str = ""
    peer_memory_error: str = ""
    ptrace_scope: int | None = None


class AcceleratorFacts(msgspec.Struct, frozen=True):
    """Accelerators, as Ray, the kernel and the vendor's tool see them.

    Attributes:
        vendor: the vendor; "" where nobody sees any.
        num_counted: as Ray counts them.
        num_device_files: as the kernel shows them in /dev; None where the vendor's are not known.
        mask: the visibility variable's entries that the node was started with; None: no mask.
        uuids: of the devices that the tool lists; None where there is no such tool, or it fails.
        unmatched: entries of the mask that are no device.
    """

    vendor: str = ""
    num_counted: int = 0
    num_device_files: int | None = None
    mask: tuple[str, ...] | None = None
    uuids: tuple[str, ...] | None = None
    unmatched: tuple[str, ...] = ()
    driver: str = ""


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One node, as a process on it sees it.

    Attributes:
        node_id: Ray's id of it, hex; "" where it is not a node.
        is_simulated: whether it pretends to have accelerators.
        node_rank: `RLINF_NODE_RANK` as it was started with, as text; "" without.
        own_addresses: what its own name stands for there; empty: nothing.
        pull_error: why large objects are not pulled there; "" where they are, or nobody wants that.
    """

    node_id: str = ""
    ip: str
    hostname: str = ""
    is_head: bool = False
    is_simulated: bool = False
    node_rank: str = ""
    own_addresses: tuple[str, ...] = ()
    versions: Software = Software()
    token: TokenFacts = TokenFacts()
    memory: MemoryFacts = MemoryFacts()
    limits: LimitFacts = LimitFacts()
    accelerators: AcceleratorFacts = AcceleratorFacts()
    pull_error: str = ""

    @property
    def name(self) -> str:
        """The node in a sentence."""
        rank = f" {self.node_rank}" if self.node_rank.isdecimal() else ""
        return f"node{rank} ({self.ip}, {self.hostname})" if self.hostname else f"node{rank} ({self.ip})"


class Reach(msgspec.Struct, frozen=True):
    """One try to connect from one node to another.

    Attributes:
        ip: where it tried.
        service: what listens there, in words.
        error: why it failed; "" where it did not.
        round_trip_s: how long the other one took to say what time it is; None where it does not say that.
        offset_s: how far its clock is ahead, if the way there takes as long as the way back.
    """

    source: str
    target: str
    ip: str
    port: int
    service: str
    error: str = ""
    round_trip_s: float | None = None
    offset_s: float | None = None


class HardwareFacts(msgspec.Struct, frozen=True):
    """What a config declares of one node's hardware, looked at from there.

    Attributes:
        num_pieces: how many were looked at.
        faults: what is not there, and stops a launch.
        notes: what is not there, and is logged at a launch; or why nothing was looked at.
    """

    node: str
    num_pieces: int
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class LinkSpeed(msgspec.Struct, frozen=True):
    """What a probe measured between two nodes.

    Attributes:
        round_trip_s: how long a byte takes there and back, in seconds; the median of a few.
        sent_bytes_per_s: how fast a block went there.
        received_bytes_per_s: how fast one came back.
    """

    round_trip_s: float
    sent_bytes_per_s: float
    received_bytes_per_s: float


class ProbedLink(msgspec.Struct, frozen=True):
    """The way between two nodes, as a probe from one of them to the other measured it.

    Attributes:
        source: Ray's id of the node that probed.
    """

    source: str
    target: str
    speed: LinkSpeed | None = None
    error: str = ""


class ClusterFacts(msgspec.Struct, frozen=True):
    """All that was found out.

    Attributes:
        silent: names of nodes that did not answer, and why.
        joining_error: why this process cannot join the cluster, or what it lacks; "" where it can, or there is none.
        address: the cluster's; "" where none was joined.
        hardware: what a config declares, by node; empty without a config.
        hardware_error: why it was not looked at; "" where it was.
        links: what probes measured, of each node with a few others.
    """

    nodes: tuple[NodeFacts, ...] = ()
    reaches: tuple[Reach, ...] = ()
    silent: dict[str, str] = {}
    joining_error: str = ""
    address: str = ""
    hardware: tuple[HardwareFacts, ...] = ()
    hardware_error: str = ""
    links: tuple[ProbedLink, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        node: where, for people; "" where it is the whole cluster's.
        problem: what was found, and what should be there.
        remedy: what to do.
        is_fault: whether programs fail of it; else it costs time, or safety, or may fail one day.
    """

    check: str
    node: str
    problem: str
    remedy: str
    is_fault: bool = True

    def __str__(self) -> str:
        where = f"{self.node}: " if self.node else ""
        return f"{where}{self.problem}\n    {self.remedy}"
