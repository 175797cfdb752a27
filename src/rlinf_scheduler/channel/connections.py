"""All connections of one process, so that its `Channel` objects share them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rlinf_scheduler.channel.connection import ChannelConnection
from rlinf_scheduler.channel.sender import DirectTransport
from rlinf_scheduler.channel.shortcut import Shortcuts
from rlinf_scheduler.channel.spec import ChannelRef
from rlinf_scheduler.comm.forking import FORKED
from rlinf_scheduler.observe.timekeeping import TIMES
from rlinf_scheduler.rooms import of_room
from rlinf_scheduler.session import Session
from rlinf_scheduler.session.membership import GroupMembers

# How long a process that leaves waits until the channels' servers have what it put.
CLOSE_TIMEOUT_S = 5.0


class ChannelConnections:
    """The connections of one process, by channel; a service of its session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._messenger = session.messenger
        self._by_id: dict[str, ChannelConnection] = {}
        self._on_lost: list[Callable[[ChannelConnection], None]] = []
        self._messenger.on_peer_lost(self._on_peer_lost)
        session.members.on_change.append(self._on_resized)
        self._messenger.at_end(self.close)
        # While the messenger still sends: what this process took is confirmed.
        session.on_close(self.close)
        session.on_fork(self.abandon)

    def to(self, ref: ChannelRef) -> ChannelConnection:
        """Return the connection to a channel; a new one where there is none or it was lost."""
        channel_id = ref.spec.channel_id
        known = self._by_id.get(channel_id)
        if known is None:
            # One step, and a connection that nothing was handed over to does nothing.
            known = self._by_id.setdefault(channel_id, self._make(ref))
        return known

    def _make(self, ref: ChannelRef) -> ChannelConnection:
        if not ref.spec.durable:
            transport = DirectTransport(self._messenger, ref)
            connection = ChannelConnection(self._session, ref, transport, self._forget)
            if self._messenger.endpoint.machine_id == ref.endpoint.machine_id:
                connection.direct_way = Shortcuts(connection)
            return connection
        reconnecting = of_room("durable.reconnecting_transport:ReconnectingTransport")(self._session, ref)
        ref = replace(ref, endpoint=reconnecting.endpoint)
        return ChannelConnection(self._session, ref, reconnecting, self._forget)

    def on_lost(self, callback: Callable[[ChannelConnection], None]) -> None:
        """Call `callback` on the I/O thread with every connection whose channel is gone."""
        self._on_lost.append(callback)

    def close(self) -> None:
        """End everything that waits in this process; what was taken here is confirmed first."""
        for connection in list(self._by_id.values()):
            if not self._messenger.on_io_thread():
                connection.requests.settle_puts(CLOSE_TIMEOUT_S)
            connection.leave(self._messenger.why_closed or self._messenger.why_leaving)

    def abandon(self) -> None:
        """Make every connection unusable in a forked child; the parent's operations go on."""
        for connection in self._by_id.values():
            connection.abandon(FORKED)

    def _on_resized(self, members: GroupMembers) -> None:
        for connection in list(self._by_id.values()):
            connection.tell_resized(members)

    def _on_peer_lost(self, process_id: str) -> None:
        for connection in list(self._by_id.values()):
            if connection.ref.endpoint.process_id == process_id:
                connection.lose(self._messenger.peers.why_lost(process_id))

    def _forget(self, connection: ChannelConnection) -> None:
        if self._by_id.get(connection.ref.spec.channel_id) is connection:
            del self._by_id[connection.ref.spec.channel_id]
        TIMES.count_as_others(connection.ref.spec.name)
        for callback in self._on_lost:
            callback(connection)
