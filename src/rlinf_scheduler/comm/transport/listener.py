"""Where connections come in. Who has not proved to be of the cluster holds a descriptor for a while, and no more."""

from __future__ import annotations

import itertools
import os
import re
import resource
import socket
import ssl
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from rlinf_scheduler.comm.loop import READABLE, IoLoop, Timer
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.comm.transport import handshake
from rlinf_scheduler.comm.transport.handshake import Introduction
from rlinf_scheduler.comm.transport.identity import Identity
from rlinf_scheduler.comm.transport.opening import Opening
from rlinf_scheduler.comm.transport.peer_session import Hello, Verdict, Welcome

logger = Reporter(__name__)

# Who comes while many are in the handshake waits there; the kernel takes less where net.core.somaxconn is less.
BACKLOG = 1 << 16
ACCEPT_PAUSE_S = 0.1
# So long may one owe us its next bytes. A friend needs a few round trips, and may be busy in between.
HANDSHAKE_TIMEOUT_S = 30.0
# So long when there are so many that they would use up the descriptors; no more come in meanwhile.
CROWDED_TIMEOUT_S = 1.0
MAX_CROWD = 1024
# Once it was crowded, more come in when no more than this part of the crowd is left.
_RELIEVED_SHARE = 0.75
_UCRED = struct.Struct("iII")  # pid_t, uid_t, gid_t: see unix(7)


class Judge(Protocol):
    """Who decides about those that came in, on the I/O thread."""

    def judge(self, who: Introduction, hello: Hello) -> Welcome:
        """What to make of a process that has proved who it is."""

    def came(self, who: Introduction, welcome: Welcome, connection: socket.socket) -> None:
        """Use the connection of a process that was taken with this welcome."""

    def broke(self, who: Introduction, welcome: Welcome, reason: str) -> None:
        """Its connection broke after it was taken with this welcome and before it came."""


