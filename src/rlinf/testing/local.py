"""Channels and weights between plain processes, without a cluster: for tests of programs that use them."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType

from rlinf.scheduler.channel import ChannelServer, ChannelSpec, host_channel, set_runtime
from rlinf.scheduler.comm.directory import DirectoryClient, DirectoryServer
from rlinf.scheduler.comm.endpoint import Endpoint
from rlinf.scheduler.comm.messenger import Messenger
from rlinf.scheduler.comm.secret import ClusterSecret
from rlinf.scheduler.errors import ChannelExists
from rlinf.scheduler.weights import Weights


@dataclass(frozen=True, slots=True)
class LocalAddress:
    """What another process needs to join; picklable. It holds the secret: for your own children only."""

    secret: ClusterSecret
    directory: Endpoint


class LocalRuntime:
    """A runtime in this process: its own messenger, and channels that are held right here.

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
    """

    def __init__(self, address: LocalAddress | None = None, *, own_name: str = "driver") -> None:
        secret = ClusterSecret.generate() if address is None else address.secret
        self.messenger = Messenger(secret, name=own_name)
        if address is None:
            DirectoryServer(self.messenger)
        self.address = LocalAddress(secret, self.messenger.endpoint) if address is None else address
        self.directory = DirectoryClient(self.messenger, self.address.directory)
        self.own_name = own_name
        self.weights = Weights(self.messenger, self.directory)
        self._servers: dict[str, ChannelServer] = {}

    def start_channel_server(
        self,
        name: str,
        spec: ChannelSpec,
        group_affinity: str | None = None,
        group_rank_affinity: int | None = None,
    ) -> Endpoint:
        """Hold a channel in this process, whatever its affinity: there is no other.

        Raises:
            ChannelExists: the name is taken.
        """
        if name in self._servers:
            raise ChannelExists(name, "this process holds a channel of that name already")
        self._servers[name] = host_channel(
            self.messenger, self.directory, spec, on_stopped=lambda: self._forget(spec)
        )
        return self.messenger.endpoint

    def stop_channel_server(self, name: str) -> None:
        """End a channel of this process, as if the process that holds it had died."""
        self.directory.unregister(f"{name}:0")
        self._servers.pop(name).stop()

    def _forget(self, spec: ChannelSpec) -> None:
        server = self._servers.get(spec.name)
        if server is not None and server.spec == spec:
            del self._servers[spec.name]

    def close(self) -> None:
        """Take the runtime out of this process and drop its connections."""
        set_runtime(None)
        self.messenger.close()

    def __enter__(self) -> LocalRuntime:
        set_runtime(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
