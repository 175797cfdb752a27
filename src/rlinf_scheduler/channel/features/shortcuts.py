"""Shortcuts of threads that block. Without them their operations go by the I/O threads of both processes."""

from __future__ import annotations

import itertools
import os
import resource
import secrets
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

import msgspec

from rlinf_scheduler.channel import control_wire, wire
from rlinf_scheduler.channel.clients import KnownClient, ShortcutEnd, is_sent
from rlinf_scheduler.channel.server import ChannelServer
from rlinf_scheduler.channel.shortcut import WELCOME, OwnedSocket
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.peer import Request
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.comm.rundir import SHORTCUTS_NAME
from rlinf_scheduler.comm.runtime import Runtime
from rlinf_scheduler.queueing.messages import Instruction

logger = Reporter(__name__)

# Each takes a descriptor of the server's process. Other threads go the usual way.
MAX_SHORTCUTS = 128
# Whoever has connected has so long to say the word that it was given.
GREETING_S = 5.0
# Out of descriptors, no further ones are taken for so long.
ACCEPT_PAUSE_S = 0.1

_next_number = itertools.count(1).__next__
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
        self._memory = memoryview(bytearray(wire.MAX_DATAGRAM_BYTES))
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


class ShortcutListener:
    """A listening socket in the private directory of a channel's process. On the I/O thread only.

    Args:
        runtime: of the server.
        on_welcome: called with the client and the socket of each thread that was invited and has come.
    """

    def __init__(self, runtime: Runtime, on_welcome: Callable[[str, socket.socket], None]) -> None:
        self._runtime = runtime
        self._on_welcome = on_welcome
        self._listener: socket.socket | None = None
        self._path = ""
        self._invited: dict[bytes, str] = {}
        self._strangers: set[socket.socket] = set()

    def invite(self, client: str, num_open: int) -> control_wire.Invitation:
        """Make an invitation for one thread of a client; an empty one if too many are open."""
        if num_open + len(self._invited) >= MAX_SHORTCUTS or _descriptors_are_scarce() or not self._listen():
            return control_wire.Invitation("", b"")
        token = secrets.token_bytes(16)
        self._invited[token] = client
        # It goes with the answer to its request; whoever does not come at once does not come.
        self._runtime.call_later(GREETING_S, lambda: self._forget_invitation(token))
        return control_wire.Invitation(self._path, token)

    def _forget_invitation(self, token: bytes) -> None:
        self._invited.pop(token, None)

    def _listen(self) -> bool:
        if self._listener is not None:
            return True
        directory = os.path.dirname(self._runtime.endpoint.unix_path)
        self._path = os.path.join(directory, f"{SHORTCUTS_NAME}{_next_number()}")
        listener = OwnedSocket()
        try:
            listener.bind(self._path)
            listener.listen(MAX_SHORTCUTS)
        except OSError as error:
            logger.warning("threads cannot have shortcuts to this process: %s", error)
            return False
        self._listener = listener
        self._watch_listener()
        return True

    def _accept(self) -> None:
        """Take one that has connected."""
        if self._listener is None:
            return
        try:
            accepted, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError, InterruptedError):
            return
        except OSError:
            # Out of descriptors, most likely: it stays in the line, and we would be called at once.
            self._runtime.unwatch(self._listener.fileno())
            self._runtime.call_later(ACCEPT_PAUSE_S, self._watch_listener)
            return
        connection = OwnedSocket(accepted.detach())
        self._strangers.add(connection)
        self._runtime.watch(connection.fileno(), lambda: self._greet(connection))
        self._runtime.call_later(GREETING_S, lambda: self._forget_stranger(connection))

    def _watch_listener(self) -> None:
        if self._listener is not None:
            self._runtime.watch(self._listener.fileno(), self._accept)

    def _greet(self, connection: socket.socket) -> None:
        token = b""
        try:
            token = connection.recv(64)
        except BlockingIOError:
            return
        except OSError:
            pass
        client = self._invited.pop(token, None)
        if client is None or not is_sent(connection, WELCOME):
            self._forget_stranger(connection)
            return
        self._strangers.discard(connection)
        self._runtime.unwatch(connection.fileno())
        self._on_welcome(client, connection)

    def _forget_stranger(self, connection: socket.socket) -> None:
        if connection in self._strangers:
            self._strangers.discard(connection)
            self._runtime.unwatch(connection.fileno())
            connection.close()

    def drop(self, client: str) -> None:
        """Invite a client's threads no longer."""
        for token in [token for token, invited in self._invited.items() if invited == client]:
            del self._invited[token]

    def close(self) -> None:
        """Close everything."""
        for connection in list(self._strangers):
            self._forget_stranger(connection)
        self._invited.clear()
        if self._listener is not None:
            self._runtime.unwatch(self._listener.fileno())
            self._listener.close()
            self._listener = None
            with suppress(OSError):
                os.unlink(self._path)


def _descriptors_are_scarce() -> bool:
    """Whether this process, which may hold other channels too, has used up half of its descriptors."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit != resource.RLIM_INFINITY and 2 * len(os.listdir("/proc/self/fd")) > limit