class Listener:
    """Accepts the connections of one listening socket; on the I/O thread.

    Args:
        bound_socket: bound, not yet listening.
        me: who this process is.
        judge: who decides about those that came in.
        tls: what connections are secured with; None if they are not.

    Attributes:
        now: the clock, in seconds.
        crowd: how many may be in the handshake at a time.
    """

    def __init__(
        self,
        bound_socket: socket.socket,
        loop: IoLoop,
        me: Identity,
        judge: Judge,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._bound_socket = bound_socket
        self._loop = loop
        self.now = loop.now
        self._me = me
        self.judge = judge
        self._tls = tls
        self._log = RefusalLog(loop.now)
        self.crowd = _crowd()
        # In the order in which they came, or were found to owe nothing.
        self.guests: dict[Guest, None] = {}
        self._timer: Timer | None = None
        self._paused = False
        bound_socket.listen(BACKLOG)
        loop.register(bound_socket.fileno(), READABLE, self._accept)

    def close(self) -> None:
        """Stop listening, and drop who has not proved who he is."""
        if self._bound_socket.fileno() >= 0:
            self._loop.unregister(self._bound_socket.fileno())
            self._bound_socket.close()
        if self._timer is not None:
            self._timer.cancel()
        for guest in list(self.guests):
            guest.opening.close()
        self.guests.clear()

    def abandon(self) -> None:
        """Close every descriptor in a forked child."""
        self._bound_socket.close()
        for guest in list(self.guests):
            guest.opening.abandon()

    def _accept(self, _events: int) -> None:
        while not self._paused:
            try:
                connection, address = self._bound_socket.accept()
            except (BlockingIOError, ConnectionAbortedError, InterruptedError):
                return
            except OSError as error:
                # Out of descriptors, most likely: the connection stays in the queue, and we would be called at once.
                self._log.warn("", "nobody", f"no connection can be taken for now ({error})")
                self._pause()
                self._loop.call_later(ACCEPT_PAUSE_S, self._resume)
                return
            self._let_in(connection, address)

    def _pause(self) -> None:
        self._paused = True
        self._loop.modify(self._bound_socket.fileno(), 0)

    def _resume(self) -> None:
        if self._paused and self._bound_socket.fileno() >= 0 and self._has_room():
            self._paused = False
            self._loop.modify(self._bound_socket.fileno(), READABLE)

    def _let_in(self, connection: socket.socket, address: object) -> None:
        connection.setblocking(False)
        guest = Guest(self, connection, address)
        if connection.family == socket.AF_UNIX and (uid := uid_of(connection)) not in (os.getuid(), 0):
            self.refuse(guest, f"it belongs to user {uid}")
            guest.opening.close()
            return
        self.guests[guest] = None
        if len(self.guests) >= self.crowd:
            self._pause()
        if self._timer is None or self._paused:
            self._drop_late()
        guest.opening.accepted()

    def new_opening(self, guest: Guest, connection: socket.socket) -> Opening[Introduction | None]:
        """The handshake with a guest."""
        steps = handshake.accept(self._me, guest.judge, guest.proved, encrypts=self._tls is not None)
        return Opening(self._loop, connection, steps, self._tls, guest.done, guest.failed)

    def leave(self, guest: Guest) -> None:
        """A guest's handshake is over."""
        self.guests.pop(guest, None)
        if not self.guests and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._paused and self._has_room():
            self._loop.submit(self._resume)

    def _has_room(self) -> bool:
        return len(self.guests) <= _RELIEVED_SHARE * self.crowd

    def renew(self, guest: Guest) -> None:
        """A guest owes nothing until now: its time begins again."""
        if guest in self.guests:
            del self.guests[guest]
            self.guests[guest] = None
            guest.since = self.now()

    def refuse(self, guest: Guest, reason: str) -> None:
        """Tell of an unauthenticated peer."""
        self._log.warn(guest.host, guest.where, reason)

    def _drop_late(self) -> None:
        """Drop guests whose time is over; come back when that of the next one is."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        patience_s = CROWDED_TIMEOUT_S if self._paused else HANDSHAKE_TIMEOUT_S
        before = self.now() - patience_s
        late = list(itertools.takewhile(lambda guest: guest.since <= before, self.guests))
        # With one question: each is a turn that a main thread which computes takes from this one.
        said = (
            self._loop.ready_now([guest.opening.connection.fileno() for guest in late], READABLE)
            if late
            else ()
        )
        for guest in late:
            if guest.opening.connection.fileno() in said:
                # It is this process that is late.
                self.renew(guest)
            else:
                guest.opening.fail("it did not finish the handshake in time")
        oldest = next(iter(self.guests), None)
        if oldest is not None:
            self._timer = self._loop.call_later(oldest.since - before, self._drop_late)


class Guest:
    """A connection that came in, until both sides know each other."""

    def __init__(self, listener: Listener, connection: socket.socket, address: object) -> None:
        self._listener = listener
        self._is_known = False
        self._taken: tuple[Introduction, Welcome] | None = None
        self.since = listener.now()
        self.host, self.where = _name(address)
        self.opening = listener.new_opening(self, connection)

    def proved(self) -> None:
        """It holds the cluster's key: whatever goes wrong now is no unauthenticated peer's doing."""
        self._is_known = True
        self._listener.renew(self)

    def judge(self, who: Introduction, hello: Hello) -> Welcome:
        """Decide about it."""
        welcome = self._listener.judge.judge(who, hello)
        if welcome.verdict is Verdict.TAKEN:
            self._taken = who, welcome
        return welcome

    def done(self, connection: socket.socket, who: Introduction | None) -> None:
        """The handshake is over."""
        self._listener.leave(self)
        if who is None or self._taken is None:
            connection.close()
        else:
            self._listener.judge.came(*self._taken, connection)

    def failed(self, reason: str, _final: bool) -> None:
        """The handshake failed."""
        self._listener.leave(self)
        if self._taken is not None:
            self._listener.judge.broke(*self._taken, reason)
        elif not self._is_known:
            self._listener.refuse(self, reason)
        else:
            logger.debug("a connection of the cluster's ended: %s", reason)


def uid_of(connection: socket.socket) -> int:
    """The user at the other end of a Unix socket."""
    _, uid, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return int(uid)


def _name(address: object) -> tuple[str, str]:
    """The other side's host and full address; of a Unix socket, that it is one."""
    if not isinstance(address, tuple):
        return "", "a process of this machine"
    host, port = address[:2]
    return host, f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _crowd() -> int:
    """How many are too many: a quarter of the descriptors that this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CROWD if soft == resource.RLIM_INFINITY else max(1, min(MAX_CROWD, soft // 4))


INTERVAL_S = 10.0
# So many pairs of kind and host are kept apart; what comes beyond that is counted together.
MAX_REMEMBERED = 64
OTHERS = "many hosts"
# What a stranger chooses is no kind of its own.
_NUMBER = re.compile("[0-9]+")


class RefusalLog:
    """Logs at most one line each `INTERVAL_S` for a kind of refusal and a host; says how many it left out.

    Args:
        now: the clock, in seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._told: dict[tuple[str, str], _Told] = {}

    def warn(self, host: str, where: str, reason: str) -> None:
        """Tell of a connection that was refused.

        Args:
            host: from which machine; "" if it is not known.
            where: its full address, for people.
            reason: what was wrong with it; one of a few texts, apart from numbers.
        """
        now = self._now()
        told = self._entry(host, reason, now)
        if told.was_told and now - told.since < INTERVAL_S:
            told.left_out += 1
            return
        more = f" ({told.left_out} more like it were not logged)" if told.left_out else ""
        told.since, told.left_out, told.was_told = now, 0, True
        logger.warning("a connection from %s is refused: %s%s", where or "an unknown address", reason, more)

    def _entry(self, host: str, reason: str, now: float) -> _Told:
        kind = _NUMBER.sub("#", reason)
        told = self._told.get((host, kind))
        if told is not None:
            return told
        if len(self._told) >= MAX_REMEMBERED:
            self._forget_quiet(now)
        key = (host, kind) if len(self._told) < MAX_REMEMBERED else (OTHERS, kind)
        return self._told.setdefault(key, _Told(now))

    def _forget_quiet(self, now: float) -> None:
        self._told = {key: told for key, told in self._told.items() if now - told.since < INTERVAL_S}


@dataclass(slots=True)
class _Told:
    """What was said of one kind and host."""

    since: float
    left_out: int = 0
    was_told: bool = False
