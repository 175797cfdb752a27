"""The worker that holds a channel: the one process that its items go through."""

from __future__ import annotations

import pickle

from rlinf.scheduler.channel import ChannelSpec, current_runtime, host_channel
from rlinf.scheduler.worker.context import context_of_this_process


class ChannelWorker:
    """Holds one channel; a group of one rank, whose address is `channel_name:0`.

    Its calls and its channel's operations do not wait for each other: the channel lives on the messenger's thread.
    """

    def __init__(self, spec: ChannelSpec) -> None:
        runtime = current_runtime()
        context = context_of_this_process()
        about = {"placement": pickle.dumps(context.info.placement)}
        self._server = host_channel(
            runtime.messenger, runtime.directory, spec, about, on_stopped=context.stop
        )
