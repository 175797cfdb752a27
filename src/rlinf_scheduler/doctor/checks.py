"""The checks. Each is a function of the facts, and gives what it finds; nothing here looks at a machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from rlinf_scheduler.doctor.facts import ClusterFacts, Finding, NodeFacts
from rlinf_scheduler.doctor.links import slow_links
from rlinf_scheduler.hardware.vendors import NODE_RANK_VARIABLE
from rlinf_scheduler.wording import counted

MAX_SKEW_S = 1.0
MIN_OPEN_FILES, ENOUGH_OPEN_FILES = 4096, 65536
MIN_PROCESSES = 4096
MIN_SHM_BYTES = 1 << 30
MIN_TEMPORARY_BYTES = 2 << 30
SHM = "/dev/shm"  # noqa: S108 - named, not used
_GIB, _MIB = 1 << 30, 1 << 20


def find_faults(facts: ClusterFacts) -> list[Finding]:
    """What every check finds, the faults first."""
    found = [finding for check in CHECKS.values() for finding in check(facts)]
    return sorted(found, key=lambda finding: not finding.is_fault)


def check_joining(facts: ClusterFacts) -> Iterator[Finding]:
    """Whether this process can join, and every node starts processes."""
    if facts.joining_error:
        join = f"rlinf node start --address {facts.address} --rank {_num_nodes(facts)}"
        yield Finding(
            "joining",
            "this machine",
            facts.joining_error,
            f"run `{join}` (and so on) on the missing machines"
            if facts.address
            else "nothing else of the cluster was looked at",
        )
    for name, why in facts.silent.items():
        yield Finding(
            "joining",
            name,
            f"no process of this library's runs there: {why}",
            "install the same packages there as here, in the interpreter that its Ray was started with",
        )


def check_versions(facts: ClusterFacts) -> Iterator[Finding]:
    """Whether all nodes run on the same."""
    yield from _differing(facts, "Python", lambda node: node.versions.python)
    yield from _differing(facts, "Ray", lambda node: node.versions.ray)
    yield from _differing(facts, "rlinf-scheduler", lambda node: node.versions.package)
    libraries = dict.fromkeys(name for node in facts.nodes for name in node.versions.libraries)
    for name in libraries:
        yield from _differing(facts, name, partial(_library, name), is_fault=False)


def _library(name: str, node: NodeFacts) -> str:
    return node.versions.libraries.get(name, "")


def _differing(
    facts: ClusterFacts, what: str, version: Callable[[NodeFacts], str], *, is_fault: bool = True
) -> Iterator[Finding]:
    usual = _usual(facts.nodes, version)
    for node in facts.nodes:
        own = version(node)
        if own != usual:
            has = f"{what} {own}" if own else f"no {what}"
            yield Finding(
                "versions",
                node.name,
                f"it has {has}, and the others have {usual or 'none'}",
                f"install {what} {usual} there and start the node anew" if usual else f"remove {what} there",
                is_fault,
            )


def _usual(nodes: Sequence[NodeFacts], value: Callable[[NodeFacts], str]) -> str:
    """What most nodes have; of several as frequent ones, what the head has."""
    heads_first = sorted(nodes, key=lambda node: not node.is_head)
    return Counter(value(node) for node in heads_first).most_common(1)[0][0] if nodes else ""


def check_ranks(facts: ClusterFacts) -> Iterator[Finding]:
    """Whether the ranks that nodes were started with are numbers, each once, without a gap."""
    remedy = "stop it and start it with another one: `rlinf node stop`, `rlinf node start ... --rank N`"
    first: dict[int, NodeFacts] = {}
    for node in facts.nodes:
        text = node.node_rank
        if not text:
            continue
        if not text.isdecimal():
            yield Finding("ranks", node.name, f"{NODE_RANK_VARIABLE}={text!r} is not a number from 0", remedy)
            continue
        other = first.setdefault(int(text), node)
        if other is not node:
            yield Finding("ranks", node.name, f"it has rank {int(text)}, and so has {other.name}", remedy)
        if int(text) >= _num_nodes(facts):
            problem = f"it has rank {int(text)}, and the cluster has {counted(_num_nodes(facts), 'node')}"
            yield Finding("ranks", node.name, problem, f"start the nodes that are missing, or {remedy}")


def _num_nodes(facts: ClusterFacts) -> int:
    return len(facts.nodes) + len(facts.silent)


def check_token(facts: ClusterFacts) -> Iterator[Finding]:
    """Whether a joining node has to prove that it may, only this user can, and other Rays are left as they are."""
    for node in facts.nodes:
        token = node.token
        if token.turned_on_by and not node.is_simulated:
            yield Finding(
                "token",
                node.name,
                f"{token.turned_on_by} turns token authentication on for every Ray that this user starts there with a "
                "plain `ray start` or `ray.init()`; who has not got that token is refused (InvalidAuthToken)",
                f"nothing, if that is wanted; else `rm {token.turned_on_by}` when no Ray of yours runs that asks for "
                "it, or `RAY_AUTH_MODE=disabled ray start ...`. A plain `ray.init()` writes that file, and so did "
                "earlier versions of this library",
                is_fault=False,
            )
        if token.others_can_read:
            yield Finding(
                "token",
                node.name,
                f"other users can read the token in {token.source}, and run programs as this user",
                f"chmod 600 {token.source}; if others are not to be trusted, make a new token and start Ray anew",
                is_fault=False,
            )
    if not facts.address or not facts.nodes:
        return
    if all(node.token.mode == "disabled" and not node.is_simulated for node in facts.nodes):
        yield Finding(
            "token",
            "",
            "Ray asks nobody for a token: whoever reaches its ports can run programs as this user",
            "start it with `rlinf node start`, or with RAY_AUTH_MODE=token",
            is_fault=False,
        )
    usual = _usual(facts.nodes, lambda node: node.token.mode)
    for node in facts.nodes:
        if node.token.mode != usual:
            yield Finding(
                "token",
                node.name,
                f"its authentication mode is '{node.token.mode}', and that of the others is '{usual}'",
                f"stop it and start it anew with RAY_AUTH_MODE={usual}",
            )


def check_clocks(facts: ClusterFacts) -> Iterator[Finding]:
    """Whether the nodes' clocks agree with the head's, as far as the way there lets that be told."""
    head = next((node for node in facts.nodes if node.is_head), None)
    for node in facts.nodes:
        measured = [
            (reach.round_trip_s, reach.offset_s)
            for reach in facts.reaches
            if head is not None
            and (reach.source, reach.target) == (head.node_id, node.node_id)
            and reach.round_trip_s is not None
            and reach.offset_s is not None
        ]
        if not measured:
            continue
        round_trip_s, offset_s = min(measured)
        if abs(offset_s) - round_trip_s / 2 > MAX_SKEW_S:
            direction = "ahead of" if offset_s > 0 else "behind"
            yield Finding(
                "clocks",
                node.name,
                f"its clock is {abs(offset_s):.1f} s {direction} the head's: times in logs do not compare",
                "let NTP or chrony set it (`timedatectl set-ntp true`)",
                is_fault=False,
            )


def check_names(facts: ClusterFacts) -> Iterator[Finding]:
    """Whether each node knows its own name, and by an address that others can use."""
    several = len({node.ip for node in facts.nodes}) > 1
    for node in facts.nodes:
        line = f"`{node.ip} {node.hostname}`"
        if not node.own_addresses:
            yield Finding(
                "names",
                node.name,
                f"its own name {node.hostname!r} stands for no address there; gloo and MPI ask for it",
                f"put the line {line} into its /etc/hosts",
                is_fault=False,
            )
        elif several and all(
            address.startswith("127.") or address == "::1" for address in node.own_addresses
        ):
            yield Finding(
                "names",
                node.name,
                f"its own name {node.hostname!r} stands for {node.own_addresses[0]} there: gloo would listen where no "
                "other node reaches it",
                f"put the line {line} into its /etc/hosts, or set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME",
                is_fault=False,
            )


def check_ports(facts: ClusterFacts) -> Iterator[Finding]:
    """Whether each node reaches every other."""
    names = {node.node_id: node.name for node in facts.nodes}
    for reach in facts.reaches:
        if reach.error:
            yield Finding(
                "ports",
                names.get(reach.source, reach.source),
                f"it does not reach {reach.service} of {names.get(reach.target, reach.target)} at "
                f"{reach.ip}:{reach.port}: {reach.error}",
                "open that port between the nodes, or start the nodes with the interface of another network "
                "(`rlinf node start --interface`)",
            )


def check_links(facts: ClusterFacts) -> Iterator[Finding]:
    """Whether the network carries about as much everywhere."""
    nodes = {node.node_id: (index, node.name) for index, node in enumerate(facts.nodes)}
    remedy = (
        "is it the network that was meant? `rlinf node start --interface` chooses one; look at card and cable"
    )
    bytes_per_s: dict[tuple[int, int], float] = {}
    for link in facts.links:
        (one, name), (other, there) = nodes[link.source], nodes[link.target]
        if link.speed is None:
            problem = f"what was sent to {there} to measure the way did not come back: {link.error}"
            yield Finding("links", name, problem, remedy, is_fault=False)
        else:
            bytes_per_s[one, other] = link.speed.sent_bytes_per_s
            bytes_per_s[other, one] = link.speed.received_bytes_per_s
    for slow in slow_links(bytes_per_s):
        peers = ", ".join(facts.nodes[peer].name for peer in slow.peers)
        yield Finding(
            "links",
            facts.nodes[slow.node].name,
            f"the way {'to' if slow.is_outgoing else 'from'} {peers} carries {slow.bytes_per_s / 1e6:.0f} MB/s, "
            f"others {slow.usual_bytes_per_s / 1e6:.0f}",
            remedy + ". A busy node is slow, too: look again",
            is_fault=False,
        )


def check_memory(facts: ClusterFacts) -> Iterator[Finding]:
    """Whether there is memory that processes can share."""
    for node in facts.nodes:
        memory = node.memory
        if memory.memfd_error:
            yield Finding(
                "memory",
                node.name,
                f"memory without a name cannot be had (memfd_create: {memory.memfd_error}): "
                "large objects cannot be shared",
                "allow memfd_create in the container's seccomp profile; it needs Linux 3.17",
            )
        wanted = max(MIN_SHM_BYTES, memory.ray_store_bytes or 0) if not node.is_simulated else 0
        if memory.shm_bytes is None:
            yield Finding(
                "memory", node.name, f"there is no {SHM}", "mount a tmpfs there (Docker does by itself)"
            )
        elif memory.shm_bytes < wanted:
            yield Finding(
                "memory",
                node.name,
                f"{SHM} holds {_size(memory.shm_bytes)}, and {_size(wanted)} are wanted: Ray keeps objects on disk",
                f"docker run --shm-size={-(-wanted // _GIB)}g, a `medium: Memory` volume in Kubernetes, or "
                "`-- --object-store-memory` at `rlinf node start`",
                is_fault=False,
            )


def check_pulling(facts: ClusterFacts) -> Iterator[Finding]:
    """Whether large objects are pulled where the user wants that."""
    for node in facts.nodes:
        if node.pull_error:
            problem = f"RLINF_PULL is set, and large objects go through sockets: {node.pull_error}"
            remedy = "pip install 'nixl>=1.5.1,<1.6' there, in the version of the others; or unset RLINF_PULL"
            yield Finding("pulling", node.name, problem, remedy, is_fault=False)


def check_temporary_files(facts: ClusterFacts) -> Iterator[Finding]:
    """Whether Ray's folder has room, and is this user's alone."""
    for node in facts.nodes:
        memory = node.memory
        if memory.others_can_write and not node.is_simulated:
            yield Finding(
                "temporary files",
                node.name,
                f"other users can write into Ray's folder {memory.temporary_folder}, where its sockets and logs are",
                "start the node by `rlinf node start`, which takes a folder of mode 0700",
                is_fault=False,
            )
        free = memory.temporary_free_bytes
        if free is not None and free < MIN_TEMPORARY_BYTES:
            yield Finding(
                "temporary files",
                node.name,
                f"{memory.temporary_folder} has {_size(free)} left: Ray stops when its disk is full",
                "remove old sessions there (`ray/session_*`), or set RAY_TMPDIR to another disk",
                is_fault=False,
            )


def check_limits(facts: ClusterFacts) -> Iterator[Finding]:
    """Whether the kernel allows what many processes with many connections need."""
    for node in facts.nodes:
        files, processes = node.limits.open_files, node.limits.processes
        if files is not None and files < ENOUGH_OPEN_FILES and not node.is_simulated:
            yield Finding(
                "limits",
                node.name,
                f"a process may have {files} files and connections open at once; {ENOUGH_OPEN_FILES} are enough",
                f"`ulimit -n {ENOUGH_OPEN_FILES}` before `rlinf node start`, or LimitNOFILE= of its service",
                is_fault=files < MIN_OPEN_FILES,
            )
        if processes is not None and processes < MIN_PROCESSES:
            yield Finding(
                "limits",
                node.name,
                f"this user may have {processes} processes and threads; Ray and torch start hundreds a rank",
                f"`ulimit -u` of at least {MIN_PROCESSES} before `rlinf node start`, or TasksMax= of its service",
            )


def check_peers(facts: ClusterFacts) -> Iterator[Finding]:
    """Whether processes of a node can watch each other, and open each other's memory."""
    for node in facts.nodes:
        limits = node.limits
        if limits.pidfd_error:
            yield Finding(
                "processes",
                node.name,
                f"processes cannot be watched by descriptors (pidfd_open: {limits.pidfd_error})",
                "use Linux 5.3 or newer, and allow pidfd_open in the container's seccomp profile",
            )
        if limits.peer_memory_error:
            scope = (
                "" if limits.ptrace_scope is None else f", kernel.yama.ptrace_scope is {limits.ptrace_scope}"
            )
            yield Finding(
                "processes",
                node.name,
                f"a process cannot open another one's memory (/proc/PID/fd: {limits.peer_memory_error}{scope}): "
                "large objects go through sockets, at a fraction of the speed",
                "run all processes of the node as one user and in one container, with /proc mounted without hidepid",
                is_fault=False,
            )


