"""Channels and weights between plain processes, without a cluster: for tests of programs that use them."""

from __future__ import annotations

from dataclasses import dataclass

from rlinf.scheduler.channel import ChannelServer, StartChannel, Starter, host_channel
from rlinf.scheduler.comm.endpoint import Endpoint
from rlinf.scheduler.comm.secret import ClusterSecret
from rlinf.scheduler.errors import ChannelExists
from rlinf.scheduler.session import Session


@dataclass(frozen=True, slots=True)
class LocalAddress:
    """What another process needs to join; picklable. It holds the secret: for your own children only."""

    secret: ClusterSecret
    directory: Endpoint


class LocalRuntime(Session):
    """A session without Ray: this process's place in a job of plain processes, and channels that are held right here.

    The first one also keeps the directory; others join it by its address, from this process's children:

        from multiprocessing import get_context

        from rlinf.scheduler import Channel
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
    """

    def __init__(
        self,
        address: LocalAddress | None = None,
        *,
        own_name: str = "driver",
        arena_limit_bytes: int | None = None,
    ) -> None:
        secret = ClusterSecret.generate() if address is None else address.secret
        home = None if address is None else address.directory
        super().__init__(secret, own_name, home=home, arena_limit_bytes=arena_limit_bytes)
        self.address = LocalAddress(secret, self.home)
        self._servers = HeldHere(self)
        self.provide(Starter, self._servers)

    def stop_channel_server(self, name: str) -> None:
        """End a channel of this process, as if the process that holds it had died."""
        self._servers.stop(name)


class HeldHere(Starter):
    """Holds channels in a session's own process, whatever their affinity: there is no other."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._session = session
        self._servers: dict[str, ChannelServer] = {}

    def start(self, wanted: StartChannel) -> Endpoint:
        """Hold a channel.

        Raises:
            ChannelExists: the name is taken.
        """
        spec = wanted.spec
        if spec.name in self._servers:
            raise ChannelExists(spec.name, "this process holds a channel of that name already")
        server = host_channel(self._session, spec, on_stopped=lambda: self._forget(spec.channel_id))
        self._servers[spec.name] = server
        return self._session.messenger.endpoint

    def stop(self, name: str) -> None:
        """End a channel."""
        self._session.directory.unregister(f"{name}:0")
        self._servers.pop(name).stop()

    def _forget(self, channel_id: str) -> None:
        for name, server in tuple(self._servers.items()):
            if server.spec.channel_id == channel_id:
                del self._servers[name]
