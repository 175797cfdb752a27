"""What channels and weights need of the process they are used in; whoever runs the process installs it.

A worker's host and the driver's cluster install theirs; `rlinf.testing.LocalRuntime` is one without any
cluster.
"""

from __future__ import annotations

from typing import Protocol

from rlinf.scheduler.channel.connections import Connections
from rlinf.scheduler.channel.spec import ChannelSpec
from rlinf.scheduler.comm.directory import DirectoryClient
from rlinf.scheduler.comm.endpoint import Endpoint
from rlinf.scheduler.comm.forking import FORKED, on_fork_in_child
from rlinf.scheduler.comm.messenger import Messenger
from rlinf.scheduler.errors import ClusterError
from rlinf.scheduler.weights import Weights


class Runtime(Protocol):
    """A process's place in a cluster."""

    @property
    def messenger(self) -> Messenger:
        """The process's messenger."""

    @property
    def directory(self) -> DirectoryClient:
        """Where names are looked up."""

    @property
    def own_name(self) -> str:
        """How the process is called: "driver" or "rollout:3"."""

    @property
    def weights(self) -> Weights:
        """Publishes and fetches weights."""

    def start_channel_server(
        self,
        name: str,
        spec: ChannelSpec,
        group_affinity: str | None = None,
        group_rank_affinity: int | None = None,
    ) -> Endpoint:
        """Start a process that holds the channel (see `host_channel`) near a worker; how it is reached.

        Args:
            name: the channel's name.
            spec: the channel.
            group_affinity: the group of the worker whose node and device the channel shares; None for the
                caller's own.
            group_rank_affinity: that worker's rank; None for the caller's own, or 0 in another group.

        Raises:
            ChannelExists: the name is taken.
        """


class _Installed:
    """The runtime of this process, and the connections that its channels share."""

    def __init__(self) -> None:
        self.runtime: Runtime | None = None
        self.connections: Connections | None = None
        self.hint = _HINT


def set_runtime(runtime: Runtime | None, why: str = "") -> None:
    """Make `runtime` the one of this process; operations under an earlier one are lost.

    Args:
        runtime: see above; None for none.
        why: of none: what whoever needs one is told; "" for what is always so.
    """
    if _installed.connections is not None:
        _installed.connections.close()
    on_fork_in_child(_forget_in_child)
    _installed.runtime = runtime
    _installed.hint = why or _HINT
    _installed.connections = None if runtime is None else Connections(runtime.messenger)


def current_runtime() -> Runtime:
    """Return the runtime of this process.

    Raises:
        ClusterError: there is none.
    """
    if _installed.runtime is None:
        raise ClusterError(_installed.hint)
    return _installed.runtime


def current_connections() -> Connections:
    """Return the connections of this process to channels.

    Raises:
        ClusterError: there is no runtime.
    """
    if _installed.connections is None:
        raise ClusterError(_installed.hint)
    return _installed.connections


def _forget_in_child() -> None:
    if _installed.connections is not None:
        _installed.connections.abandon(FORKED)
        _installed.hint = FORKED
    _installed.runtime = _installed.connections = None


_HINT = (
    "there is no cluster in this process: channels and weights are used in the driver after Cluster(...), "
    "or inside a worker"
)

_installed = _Installed()
