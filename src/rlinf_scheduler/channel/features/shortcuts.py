"""Shortcuts of threads that block. Without them their operations go by the I/O threads of both processes."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from functools import partial

import msgspec

from rlinf_scheduler.channel import control_wire, wire
from rlinf_scheduler.channel.clients import KnownClient
from rlinf_scheduler.channel.server import ChannelServer
from rlinf_scheduler.channel.shortcut import MAX_DATAGRAM_BYTES, ShortcutEnd
from rlinf_scheduler.channel.shortcut_opening import ShortcutListener
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.peer import Request
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.queueing import Instruction

logger = Reporter(__name__)

_decode = msgspec.msgpack.Decoder(wire.Direct).decode


class ShortcutsFeature:
    """The sockets of clients' threads.

    Args:
        server: of the channel.
    """

    def __init__(self, server: ChannelServer) -> None:
        self._server = server
        self._runtime = server.runtime
        self._listener = ShortcutListener(server.runtime, self._begin)
        self._ends: dict[str, set[ShortcutEnd]] = {}
        self._memory = memoryview(bytearray(MAX_DATAGRAM_BYTES))
        server.handlers |= {control_wire.Invite: self._answer, wire.QueryOutcome: self._query_outcome}
        server.on_open.append(self.drop)
        server.on_lost.append(self.drop)
        server.on_stop.append(self.close)

    def _answer(self, request: Request) -> None:
        known = request.peer_id in self._server.clients
        request.reply(self.invite(request.peer_id) if known else control_wire.Invitation("", b""))

    def invite(self, client: str) -> control_wire.Invitation:
        """Make an invitation for one thread of a client; an empty one if there are too many."""
        return self._listener.invite(client, sum(map(len, self._ends.values())))

    def _begin(self, client: str, connection: socket.socket) -> None:
        end = ShortcutEnd(client, connection)
        self._ends.setdefault(client, set()).add(end)
        self._runtime.watch(connection.fileno(), partial(self._on_readable, end))

    def _query_outcome(
        self, known: KnownClient, query_outcome: wire.QueryOutcome, _frames: Iterator[Buffer]
    ) -> list[Instruction]:
        """Say what became of an operation that came by a shortcut; nobody listens there any more."""
        return known.direct.query_outcome(
            known.client, query_outcome.ticket, self._server.state, self.read_all
        )

    def _on_readable(self, end: ShortcutEnd) -> None:
        self._receive(end)

    def _receive(self, end: ShortcutEnd) -> bool:
        """Read one operation; whether there was one."""
        if end.connection.fileno() < 0:
            return False
        try:
            count = end.connection.recv_into(self._memory)
            if count == 0:
                raise ConnectionResetError
            direct = _decode(self._memory[:count])
        except (BlockingIOError, InterruptedError):
            return False
        except msgspec.DecodeError as error:
            logger.warning("a shortcut is closed: %s", error)
            self._close(end)
            return False
        except OSError:
            self._close(end)
            self._server.clients[end.client].direct.leave(end)
            return False
        self._on_call(end, direct)
        return True

    def _on_call(self, end: ShortcutEnd, direct: wire.Direct) -> None:
        server = self._server
        server.tick()
        known = server.clients[end.client]
        if known.direct.arrive(end, direct.operation.ticket, direct, direct.after):
            server.run_direct(known, direct)

    def read_all(self, client: str) -> None:
        """Read what a client's threads have sent until now; on what is not welcome yet they have sent nothing."""
        for end in list(self._ends.get(client, ())):
            while self._receive(end):
                pass

    def drop(self, client: str) -> None:
        """Close what leads to a client."""
        for end in list(self._ends.get(client, ())):
            self._close(end)
        self._listener.drop(client)

    def _close(self, end: ShortcutEnd) -> None:
        ends = self._ends.get(end.client, set())
        if end in ends:
            ends.discard(end)
            if not ends:
                del self._ends[end.client]
            self._runtime.unwatch(end.connection.fileno())
            end.connection.close()

    def close(self) -> None:
        """Close everything."""
        for client in list(self._ends):
            self.drop(client)
        self._listener.close()
