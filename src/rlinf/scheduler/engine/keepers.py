"""The Ray actors that keep jobs which outlive their drivers: one a job, found by its name, on the head's node."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError
from ray.util import list_named_actors

from rlinf.scheduler.engine.addresses import LOCAL
from rlinf.scheduler.engine.engine import (
    HEAD_RESOURCE,
    NAMESPACE,
    RayEngine,
    join_or_start,
    on_node,
    ray_errors,
)
from rlinf.scheduler.errors import ClusterError, ClusterTimeout, SchedulerError
from rlinf.scheduler.wording import did_you_mean, list_names, seconds_text

_PREFIX = "job:"


def join_lasting(address: str | None, timeout_s: float) -> RayEngine:
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


def kept_names() -> list[str]:
    """The names of the jobs that are kept on the Ray that this process is connected to.

    Raises:
        ClusterError: Ray does not say.
    """
    with ray_errors("Ray does not say which jobs it keeps"):
        actors = list_named_actors(all_namespaces=True)
    names = [actor["name"] for actor in actors if actor["namespace"] == NAMESPACE]
    return sorted(name.removeprefix(_PREFIX) for name in names if name.startswith(_PREFIX))


def record_of(name: str, timeout_s: float) -> bytes:
    """What the keeper of a job says of it: its own record, encoded.

    Raises:
        ClusterError: no job of that name is kept; the text names those that are.
        ClusterTimeout: the keeper does not answer.
    """
    try:
        keeper = ray.get_actor(_PREFIX + name, namespace=NAMESPACE)
        return _answer(keeper.record.remote(), name, timeout_s)
    except (ValueError, RayActorError):
        raise _no_such_job(name) from None


def begin_keeper(keeper_class: type, name: str, order: bytes, timeout_s: float) -> bytes:
    """What the keeper of a job says of it; one is started if there is none. Of several that want one, one starts it.

    Args:
        keeper_class: of the actor; its `open` takes the order, and says the same to who comes later.
        name: of the job.
        order: what to open, encoded.
        timeout_s: how long all of it may take, in seconds.

    Raises:
        ClusterError: it could not be opened.
        ClusterTimeout: nor in time.
    """
    deadline = time.monotonic() + timeout_s
    with ray_errors(f"the keeper of job '{name}' did not start"):
        make = ray.remote(keeper_class).options(
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


def wait_for_keeper_end(name: str, timeout_s: float) -> bool:
    """Wait until the keeper of a job is gone and its name is free; whether it is."""
    try:
        keeper = ray.get_actor(_PREFIX + name, namespace=NAMESPACE)
        ray.get(keeper.wait_for_end.remote(), timeout=timeout_s)
    except GetTimeoutError:
        return False
    except (ValueError, RayActorError):
        return True
    return False


def _answer(reference: Any, name: str, timeout_s: float) -> bytes:
    try:
        record: bytes = ray.get(reference, timeout=max(timeout_s, 0.0))
    except GetTimeoutError:
        problem = f"the keeper of job '{name}' has not answered after {seconds_text(timeout_s)}"
        raise ClusterTimeout(problem) from None
    except RayTaskError as error:
        if isinstance(error.cause, SchedulerError):
            raise error.cause from None
        raise
    if not record:
        raise _no_such_job(name)
    return record


def _head() -> str:
    nodes = [node for node in ray.nodes() if node["Alive"]]
    heads = [node["NodeID"] for node in nodes if HEAD_RESOURCE in node["Resources"]]
    return str((heads or [node["NodeID"] for node in nodes])[0])


def _no_such_job(name: str) -> ClusterError:
    there = [each for each in kept_names() if each != name]
    listed = f"there are {list_names(there)}" if there else "there is none"
    start = "Cluster(job=..., detached=True) begins one"
    hint = did_you_mean(name, there)
    return ClusterError(
        "; ".join(filter(None, [f"no job '{name}' is kept on this Ray: {listed}", hint, start]))
    )
