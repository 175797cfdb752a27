"""Devices that a job holds: taken from Ray for as long as the job lasts, so that nobody else is given them.

A hold is a placement group of Ray's with the devices' share of the node's resources: it needs no process, Ray gives
these devices to no other program, and takes the hold back when the job's driver is gone, however it went. Ray chooses
itself which of a node's devices a placement group gets; a task in it tells. Where these are not the ones that were
planned, devices are taken one by one until they are. The placement group's name says what is held, and by whom.

Ray takes a hold back as it learns that the process which took it is gone. What that process had asked for by then and
Ray records later it would keep for ever: each look at the holds gives back those of the dead.
"""

from __future__ import annotations

import getpass
import logging
import os
import platform
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray
from ray._private.state import actors, available_resources_per_node, jobs
from ray.exceptions import RayError
from ray.util import placement_group_table
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rlinf_scheduler.errors import ClusterError, ClusterTimeout
from rlinf_scheduler.hardware.vendors import vendor_named, vendors
from rlinf_scheduler.ray_backend.backend import ray_errors
from rlinf_scheduler.ray_backend.leaving import do_while_head_answers
from rlinf_scheduler.wording import printable

NODE_LABEL = "ray.io/node-id"
# Ray answers in milliseconds; on a busy machine in seconds.
ANSWER_S = 60.0
# What is given back has to pass through Ray's tables.
RETURNED_S = 10.0
_LOOK_S = 0.01
_MARK = "rlinf-devices"
_MAX_PROGRAM = 80
_NOT_NOW = ("NO_RESOURCES", "INFEASIBLE")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DeviceHold:
    """Devices of one node that a job has taken.

    Attributes:
        job: its id, hex; where a driver has taken them, Ray's.
        actor: Ray's id of the actor that has taken them for the job, hex; "" of a driver.
        devices: as the vendor's visibility variable names them.
        holder: who it is, for people.
    """

    job: str
    actor: str
    node_id: str
    devices: tuple[str, ...]
    since: float
    holder: str

    def to_name(self) -> str:
        """It as the name of a placement group; no two are the same."""
        devices, since = ",".join(self.devices), f"{self.since:.0f}"
        unique = uuid.uuid4().hex
        return "|".join([_MARK, self.job, self.actor, self.node_id, devices, since, unique, self.holder])

    @classmethod
    def from_name(cls, name: str) -> DeviceHold | None:
        """The hold of which a placement group's name tells; None if it is no hold's."""
        parts = name.split("|", 7)
        if len(parts) != 8 or parts[0] != _MARK or not parts[5].isdecimal():
            return None
        _, job, actor, node_id, devices, since, _, holder = parts
        return cls(job, actor, node_id, tuple(devices.split(",")), float(since), holder)


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """Devices of a node that are wanted.

    Attributes:
        resource: the name under which Ray counts them.
        names: as the vendor's visibility variable names them.
    """

    node_id: str
    resource: str
    names: tuple[str, ...]


class Taken(ClusterError):
    """Somebody has wanted devices.

    Args:
        names: those that cannot be had, as far as it is known.
        holds: whose they are; none: they are other programs' of Ray's.
    """

    def __init__(self, node_id: str, names: Sequence[str], holds: Sequence[DeviceHold]) -> None:
        super().__init__(node_id, tuple(names), tuple(holds))
        self.node_id = node_id
        self.names = tuple(names)
        self.holds = tuple(holds)


def resource_of(accelerator_type: str) -> str:
    """The name under which Ray counts a vendor's devices, "" where it does not."""
    vendor = vendor_named(accelerator_type)
    return vendor.ray_resource if vendor is not None else ""


def holds_in_cluster() -> list[DeviceHold]:
    """All holds of all jobs of the cluster that this process is connected to; those of the dead are given back.

    Raises:
        ClusterError: Ray does not say.
    """
    with ray_errors("Ray does not say which devices are held"):
        table: dict[str, dict[str, Any]] = placement_group_table()
        entries = [(entry, DeviceHold.from_name(entry["name"])) for entry in table.values()]
        recorded = [
            (entry, hold) for entry, hold in entries if hold is not None and entry["state"] != "REMOVED"
        ]
        dead = _dead([hold for _, hold in recorded])
        _remove([_group_of(entry) for entry, hold in recorded if hold in dead])
    found = [hold for entry, hold in recorded if hold not in dead and entry["state"] == "CREATED"]
    # Devices that were taken one by one are one hold.
    holds = {(hold.job, hold.node_id, hold.devices): hold for hold in found}
    return sorted(holds.values(), key=lambda hold: (hold.node_id, hold.since))


def _dead(holds: Sequence[DeviceHold]) -> set[DeviceHold]:
    """Return the holds whose actor or driver Ray knows to be gone."""
    takers = {hold.actor for hold in holds if hold.actor}
    gone = {actor for actor in takers if actors(actor).get("State") == "DEAD"}
    if not all(hold.actor for hold in holds):
        gone.update(job["JobID"] for job in jobs() if job["IsDead"])
    return {hold for hold in holds if (hold.actor or hold.job) in gone}


