"""What channels need of a worker: it asks the driver to start the processes that hold them."""

from __future__ import annotations

from dataclasses import dataclass

from rlinf.scheduler.channel import ChannelSpec
from rlinf.scheduler.comm import Endpoint
from rlinf.scheduler.errors import ChannelError, CommError
from rlinf.scheduler.worker.info import WorkerAddress
from rlinf.scheduler.worker.protocol import START_CHANNEL, START_CHANNEL_TIMEOUT_S, StartChannel
from rlinf.scheduler.worker.session_runtime import SessionRuntime


@dataclass(frozen=True, slots=True)
class WorkerRuntime(SessionRuntime):
    """A worker's: it asks the driver to start channel processes."""

    address: WorkerAddress

    def start_channel_server(
        self,
        name: str,
        spec: ChannelSpec,
        group_affinity: str | None = None,
        group_rank_affinity: int | None = None,
    ) -> Endpoint:
        """Have the driver start the channel's process beside a worker; beside this one where none is named.

        Raises:
            ChannelExists: the name is taken.
            ChannelError: the worker to be beside is not there, or the process did not start.
        """
        group = self.address.group if group_affinity is None else group_affinity
        rank = group_rank_affinity
        if rank is None:
            rank = self.address.rank if group == self.address.group else 0
        wanted = StartChannel(spec, group, rank)
        request = self.messenger.request(
            self.session.directory_endpoint,
            START_CHANNEL,
            wanted,
            timeout_s=2 * START_CHANNEL_TIMEOUT_S,
            reply_type=Endpoint,
        )
        try:
            endpoint: Endpoint = request.result().head
        except CommError as error:
            raise ChannelError(name, f"the driver did not start it: {error}") from error
        return endpoint