def check_accelerators(facts: ClusterFacts) -> Iterator[Finding]:
    """Whether Ray, the kernel and the vendor's tool see the same accelerators, and no two nodes the same one."""
    real = [node for node in facts.nodes if not node.is_simulated]
    for node in real:
        yield from _unseen(node, is_node=bool(node.node_id))
    yield from _shared_devices(real)
    with_driver = [node for node in real if node.accelerators.driver]
    usual = _usual(with_driver, lambda node: node.accelerators.driver)
    for node in with_driver:
        if node.accelerators.driver != usual:
            yield Finding(
                "accelerators",
                node.name,
                f"its driver is {node.accelerators.driver}, and that of the others is {usual}",
                "install the same driver on all nodes",
                is_fault=False,
            )


def _unseen(node: NodeFacts, *, is_node: bool) -> Iterator[Finding]:
    seen = node.accelerators
    vendor, files = seen.vendor, seen.num_device_files
    if files and seen.uuids is None:
        yield Finding(
            "accelerators",
            node.name,
            f"the kernel shows {counted(files, f'{vendor} device')}, and the vendor's tool does not list any",
            "run the tool there (`nvidia-smi`): driver and library may be of different versions, which a reboot mends",
        )
    elif is_node and seen.uuids and not seen.num_counted and seen.mask is None:
        yield Finding(
            "accelerators",
            node.name,
            f"the tool lists {counted(len(seen.uuids), f'{vendor} device')}, and Ray counted none",
            "start the node anew with `-- --num-gpus N`, and look whether its variables hide them",
        )
    elif is_node and seen.uuids and seen.mask is None and 0 < seen.num_counted < len(seen.uuids):
        yield Finding(
            "accelerators",
            node.name,
            f"the tool lists {counted(len(seen.uuids), f'{vendor} device')}, and Ray counted {seen.num_counted}",
            "a mask or `--num-gpus` of the node's start leaves out the others: start it anew without",
            is_fault=False,
        )
    if seen.unmatched:
        yield Finding(
            "accelerators",
            node.name,
            f"its mask names {', '.join(seen.unmatched)}, and no device is called so",
            "start the node with a mask of devices that it has, or without one",
        )