def _group_of(entry: Mapping[str, Any]) -> PlacementGroup:
    return PlacementGroup(ray.PlacementGroupID.from_hex(entry["placement_group_id"]))


def given_elsewhere(holds: Sequence[DeviceHold]) -> dict[str, int]:
    """How many accelerators of each node Ray has given to programs that are not ours, by the nodes' ids.

    Raises:
        ClusterError: Ray does not say.
    """
    with ray_errors("Ray does not say which devices are free"):
        free = available_resources_per_node()
        totals = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
    ours = Counter(hold.node_id for hold in holds for _ in hold.devices)
    resources = {vendor.ray_resource for vendor in vendors()}
    given = {
        node_id: sum(int(total.get(name, 0) - free.get(node_id, {}).get(name, 0)) for name in resources)
        for node_id, total in totals.items()
    }
    return {node_id: number - ours[node_id] for node_id, number in given.items() if number > ours[node_id]}


class DeviceHolds:
    """What this process has taken for its job.

    Args:
        job: its id; "" for that of this process's Ray job.
        holder: what people call it; "" for this process's program.
    """

    def __init__(self, job: str = "", holder: str = "") -> None:
        self._job = job
        self._holder = holder
        self._groups: dict[Any, PlacementGroup] = {}
        # Held while Ray is asked, by threads that launch groups; the I/O thread never waits for it.
        self._lock = threading.Lock()

    def take(self, wanted: Sequence[NodeDevices]) -> list[PlacementGroup]:
        """Take devices, all or none; what the job has already stays as it is.

        Returns:
            What was taken now, for `release`.

        Raises:
            Taken: some are not to be had now; nothing was taken.
            ClusterTimeout: Ray does not answer.
            ClusterError: Ray cannot do it.
        """
        with self._lock, ray_errors("Ray does not reserve devices"), _all_or_none() as taken:
            job = self._job or _ray_job()
            missing = list(_not_held(wanted, job))
            for each in missing:  # whose holder is known, for that Ray need not be asked
                known = _taken(each, job)
                if known.holds:
                    raise known
            counted = _counts_of_nodes()
            missing = [each for each in missing if counted[each.node_id, each.resource] >= len(each.names)]
            request = partial(_request, job=job, holder=_who(self._holder))
            for each, group in [(each, request(each, len(each.names))) for each in missing]:
                taken.append(group)
                if not _is_given(group):
                    raise _taken(each, job)
            in_part = [
                (each, group)
                for each, group in zip(missing, taken, strict=True)
                if len(each.names) < counted[each.node_id, each.resource]
            ]
            found = _devices_in([(group, each.resource, len(each.names)) for each, group in in_part])
            for (each, group), names in zip(in_part, found, strict=True):
                if set(names) != set(each.names):
                    _align(each, group, taken, request, job)
            self._groups.update((group.id, group) for group in taken)
            return list(taken)

    def of_others(self) -> list[DeviceHold]:
        """What other jobs have taken.

        Raises:
            ClusterError: Ray does not say.
        """
        job = self._job or _ray_job()
        return [hold for hold in holds_in_cluster() if hold.job != job]

    def release(self, taken: Sequence[PlacementGroup] | None = None) -> None:
        """Give back what this process has taken: this, or (None) everything.

        Where Ray's head does not answer that takes seconds, and not a minute for each: Ray has it back with the job.
        """
        given = list(self._groups.values() if taken is None else taken)
        for group in given:  # no lock: who leaves the job does not wait for a launch that asks Ray
            self._groups.pop(group.id, None)
        if given and ray.is_initialized():
            do_while_head_answers(partial(_remove, given))


@contextmanager
def _all_or_none() -> Iterator[list[PlacementGroup]]:
    taken: list[PlacementGroup] = []
    try:
        yield taken
    except BaseException:
        _remove(taken)
        raise


def _put_back(groups: Sequence[PlacementGroup]) -> None:
    """Give back what Ray has given, and wait until it has it: it would refuse the next request until then."""
    ids = {group.id.hex() for group in groups}
    try:
        _wait_until(lambda: ids <= _known_to_nodes(ids))
    finally:
        _remove(groups)
    _wait_until(lambda: not _known_to_nodes(ids))


def _known_to_nodes(ids: Set[str]) -> set[str]:
    """Those placement groups of which a node has said that it has them, and not yet that they are gone."""
    # Of what it gives a placement group, a node tells under a name that ends with the group's number.
    said = {name.rpartition("_")[2] for node in available_resources_per_node().values() for name in node}
    return said.intersection(ids)


def _wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + RETURNED_S
    while not is_so() and time.monotonic() < deadline:
        time.sleep(_LOOK_S)


