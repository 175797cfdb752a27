"""All nodes of a cluster looked at: a process on each gathers its facts, and tries to reach the others."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from msgspec.structs import replace
from ray.exceptions import RayError

from rlinf_scheduler.comm.port_range import PortRange
from rlinf_scheduler.doctor.facts import ClusterFacts, HardwareFacts, NodeFacts, ProbedLink, Reach
from rlinf_scheduler.doctor.gathering import gather_facts
from rlinf_scheduler.doctor.links import (
    TOKEN_BYTES,
    NodeListener,
    Place,
    ProbeListener,
    probe_link,
    rounds_of,
    try_all,
)
from rlinf_scheduler.errors import ClusterError, SchedulerError
from rlinf_scheduler.extension import EXTENSION_VARIABLE, extension_named
from rlinf_scheduler.hardware.filling_in import fill_in_groups
from rlinf_scheduler.hardware.reachability import find_problems
from rlinf_scheduler.planning import HardwareUnit, Node, NodeGroup
from rlinf_scheduler.ray_backend.addresses import LOCAL, find_address
from rlinf_scheduler.ray_backend.authentication import host_and_port
from rlinf_scheduler.ray_backend.backend import (
    HEAD_RESOURCE,
    join_or_start,
    on_node,
    wait_for_nodes,
)
from rlinf_scheduler.ray_backend.interfaces import own_ip
from rlinf_scheduler.ray_backend.nodes import fleet_of, order_nodes
from rlinf_scheduler.ray_backend.probe import NodeReport, node_environment, probe_this_node
from rlinf_scheduler.wording import counted

# With so many others each node probes the link: a card, or a cable, is slow with each of them.
_PARTNERS = 4
_FIRST_LINE = 200


class Examiner:
    """Looks at the node on which it runs, as a process of Ray's."""

    def __init__(self, node_id: str, ip: str, ports: PortRange | None) -> None:
        self._node_id = node_id
        self._ip = ip
        self._ports = ports
        self._listener = NodeListener(ip, ports)

    def look(self, is_head: bool, resources: Mapping[str, float]) -> tuple[NodeFacts, int]:
        """The node's facts, and the port where this process listens."""
        folder = ray._private.worker._global_node.get_temp_dir_path()
        facts = gather_facts(
            ip=self._ip,
            node_id=self._node_id,
            is_head=is_head,
            resources=resources,
            ray_folder=folder,
            environment=node_environment(),
        )
        return facts, self._listener.port

    def report(self, is_head: bool, resources: Mapping[str, float]) -> NodeReport:
        """The node as a program finds it."""
        return probe_this_node(self._node_id, self._ip, is_head, resources)

    def look_at(self, name: str, units: Sequence[HardwareUnit], extension: str) -> HardwareFacts:
        """Look at declared hardware of the node."""
        return look_at(name, units, extension)

    def reach(self, targets: Sequence[Place]) -> list[Reach]:
        """Try to connect to what listens on other nodes."""
        return try_all(self._node_id, targets)

    def open_listener(self, token: bytes) -> int:
        """Let one probe in that shows the token; return the port."""
        listener = ProbeListener(self._ip, token, self._ports)
        threading.Thread(target=listener.serve, name="rlinf-doctor-listener", daemon=True).start()
        return listener.port

    def probe(self, target: str, ip: str, port: int, token: bytes) -> ProbedLink:
        """Measure the way to a listener of the node `target`, and back."""
        try:
            return ProbedLink(self._node_id, target, probe_link(ip, port, token))
        except OSError as error:
            return ProbedLink(self._node_id, target, error=error.strerror or str(error))


def examine(
    address: str | None,
    num_nodes: int | None,
    timeout_s: float,
    ports: PortRange | None = None,
    groups: Sequence[NodeGroup] = (),
) -> ClusterFacts:
    """The facts of all nodes of a cluster; without one, those of this machine.

    Args:
        address: of its Ray; None: the one that was started here, if any.
        num_nodes: how many nodes there must be; None: those that there are.
        timeout_s: how long to wait for it and for what nodes say, in seconds.
        ports: those that the jobs' processes take, of which one is tried; None: one that the kernel chooses.
        groups: node groups of a config, whose hardware is looked at.
    """
    deadline = time.monotonic() + timeout_s
    try:
        found = address if ray.is_initialized() else find_address(address, num_nodes, timeout_s)
        if found == LOCAL:
            return _with_hardware_here(ClusterFacts((gather_facts(ip=_ip_here()),)), groups)
        engine = join_or_start(found, num_nodes, max(0.0, deadline - time.monotonic()))
    except ClusterError as error:
        return ClusterFacts((gather_facts(ip=_ip_here()),), joining_error=str(error))
    try:
        return _examine_joined(num_nodes, deadline, ports, groups)
    finally:
        engine.stop()


