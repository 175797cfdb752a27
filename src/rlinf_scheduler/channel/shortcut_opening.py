"""How a thread comes to a shortcut: it asks, its server invites it, it connects and says the word that it was given."""

from __future__ import annotations

import itertools
import os
import resource
import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from weakref import WeakSet

from rlinf_scheduler.channel import control_wire
from rlinf_scheduler.channel.shortcut import Shortcut, is_sent
from rlinf_scheduler.comm.forking import on_fork_in_child
from rlinf_scheduler.comm.messenger import Messenger
from rlinf_scheduler.comm.peer import Reply
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.comm.rundir import SHORTCUTS_NAME
from rlinf_scheduler.comm.runtime import Runtime

logger = Reporter(__name__)

# The first operations of a thread go the usual way: it may not stay.
MIN_OPERATIONS = 4
# The server's first word: only then anything is sent that would have to be found again.
WELCOME = b"welcome"
# Each takes a descriptor of the server's process. Other threads go the usual way.
MAX_SHORTCUTS = 128
# Whoever has connected has so long to say the word that it was given.
GREETING_S = 5.0
# Out of descriptors, no further ones are taken for so long.
ACCEPT_PAUSE_S = 0.1

_next_number = itertools.count(1).__next__


class OwnedSocket(socket.socket):
    """A datagram socket of this machine that closes without a warning when nobody has it any more.

    A thread that ends, or is interrupted, just drops its own; the other side sees that.
    """

    def __init__(self, fileno: int | None = None) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_SEQPACKET, fileno=fileno)
        self.setblocking(False)
        _owned.add(self)
        on_fork_in_child(_close_inherited)

    def __del__(self) -> None:
        self.close()


_owned: WeakSet[OwnedSocket] = WeakSet()


def _close_inherited() -> None:
    """In a forked child: the parent's go on, and whoever is at their other ends sees when it closes them."""
    for connection in list(_owned):
        connection.close()


class ShortcutRequest:
    """A thread's request for a shortcut to its I/O thread.

    Attributes:
        num_operations: how often it would have been of use.
        shortcut: it, when it is there.
    """

    __slots__ = ("__weakref__", "num_operations", "shortcut")

    def __init__(self) -> None:
        self.num_operations = 0
        self.shortcut: Shortcut | None = None


def dial(invitation: control_wire.Invitation) -> Shortcut | None:
    """Follow an invitation; None if nobody is there. Never blocks."""
    connection = OwnedSocket()
    try:
        connection.connect(invitation.path)
        connection.send(invitation.token)
    except OSError:
        return None
    return Shortcut(connection)


class ShortcutOpening:
    """Opens shortcuts. On the I/O thread only.

    Args:
        invite: asks the server where it takes one.
    """

    def __init__(self, messenger: Messenger, invite: Callable[[], Promise[Reply]]) -> None:
        self._messenger = messenger
        self._invite = invite
        self._is_over = False
        self._open: WeakSet[Shortcut] = WeakSet()

    def begin(self, request: ShortcutRequest) -> None:
        """Get a shortcut for a thread, unless what arrives here is held back: nothing would be on its way past that."""
        if self._is_over or self._messenger.arrivals is not None:
            return
        self._invite().add_done_callback(partial(self._on_invited, request))

    def end(self) -> None:
        """The server is gone: break all of them, and open no more."""
        self._is_over = True
        for shortcut in list(self._open):
            shortcut.end()

    def _on_invited(self, request: ShortcutRequest, reply: Promise[Reply]) -> None:
        if self._is_over or reply.exception() is not None or not reply.result().head.path:
            return
        shortcut = dial(reply.result().head)
        if shortcut is not None:
            self._open.add(shortcut)
            # It hears the server's first word, or its end, soon.
            self._messenger.watch(shortcut.fileno(), partial(self._on_welcome, shortcut, request))

    def _on_welcome(self, shortcut: Shortcut, request: ShortcutRequest) -> None:
        self._messenger.unwatch(shortcut.fileno())
        if shortcut.first_word(len(WELCOME)) == WELCOME:
            request.shortcut = shortcut


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
