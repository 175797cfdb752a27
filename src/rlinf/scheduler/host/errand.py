"""What a Ray actor is to host, left for it with Ray's head, and the actor.

Not an argument of its method: with the first that it unpacks, Ray loads pydantic and more, which a rank has no use for
and which takes it longer than to join the job.
"""

from __future__ import annotations

import pickle

import ray
from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get, _internal_kv_put

from rlinf.scheduler.errors import ClusterError
from rlinf.scheduler.host.host import WorkerHost
from rlinf.scheduler.host.protocol import HostSpec

_NAMESPACE = b"rlinf"


class HostActor:
    """The Ray actor of every worker."""

    def run(self) -> None:
        """As `WorkerHost.run`, of what was left for this actor.

        Raises:
            ClusterError: nothing was, or it was withdrawn.
        """
        actor_id = ray.get_runtime_context().get_actor_id()
        WorkerHost().run(_take(actor_id))


def leave(actor_id: str, spec: HostSpec) -> None:
    """Leave for an actor what it is to host; before its `run` is called."""
    _internal_kv_put(_key(actor_id), pickle.dumps(spec), namespace=_NAMESPACE)


def withdraw(actor_id: str) -> None:
    """Take back what was left for an actor that has not begun."""
    _internal_kv_del(_key(actor_id), namespace=_NAMESPACE)


def _take(actor_id: str) -> HostSpec:
    left = _internal_kv_get(_key(actor_id), namespace=_NAMESPACE)
    if left is None:
        raise ClusterError(f"nothing was left for actor {actor_id} to host: its launch was given up")
    withdraw(actor_id)
    spec: HostSpec = pickle.loads(left)
    return spec


def _key(actor_id: str) -> bytes:
    return f"host:{actor_id}".encode()