def _ip_here() -> str:
    try:
        return own_ip(None, None)
    except ClusterError:
        return "127.0.0.1"


def _with_hardware_here(facts: ClusterFacts, groups: Sequence[NodeGroup]) -> ClusterFacts:
    """With what the config declares of this machine, which is node 0 unless it was started with another rank."""
    if not any(group.hardware_type for group in groups):
        return facts
    try:
        report = probe_this_node("", _ip_here(), True, {})
        rank = report.node_rank_setting or 0
        pieces, absent = declared_units(groups, {rank: fleet_of([report]).topology.nodes[0]})
    except SchedulerError as error:
        return replace(facts, hardware_error=str(error))
    here = [look_at(facts.nodes[0].name, units) for units in pieces.values()]
    return replace(facts, hardware=(*here, *absent))


def _examine_joined(
    num_nodes: int | None, deadline: float, ports: PortRange | None, groups: Sequence[NodeGroup]
) -> ClusterFacts:
    joining_error = ""
    try:
        # Those that are there are looked at in any case: the other half of the time is theirs.
        records = wait_for_nodes(num_nodes, max(0.0, deadline - time.monotonic()) / 2)
    except ClusterError as error:
        joining_error = str(error)
        records = wait_for_nodes(None, 0)
    examiners = {record["NodeID"]: _examiner_on(record, ports) for record in records}
    asked = {
        examiners[record["NodeID"]].look.remote(
            HEAD_RESOURCE in record["Resources"], dict(record["Resources"])
        ): record
        for record in records
    }
    answers, silent = _answers(asked, deadline)
    targets = {record["NodeID"]: _targets(record, port) for record, (_, port) in answers}
    tries = {
        examiners[record["NodeID"]].reach.remote(
            [target for node, own in targets.items() if node != record["NodeID"] for target in own]
        ): record
        for record, _ in answers
    }
    reached, late = _answers(tries, deadline)
    facts = ClusterFacts(
        tuple(facts for _, (facts, _) in answers),
        tuple(reach for _, reaches in reached for reach in reaches),
        silent | late,
        joining_error,
        ray.get_runtime_context().gcs_address,
    )
    if any(group.hardware_type for group in groups):
        facts = _with_hardware(facts, [record for record, _ in answers], examiners, groups, deadline)
    # Last, for a way that carries nothing takes all the time that is left.
    return replace(facts, links=_probe_links([record for record, _ in reached], examiners, deadline))


def _with_hardware(
    facts: ClusterFacts,
    records: Sequence[Mapping[str, Any]],
    examiners: Mapping[str, Any],
    groups: Sequence[NodeGroup],
    deadline: float,
) -> ClusterFacts:
    """With what the config declares of the nodes, each looked at from its own."""
    asked = {
        examiners[record["NodeID"]].report.remote(
            HEAD_RESOURCE in record["Resources"], dict(record["Resources"])
        ): record
        for record in records
    }
    answers, _ = _answers(asked, deadline)
    try:
        ordered = order_nodes([report for _, report in answers], len(records) - len(answers))
        nodes = dict(enumerate(fleet_of(ordered).topology.nodes))
        pieces, absent = declared_units(groups, nodes)
    except SchedulerError as error:
        return replace(facts, hardware_error=str(error))
    names = {node.node_id: node.name for node in facts.nodes}
    by_id = {record["NodeID"]: record for record in records}
    looks, wanted = {}, {}
    for rank, units in pieces.items():
        node_id = ordered[rank].node_id
        looks[examiners[node_id].look_at.remote(names[node_id], units, extension_named())] = by_id[node_id]
        wanted[_name(by_id[node_id])] = units
    found, silent = _answers(looks, deadline)
    unseen = [not_looked_at(name, wanted[name], why) for name, why in silent.items()]
    return replace(facts, hardware=(*(looked for _, looked in found), *unseen, *absent))


def _probe_links(
    records: Sequence[Mapping[str, Any]], examiners: Mapping[str, Any], deadline: float
) -> tuple[ProbedLink, ...]:
    """Have each node probe the way to a few others, one at a time. Nodes of one machine have none between them."""
    nodes = {record["NodeManagerAddress"]: record for record in reversed(records)}
    links: list[ProbedLink] = []
    for pairs in rounds_of(range(len(nodes)), _PARTNERS):
        asked = {}
        for pair in pairs:
            source, target = (list(nodes.values())[index] for index in pair)
            token = secrets.token_bytes(TOKEN_BYTES)
            port = examiners[target["NodeID"]].open_listener.remote(token)
            there = target["NodeID"], target["NodeManagerAddress"]
            asked[examiners[source["NodeID"]].probe.remote(*there, port, token)] = source
        answers, _ = _answers(asked, deadline)
        links.extend(link for _, link in answers)
    return tuple(links)