def _shared_devices(nodes: Iterable[NodeFacts]) -> Iterator[Finding]:
    """Two containers of one machine that were given the same device."""
    first: dict[str, NodeFacts] = {}
    for node in nodes:
        if not node.node_id or not node.accelerators.num_counted:
            continue
        shared: dict[str, int] = {}
        for uuid in node.accelerators.uuids or ():
            other = first.setdefault(uuid, node) if not uuid.isdecimal() else node
            if other is not node and _may_use(node, uuid) and _may_use(other, uuid):
                shared[other.name] = shared.get(other.name, 0) + 1
        for name, number in shared.items():
            yield Finding(
                "accelerators",
                node.name,
                f"{counted(number, 'device')} of it {'is' if number == 1 else 'are'} also {name}'s",
                "give each container, or each `rlinf node start`, a mask of its own",
            )


def _may_use(node: NodeFacts, uuid: str) -> bool:
    """Whether a node's mask lets it use a device; of a mask of indices the place in the tool's list tells."""
    mask, uuids = node.accelerators.mask, node.accelerators.uuids or ()
    if mask is None:
        return True
    return any(
        entry == str(uuids.index(uuid)) or (not entry.isdecimal() and uuid.startswith(entry))
        for entry in mask
    )


def _size(number: int) -> str:
    return f"{number / _GIB:.1f} GiB" if number >= _GIB else f"{number / _MIB:.0f} MiB"


def check_hardware(facts: ClusterFacts) -> Iterator[Finding]:
    """Whether the robots and other hardware that a config declares are there, as looked at before a launch."""
    remedy = "switch it on and connect it, or correct its settings in the config"
    if facts.hardware_error:
        yield Finding(
            "hardware", "", facts.hardware_error, "correct the config, or the variables of that node"
        )
    for node in facts.hardware:
        yield from (Finding("hardware", node.node, fault, remedy) for fault in node.faults)
        yield from (Finding("hardware", node.node, note, remedy, is_fault=False) for note in node.notes)


# In the order in which they are told.
CHECKS: Mapping[str, Callable[[ClusterFacts], Iterator[Finding]]] = {
    "joining": check_joining,
    "versions": check_versions,
    "ranks": check_ranks,
    "token": check_token,
    "ports": check_ports,
    "links": check_links,
    "names": check_names,
    "clocks": check_clocks,
    "memory": check_memory,
    "pulling": check_pulling,
    "temporary files": check_temporary_files,
    "limits": check_limits,
    "processes": check_peers,
    "accelerators": check_accelerators,
    "hardware": check_hardware,
}
