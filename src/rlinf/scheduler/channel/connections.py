"""All connections of one process, so that its `Channel` objects share them."""

from __future__ import annotations

import threading

from rlinf.scheduler.channel.connection import Connection
from rlinf.scheduler.channel.spec import ChannelRef
from rlinf.scheduler.comm.messenger import Messenger

# How long a process that leaves waits until the channels' servers have what it put.
CLOSE_TIMEOUT_S = 5.0


class Connections:
    """The connections of one process, by channel."""

    def __init__(self, messenger: Messenger) -> None:
        self._messenger = messenger
        self._by_id: dict[str, Connection] = {}
        self._lock = threading.Lock()
        messenger.on_peer_lost(self._on_peer_lost)

    def to(self, ref: ChannelRef) -> Connection:
        """Return the connection to a channel; a new one where there is none or it was lost."""
        with self._lock:
            connection = self._by_id.get(ref.spec.channel_id)
            if connection is None or connection.lost is not None:
                self._by_id = {ident: known for ident, known in self._by_id.items() if known.lost is None}
                connection = self._by_id[ref.spec.channel_id] = Connection(self._messenger, ref)
            return connection

    def close(self) -> None:
        """End everything that waits in this process; what was taken here is confirmed first."""
        for connection in list(self._by_id.values()):
            if connection.lost is None:
                connection.flush()
                if not self._messenger.on_io_thread():
                    connection.settle_puts(CLOSE_TIMEOUT_S)
                connection.lose("this process left the cluster")

    def abandon(self, reason: str) -> None:
        """Make every connection unusable in a forked child; the parent's operations go on."""
        for connection in self._by_id.values():
            connection.abandon(reason)

    def _on_peer_lost(self, process_id: str) -> None:
        for connection in list(self._by_id.values()):
            if connection.ref.endpoint.process_id == process_id:
                connection.lose(f"the connection to '{connection.ref.spec.address}' dropped")
                self._forget(connection)

    def _forget(self, connection: Connection) -> None:
        with self._lock:
            channel_id = connection.ref.spec.channel_id
            if self._by_id.get(channel_id) is connection:
                del self._by_id[channel_id]
