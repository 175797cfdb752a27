"""The worker that holds a channel: the one process that its items go through."""

from __future__ import annotations

import pickle

from rlinf.scheduler.channel import ChannelSpec, host_channel
from rlinf.scheduler.host.info import Role
from rlinf.scheduler.session import current_session


class ChannelWorker:
    """Holds one channel; a group of one rank, whose address is `channel_name:0`.

    Its calls and its channel's operations do not wait for each other: the channel lives on the messenger's thread.
    """

    def __init__(self, spec: ChannelSpec) -> None:
        session = current_session()
        role = session.fact(Role) or Role.alone()
        about = {"placement": pickle.dumps(role.info.placement)}
        self._server = host_channel(session, spec, about, on_stopped=role.stop)