def _remove(groups: Sequence[PlacementGroup]) -> None:
    if ray.is_initialized():
        for group in groups:
            with suppress(RayError):
                remove_placement_group(group)


def _ray_job() -> str:
    """Ray's id of the job that this process belongs to."""
    job: str = ray.get_runtime_context().get_job_id()
    return job


def _not_held(wanted: Sequence[NodeDevices], job: str) -> Iterator[NodeDevices]:
    """What of it the job does not have."""
    ours = {(hold.node_id, name) for hold in holds_in_cluster() if hold.job == job for name in hold.devices}
    for each in wanted:
        names = tuple(name for name in each.names if (each.node_id, name) not in ours)
        if names:
            yield NodeDevices(each.node_id, each.resource, names)


def _counts_of_nodes() -> Mapping[tuple[str, str], int]:
    """How many of a resource Ray counts on a node, given to somebody or not."""
    return Counter(
        {
            (node["NodeID"], resource): int(amount)
            for node in ray.nodes()
            if node["Alive"]
            for resource, amount in node["Resources"].items()
        }
    )


def _request(wanted: NodeDevices, count: int, *, job: str, holder: str) -> PlacementGroup:
    actor = ray.get_runtime_context().get_actor_id() or ""
    hold = DeviceHold(job, actor, wanted.node_id, wanted.names, time.time(), holder)
    return placement_group(
        [{wanted.resource: count}],
        strategy="STRICT_PACK",
        name=hold.to_name(),
        bundle_label_selector=[{NODE_LABEL: wanted.node_id}],
    )


def _who(holder: str) -> str:
    # Its name alone: everybody on the cluster can read this, and options may be secrets.
    program = printable(holder or os.path.basename(sys.argv[0]))[:_MAX_PROGRAM] or "python"
    return f"{program} (process {os.getpid()} on {platform.node()}, user {_user()})"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return str(os.getuid())


def _is_given(group: PlacementGroup) -> bool:
    """Whether it has what it asked for; False once Ray has found that there is not so much."""
    deadline = time.monotonic() + ANSWER_S
    while time.monotonic() < deadline:
        entry = placement_group_table(group)
        if entry["state"] == "CREATED":
            return True
        if entry["state"] == "REMOVED" or entry["stats"]["scheduling_state"] in _NOT_NOW:
            return False
        time.sleep(_LOOK_S)
    raise ClusterTimeout(f"Ray has not said within {ANSWER_S:.0f} s whether devices can be reserved")


def _align(
    wanted: NodeDevices,
    group: PlacementGroup,
    taken: list[PlacementGroup],
    request: Callable[[NodeDevices, int], PlacementGroup],
    job: str,
) -> None:
    """Have those devices that are wanted, not as many others of the node.

    Args:
        taken: what was taken so far, with `group`; it is changed to what is.
        request: asks Ray for so many.

    Raises:
        Taken: somebody has some of them.
    """
    # Ray gives the first ones that are free. One by one, then, until they have all come.
    taken.remove(group)
    _put_back([group])
    missing, others = set(wanted.names), []
    try:
        while missing:
            single = request(wanted, 1)
            taken.append(single)
            if not _is_given(single):
                raise _taken(wanted, job, sorted(missing))
            ((device,),) = _devices_in([(single, wanted.resource, 1)])
            if device in missing:
                missing.remove(device)
            else:
                others.append(single)
    finally:
        for single in others:
            taken.remove(single)
        _put_back(others)


def _devices_in(groups: Sequence[tuple[PlacementGroup, str, int]]) -> list[list[str]]:
    """Which devices each placement group of so many of a resource has got; all are asked at once."""
    asked = [_look_into(*each) for each in groups]
    found: list[list[str]] = ray.get(asked, timeout=ANSWER_S)
    return found


def _look_into(group: PlacementGroup, resource: str, count: int) -> Any:
    amount: dict[str, Any] = {"num_gpus": count} if resource == "GPU" else {"resources": {resource: count}}
    # A process that has looked looks again: it has not touched a device, and to start one takes longer than all else.
    look = ray.remote(num_cpus=0, max_retries=0, max_calls=0, **amount)(_own_devices)
    strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
    return look.options(scheduling_strategy=strategy).remote(resource)


def _own_devices(resource: str) -> list[str]:
    found: list[str] = ray.get_runtime_context().get_accelerator_ids().get(resource, [])
    return found


def _taken(wanted: NodeDevices, job: str, names: Sequence[str] = ()) -> Taken:
    """Their holders, as it seems now."""
    asked = set(names or wanted.names)
    holds = [
        hold
        for hold in holds_in_cluster()
        if hold.node_id == wanted.node_id and hold.job != job and asked & set(hold.devices)
    ]
    held = {name for hold in holds for name in hold.devices}
    return Taken(wanted.node_id, sorted(asked & held) or sorted(asked), holds)
