"""Channels and weights between plain processes, without a cluster: for tests of programs that use them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rlinf_scheduler.channel import (
    SAVE_TIMEOUT_S,
    Channel,
    Checkpoint,
    HeldChannel,
    Lease,
    StartChannel,
    Starter,
    host_channel,
)
from rlinf_scheduler.channel.node_holder import NodeHolder
from rlinf_scheduler.channel.starting import check_group
from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.secret import ClusterSecret
from rlinf_scheduler.config.net_emulation import NetEmulation, read_net_emulation
from rlinf_scheduler.errors import ChannelExists, ConfigError, raise_config_errors
from rlinf_scheduler.observe.own_activity import OwnActivity
from rlinf_scheduler.observe.reasons import offer_reasons
from rlinf_scheduler.observe.status import JobStatus
from rlinf_scheduler.observe.status_service import StatusService, begin_status, received
from rlinf_scheduler.observe.time_service import TimeService
from rlinf_scheduler.observe.why import WITHIN_S, Why, WhyService, why
from rlinf_scheduler.rooms import of_room
from rlinf_scheduler.session import Session
from rlinf_scheduler.session.job_file import announce
from rlinf_scheduler.weights.index_service import open_index_when_needed


@dataclass(frozen=True, slots=True)
class LocalAddress:
    """What another process needs to join; picklable. It holds the secret: for your own children only."""

    secret: ClusterSecret
    directory: Endpoint
    emulates_network: bool = False


class LocalRuntime(Session):
    """A session without Ray: this process's place in a job of plain processes, and channels that are held right here.

    The first one also keeps the directory; others join it by its address, from this process's children:

        from multiprocessing import get_context

        from rlinf_scheduler import Channel
        from rlinf.testing import LocalRuntime


        def produce(address):
            with LocalRuntime(address, own_name="env:0"):
                Channel.connect("rollouts").put("an item")


        if __name__ == "__main__":
            with LocalRuntime() as runtime:
                rollouts = Channel.create("rollouts", maxsize=64)
                child = get_context("spawn").Process(target=produce, args=(runtime.address,))
                child.start()
                print(rollouts.get(timeout_s=60))
                child.join()

    The children need it as long as they use the directory: join them before it ends.

    Args:
        address: whose directory to join; None to keep one.
        own_name: how this process is called.
        arena_limit_bytes: how much shared memory it may use for what it sends; as `Messenger`'s.
        net_emulation: the links between its processes, as `cluster.net_emulation` has them; of the first one.

    Raises:
        ConfigError: `net_emulation` has a mistake.
    """

    def __init__(
        self,
        address: LocalAddress | None = None,
        *,
        own_name: str = "driver",
        arena_limit_bytes: int | None = None,
        net_emulation: Mapping[str, Any] | None = None,
    ) -> None:
        emulation = _emulation(net_emulation)
        secret = ClusterSecret.generate() if address is None else address.secret
        home = None if address is None else address.directory
        super().__init__(secret, own_name, home=home, arena_limit_bytes=arena_limit_bytes)
        emulates = emulation is not None or (address is not None and address.emulates_network)
        self.address = LocalAddress(secret, self.home, emulates)
        if address is None:
            announce(self, encryption=True)
            open_index_when_needed(self)
        self._servers = HeldHere(self)
        self.provide(Starter, self._servers)
        for service in (OwnActivity,) if address is not None else (WhyService, StatusService, TimeService):
            self.service(service)
        offer_reasons(self)
        if emulation is not None:
            self.provide(NetEmulation, emulation)
            self.service(of_room("emulation.network:EmulatedNetwork"))
        if emulates:
            of_room("emulation.arrivals:emulate_network")(self)

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        channels: Iterable[Channel] = (),
        extra: Any = None,
        acknowledge: Lease | Iterable[Lease] = (),
        timeout_s: float | None = SAVE_TIMEOUT_S,
    ) -> None:
        """Save channels and a state in one cut, as `Cluster.save`."""
        of_room("durable.saving:save_job")(path, channels, extra, acknowledge, timeout_s)

    @staticmethod
    def load(path: str | os.PathLike[str], *, missing_ok: bool = False) -> Checkpoint:
        """Read what was saved, as `Cluster.load`."""
        checkpoint: Checkpoint = of_room("durable.checkpoint_files:load_job")(path, missing_ok=missing_ok)
        return checkpoint

    def why(self, within_s: float = WITHIN_S) -> Why:
        """Who waits for whom in this job, and why, as `Cluster.why`."""
        return why(self, within_s)

    def status(self) -> JobStatus:
        """What this job does, as `Cluster.status`."""
        return received(begin_status(self))

    def stop_channel_server(self, name: str) -> None:
        """End a channel of this process, as if the process that holds it had died."""
        self._servers.stop(name)


def _emulation(section: Mapping[str, Any] | None) -> NetEmulation | None:
    errors: list[ConfigError] = []
    emulation = read_net_emulation(section, errors)
    raise_config_errors(errors)
    return emulation


class HeldHere(Starter):
    """Holds channels in a session's own process, whatever their affinity: there is no other."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._session = session
        self._servers: dict[str, HeldChannel] = {}

    def begin(self, wanted: StartChannel, started: Promise[Endpoint]) -> None:
        """Have a channel held; does not wait for it."""
        started.set_result(self.start(wanted))

    def start(self, wanted: StartChannel) -> Endpoint:
        """Hold a channel.

        Raises:
            ChannelExists: the name is taken.
            ChannelError: the worker to be beside is not there.
        """
        spec = wanted.spec
        if wanted.group is not None:
            beside = f"{wanted.group}:{wanted.rank or 0}"
            if all(entry.name != beside for entry in self._session.directory.list(beside)):
                check_group(self._session, spec.name, wanted.group, wanted.rank or 0)
        if spec.name in self._servers:
            raise ChannelExists(spec.name, "this process holds a channel of that name already")
        server = host_channel(self._session, spec, on_stopped=lambda: self._forget(spec.channel_id))
        self._servers[spec.name] = server
        return self._session.messenger.endpoint

    def find_holder(self, found: Promise[Endpoint]) -> None:
        """Find a process that `hold_items` was called in."""
        name = _holder_name(self._session.messenger.endpoint)
        asked = self._session.directory.lookup_async(name, timeout_s=0.0)

        asked.add_done_callback(lambda entry: found.set_from(lambda: entry.result(0).endpoint))

    def stop(self, name: str) -> None:
        """End a channel."""
        self._session.directory.unregister(f"{name}:0")
        self._servers.pop(name).stop()

    def _forget(self, channel_id: str) -> None:
        for name, server in tuple(self._servers.items()):
            if server.spec.channel_id == channel_id:
                del self._servers[name]


def hold_items(session: Session) -> NodeHolder:
    """Let this process hold the large items that its machine's producers put into channels of other machines.

    On a cluster a process is started for that; here nobody starts one.
    """
    holder = session.service(NodeHolder)
    endpoint = session.messenger.endpoint
    session.directory.register(_holder_name(endpoint), endpoint, again=True)
    return holder


def _holder_name(endpoint: Endpoint) -> str:
    return f"holder/{endpoint.machine_id}"