def _examiner_on(record: Mapping[str, Any], ports: PortRange | None) -> Any:
    actor = ray.remote(num_cpus=0, max_restarts=0)(Examiner)
    on_its_node = actor.options(scheduling_strategy=on_node(record["NodeID"]))
    return on_its_node.remote(record["NodeID"], record["NodeManagerAddress"], ports)


def _answers(
    asked: Mapping[Any, Mapping[str, Any]], deadline: float
) -> tuple[list[tuple[Mapping[str, Any], Any]], dict[str, str]]:
    """What nodes answered, and which did not and why."""
    pending = list(asked)
    done, late = (
        ray.wait(pending, num_returns=len(pending), timeout=max(0.0, deadline - time.monotonic()))
        if pending
        else ([], [])
    )
    answers, silent = [], {_name(asked[ref]): "no answer in time" for ref in late}
    for ref in done:
        try:
            answers.append((asked[ref], ray.get(ref)))
        except RayError as error:
            silent[_name(asked[ref])] = _reason(error)
    order = {id(record): index for index, record in enumerate(asked.values())}
    return sorted(answers, key=lambda answer: order[id(answer[0])]), silent


def _reason(error: RayError) -> str:
    """What a process on a node raised, in a line."""
    text = str(getattr(error, "cause", None) or error).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # Of a process that does not start, Ray shows its traceback; what it raised stands last.
    telling = [line for line in lines if "Error" in line.partition(":")[0]]
    return (telling or lines or [type(error).__name__])[-1 if telling else 0][:_FIRST_LINE]


def _name(record: Mapping[str, Any]) -> str:
    return f"node ({record['NodeManagerAddress']}, {record['NodeManagerHostname']}, {record['NodeID'][:8]})"


def _targets(record: Mapping[str, Any], port: int) -> list[Place]:
    node, ip = record["NodeID"], record["NodeManagerAddress"]
    found = [
        Place(node, ip, port, "processes", tells_time=True),
        Place(node, ip, int(record["NodeManagerPort"]), "Ray's node manager"),
        Place(node, ip, int(record["ObjectManagerPort"]), "Ray's object manager"),
    ]
    if HEAD_RESOURCE in record["Resources"]:
        _, gcs_port = host_and_port(ray.get_runtime_context().gcs_address)
        found.append(Place(node, ip, gcs_port, "Ray's head"))
    return found


# -- declared hardware -------------------------------------------------------------------------------


CHECK_S = 5.0


def declared_units(
    groups: Sequence[NodeGroup], nodes: Mapping[int, Node]
) -> tuple[dict[int, list[HardwareUnit]], list[HardwareFacts]]:
    """The pieces of each node that is there, by its rank, and what is to be said of those of other nodes.

    Raises:
        ConfigError: the variables of a node do not fit what the config says.
    """
    everybody = [nodes.get(rank, Node()) for rank in range(max(nodes, default=-1) + 1)]
    pieces: dict[int, list[HardwareUnit]] = {}
    for group in fill_in_groups(groups, everybody):
        for unit in group.hardware:
            of_node = pieces.setdefault(unit.node_rank, [])
            if unit not in of_node:  # several groups may list it
                of_node.append(unit)
    absent = [_absent(rank, units) for rank, units in sorted(pieces.items()) if rank not in nodes]
    return {rank: units for rank, units in pieces.items() if rank in nodes}, absent


def _absent(rank: int, units: Sequence[HardwareUnit]) -> HardwareFacts:
    what = ", ".join(dict.fromkeys(unit.type for unit in units))
    problem = f"that node is not there, so what the config declares for it ({what}) was not looked at"
    return HardwareFacts(f"node {rank}", 0, notes=(problem,))


def look_at(name: str, units: Sequence[HardwareUnit], extension: str = "") -> HardwareFacts:
    """Look at the pieces of the node that this process runs on, as before a launch.

    Args:
        name: the node's, for people.
        units: they.
        extension: the module that brings their types, as the asking process names it.
    """
    if extension:
        os.environ.setdefault(EXTENSION_VARIABLE, extension)
    try:
        problems = find_problems(units, CHECK_S)
    except SchedulerError as error:
        return HardwareFacts(name, len(units), faults=(str(error),))
    faults = tuple(problem.text for problem in problems if problem.stops_a_launch)
    return HardwareFacts(name, len(units), faults, tuple(p.text for p in problems if not p.stops_a_launch))


def not_looked_at(name: str, units: Sequence[HardwareUnit], why: str) -> HardwareFacts:
    """What is said of the pieces of a node that did not answer."""
    return HardwareFacts(
        name, 0, faults=(f"{counted(len(units), 'piece')} of hardware not looked at: {why}",)
    )
