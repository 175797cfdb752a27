"""What a Ray actor is to host, left for it with Ray's head, and the actor.

Not an argument of its method: with the first that it unpacks, Ray loads pydantic and more, which a rank has no use for
and which takes it longer than to join the job.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ray
from ray.core.generated.gcs_pb2 import ActorTableData
from ray.experimental.internal_kv import internal_kv_get_gcs_client

from rlinf_scheduler.comm.forking import end_without_libraries, on_fork_in_child
from rlinf_scheduler.errors import ClusterError
from rlinf_scheduler.host.host import WorkerHost
from rlinf_scheduler.host.protocol import HostSpec

_NAMESPACE = b"rlinf"
# Of jobs that outlive the drivers by whose ids Ray knows them: the id of their job server's actor stands in the key.
_DETACHED_NAMESPACE = b"rlinf-kept"
_PREFIX = "host:"
# So long Ray's head may take to answer: where a launch needs it, and where something is only tidied up.
LEFT_WITHIN_S, TIDY_S = 30.0, 2.0
# With so many letters the id of an actor ends: the id of its job.
_JOB_LETTERS = 8

_log = logging.getLogger(__name__)


class HostActor:
    """The Ray actor of every worker."""

    _detached = False

    def run(self) -> None:
        """As `WorkerHost.run`, of what was left for this actor.

        Raises:
            ClusterError: nothing was, or it was withdrawn.
        """
        # Of a child that a thread of a user's forks that thread is the last: it returns, and Ray's C++ would wait.
        on_fork_in_child(end_without_libraries)
        actor_id = ray.get_runtime_context().get_actor_id()
        WorkerHost().run(_take(actor_id, detached=self._detached))


class DetachedHostActor(HostActor):
    """The same of a job that outlives its drivers."""

    _detached = True


def hand_over(actor_id: str, spec: HostSpec) -> None:
    """Leave for an actor what it is to host; before its `run` is called.

    Raises:
        ClusterError: this process has left Ray; Ray raises its own where its head does not answer.
    """
    key, namespace = _key(actor_id), _NAMESPACE
    if spec.detached_job:
        key, namespace = _detached_key(actor_id, _own_actor()), _DETACHED_NAMESPACE
    _store().internal_kv_put(key, pickle.dumps(spec), True, namespace, timeout=LEFT_WITHIN_S)


def withdraw(actor_ids: Iterable[str], *, detached: bool = False) -> None:
    """Take back what was left for actors that have not begun; where Ray does not answer it stays, without an error."""
    if detached:
        _delete(map(_detached_key, actor_ids), _DETACHED_NAMESPACE, by_prefix=True)
    else:
        _delete(map(_key, actor_ids), _NAMESPACE, by_prefix=False)


def withdraw_all(job_id: str) -> None:
    """Take back what was left for any actor of a Ray job; raises nothing, as `withdraw`."""
    _delete([_job_key(job_id)], _NAMESPACE, by_prefix=True)


def withdraw_of_the_dead() -> None:
    """Take back what drivers and job servers left that were killed in a launch; raises nothing, as `withdraw`.

    Where Ray's head does not answer it takes some times `TIDY_S`: nothing for the I/O thread.
    """
    try:
        store = _store()
        keys = store.internal_kv_keys(_PREFIX.encode(), _NAMESPACE, timeout=TIDY_S)
        jobs = {key.decode().split(":")[1] for key in keys}
        if jobs:
            known = store.get_all_job_info(timeout=TIDY_S).items()
            jobs -= {job_id.hex() for job_id, job in known if not job.is_dead}
        detached = store.internal_kv_keys(_PREFIX.encode(), _DETACHED_NAMESPACE, timeout=TIDY_S)
        job_servers = {key: key.decode().split(":")[2] for key in detached}
        living = _living(store, set(job_servers.values())) if job_servers else set()
    except Exception as error:  # noqa: BLE001 - only tidied up
        _log.debug("what ended jobs have left with Ray is not known: %s", error)
    else:
        _delete(map(_job_key, jobs), _NAMESPACE, by_prefix=True)
        left = [key for key, job_server in job_servers.items() if job_server not in living]
        _delete(left, _DETACHED_NAMESPACE, by_prefix=False)


def _take(actor_id: str, *, detached: bool) -> HostSpec:
    key, namespace = _key(actor_id), _NAMESPACE
    if detached:
        namespace = _DETACHED_NAMESPACE
        keys = _store().internal_kv_keys(_detached_key(actor_id), namespace, timeout=LEFT_WITHIN_S)
        key = keys[0] if keys else b""
    left = _store().internal_kv_get(key, namespace, timeout=LEFT_WITHIN_S) if key else None
    if left is None:
        raise ClusterError(f"nothing was left for actor {actor_id} to host: its launch was given up")
    withdraw([actor_id], detached=detached)
    spec: HostSpec = pickle.loads(left)
    return spec


def _delete(keys: Iterable[bytes], namespace: bytes, *, by_prefix: bool) -> None:
    try:
        for key in keys:
            _store().internal_kv_del(key, by_prefix, namespace, timeout=TIDY_S)
    except Exception as error:  # noqa: BLE001 - whatever Ray raises
        # After the first one: each further key would be waited for as long.
        _log.debug("what was left for hosts stays with Ray: %s", error)


def _store() -> Any:
    client = internal_kv_get_gcs_client()
    if client is None:
        raise ClusterError("this process is not connected to Ray any more")
    return client


def _key(actor_id: str) -> bytes:
    return _job_key(actor_id[-_JOB_LETTERS:]) + actor_id.encode()


def _detached_key(actor_id: str, job_server: str = "") -> bytes:
    """The key of what a job server leaves; without its id: how that begins."""
    return f"{_PREFIX}{actor_id}:{job_server}".encode()


def _own_actor() -> str:
    own: str = ray.get_runtime_context().get_actor_id()
    return own


def _living(store: Any, actor_ids: Collection[str]) -> set[str]:
    """Those of some actors that Ray has, or is about to have; asked all at once."""

    async def ask() -> set[str]:
        wanted = map(ray.ActorID.from_hex, actor_ids)
        asked = [store.async_get_all_actor_info(actor_id=each, timeout=TIDY_S) for each in wanted]
        found = [actor for told in await asyncio.gather(*asked) for actor in told.items()]
        return {actor_id.hex() for actor_id, actor in found if actor.state != ActorTableData.DEAD}

    # A thread of its own: in the caller's, a notebook's say, another loop may run.
    with ThreadPoolExecutor(1) as beside:
        return beside.submit(lambda: asyncio.run(ask())).result()


def _job_key(job_id: str) -> bytes:
    return f"{_PREFIX}{job_id}:".encode()
