"""The Ray actors that keep jobs which outlive their drivers: one a job, found by its name, on the head's node."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import ray
from ray._private.state import actors
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayActorError, RayError, RayTaskError
from ray.util import list_named_actors

from rlinf_scheduler.errors import ClusterError, ClusterTimeout, SchedulerError
from rlinf_scheduler.proc import ProcessId, end_all, living, with_descendants
from rlinf_scheduler.ray_backend.addresses import LOCAL
from rlinf_scheduler.ray_backend.backend import (
    HEAD_RESOURCE,
    NAMESPACE,
    RayBackend,
    join_or_start,
    on_node,
    ray_errors,
)
from rlinf_scheduler.wording import did_you_mean, list_names, seconds_text

_PREFIX = "job:"


def join_lasting(address: str | None, timeout_s: float) -> RayBackend:
    """A connection to a Ray that this program does not start, for it would end with it.

    Raises:
        ClusterTimeout: nothing answers at the address in time.
        ClusterError: there is none to join, or it refuses this process.
    """
    wanted = address or os.environ.get("RAY_ADDRESS") or "auto"
    if wanted == LOCAL:
        problem = "a Ray that this program starts ends with it, and with it any job"
        raise ClusterError(f"{problem}: `rlinf node start --head` begins one that does not")
    return join_or_start(wanted, None, timeout_s)


def detached_names() -> list[str]:
    """The names of the detached jobs on the Ray that this process is connected to.

    Raises:
        ClusterError: Ray does not say.
    """
    with ray_errors("Ray does not say which jobs it keeps"):
        actors = list_named_actors(all_namespaces=True)
    names = [actor["name"] for actor in actors if actor["namespace"] == NAMESPACE]
    return sorted(name.removeprefix(_PREFIX) for name in names if name.startswith(_PREFIX))


def record_of(name: str, timeout_s: float) -> bytes:
    """What the job server of a job says of it: its own record, encoded.

    Raises:
        ClusterError: no job of that name is kept; the text names those that are.
        ClusterTimeout: the job server does not answer.
    """
    try:
        job_server = ray.get_actor(_PREFIX + name, namespace=NAMESPACE)
        return _answer(job_server.record.remote(), name, timeout_s)
    except (ValueError, RayActorError):
        raise _no_such_job(name) from None


def records_of(names: Sequence[str], timeout_s: float) -> dict[str, bytes | None]:
    """What job servers of jobs say of them, asked all at once; None of one that does not answer in time.

    One that has just ended, or has opened nothing, is left out.
    """
    asked: dict[str, Any] = {}
    for name in names:
        with suppress(ValueError, RayActorError):
            asked[name] = ray.get_actor(_PREFIX + name, namespace=NAMESPACE).record.remote()
    if asked:
        ray.wait(list(asked.values()), num_returns=len(asked), timeout=max(timeout_s, 0.0))
    found: dict[str, bytes | None] = {}
    for name, reference in asked.items():
        try:
            found[name] = _answer(reference, name, 0.0)
        except ClusterTimeout:
            found[name] = None
        except (ClusterError, RayActorError):
            continue
    return found


def start_job_server(job_server_class: type, name: str, order: bytes, timeout_s: float) -> bytes:
    """What the job server of a job says of it; one is started if there is none.

    Of several that want one, one starts it.

    Args:
        job_server_class: of the actor; its `open` takes the order, and says the same to who comes later.
        order: what to open, encoded.
        timeout_s: how long all of it may take, in seconds.

    Raises:
        ClusterError: it could not be opened.
        ClusterTimeout: nor in time.
    """
    deadline = time.monotonic() + timeout_s
    with ray_errors(f"the job server of job '{name}' did not start"):
        make = ray.remote(job_server_class).options(
            name=_PREFIX + name,
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=0,
            scheduling_strategy=on_node(_head()),
        )
        with suppress(RayActorError):  # one that was about to end, as it seems
            return _answer(make.remote().open.remote(order), name, deadline - time.monotonic())
        return _answer(make.remote().open.remote(order), name, deadline - time.monotonic())


def wait_for_job_server_end(name: str, timeout_s: float) -> bool:
    """Wait until the job server of a job is gone and its name is free; whether it is."""
    try:
        job_server = ray.get_actor(_PREFIX + name, namespace=NAMESPACE)
        ray.get(job_server.wait_for_end.remote(), timeout=timeout_s)
    except (GetTimeoutError, ActorUnavailableError):
        return False
    except (ValueError, RayActorError):
        return True
    return False


def kill_job_server(name: str, timeout_s: float) -> bool:
    """End the job server of a job by force, also one that is stopped or does not answer; whether it is gone.

    Raises:
        ClusterError: no job of that name is kept; the text names those that are.
    """
    try:
        job_server = ray.get_actor(_PREFIX + name, namespace=NAMESPACE)
    except ValueError:
        raise _no_such_job(name) from None
    with ray_errors(f"the job server of job '{name}' cannot be ended"):
        known = actors(job_server._actor_id.hex())
        if known.get("Pid"):  # else it has no process yet
            # Ray asks a process to end, and one that is stopped does not hear that.
            kill = ray.remote(num_cpus=0, max_retries=0)(_kill_here)
            node = on_node(known["Address"]["NodeID"])
            with suppress(RayError):  # its node does not answer, or has just ended
                ray.get(kill.options(scheduling_strategy=node).remote(known["Pid"]), timeout=timeout_s / 2)
        ray.kill(job_server, no_restart=True)
    return wait_for_job_server_end(name, timeout_s / 2)


def _kill_here(pid: int) -> None:
    """End a process that the same raylet has started as this one, and what it has started itself."""
    raylet = os.getppid()

    def found() -> list[ProcessId]:
        everybody = living()
        own = [process for process, parent in everybody.items() if (process.pid, parent) == (pid, raylet)]
        return with_descendants(own, everybody)

    end_all(found, 0.0)


def _answer(reference: Any, name: str, timeout_s: float) -> bytes:
    began = time.monotonic()
    try:
        record: bytes = ray.get(reference, timeout=max(timeout_s, 0.0))
    except (GetTimeoutError, ActorUnavailableError):  # Ray gives up on its own, too, where it is stopped
        problem = (
            f"the job server of job '{name}' has not answered after {seconds_text(time.monotonic() - began)}; "
            f"where it is stopped or stuck, {by_force(name)}"
        )
        raise ClusterTimeout(problem) from None
    except RayTaskError as error:
        if isinstance(error.cause, SchedulerError):
            raise error.cause from None
        raise
    if not record:
        raise _no_such_job(name)
    return record


def by_force(name: str) -> str:
    """What to do where the job server of a job does not do as it is asked."""
    return f"`rlinf jobs stop {shlex.quote(name)} --force` kills it, and ends its job"


def _head() -> str:
    nodes = [node for node in ray.nodes() if node["Alive"]]
    heads = [node["NodeID"] for node in nodes if HEAD_RESOURCE in node["Resources"]]
    return str((heads or [node["NodeID"] for node in nodes])[0])


def _no_such_job(name: str) -> ClusterError:
    there = [each for each in detached_names() if each != name]
    listed = f"there are {list_names(there)}" if there else "there is none"
    start = "Cluster(job=..., detached=True) begins one"
    hint = did_you_mean(name, there)
    return ClusterError(
        "; ".join(filter(None, [f"no detached job '{name}' runs on this Ray: {listed}", hint, start]))
    )
