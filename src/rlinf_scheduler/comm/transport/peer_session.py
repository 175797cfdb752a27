"""A peer session: what two processes say to each other, whatever happens to the connections between them. Pure.

A session knows no sockets and no clock. It lives in two halves, one in each process. Messages of a direction are
numbered from 1 on. A half keeps what it sent until the other has acknowledged it; when a connection is made anew,
both say how far they have received, and what is missing is written again: nothing is lost and nothing comes twice.

    dialler   dial(now)            begin a connection
              hello(now)           its first word on it; from here on the former connection is not read any more
    acceptor  judge(hello, now)    whether to take it
              accept(hello, now)   take it; gives the welcome to send back
    dialler   welcomed(welcome, now)
    both      send, take, acknowledge, receive, acknowledgement       while connected
              cut(now, why)                                            the connection ended
              dial_failed(now, why, ended=...)                         it could not be made
              silent(now, silent_s), heard()                           nothing comes, something came again
              left(why)                                                it said goodbye, or is known to have ended

After each event, and at `wake_at`, the owner asks `decide(now)`: whether to dial, and whether the other is dead.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from typing import Generic, TypeVar

import msgspec

MessageT = TypeVar("MessageT")

GRACE_S = 30.0
# One of two dials at once after a cut, the other leaves it this head start.
SECOND_DIAL_S = 0.02
FIRST_RETRY_S = 0.02
MAX_RETRY_S = 1.0
# While a connection of our own is younger than this, one that comes from the other side yields to it (or it to that).
RECENT_DIAL_S = 2.0
# The other machine has so long to take a connection before it is tried anew.
CONNECT_TIMEOUT_S = 2.0
# A process in which something happens so much later than it was to was stopped meanwhile.
OVERDUE_S = 1.0
# Acknowledged at once after so many messages or bytes; otherwise when the owner gets to it, within `ACK_DELAY_S`.
ACK_MESSAGES = 64
ACK_BYTES = 256 << 10
ACK_DELAY_S = 0.05


class Hello(msgspec.Struct, array_like=True, frozen=True):
    """The dialler's first word.

    Attributes:
        session: the id of the dialler's half.
        known: the id of the acceptor's half, as far as the dialler knows it; 0 if it does not.
        dial: the number of this connection among those that the dialler began.
        accepted: the number of the acceptor's connection that the dialler last accepted.
        received: how many messages the dialler has received.
    """

    session: int
    known: int
    dial: int
    accepted: int
    received: int


class Verdict(enum.IntEnum):
    """What the acceptor makes of a hello."""

    TAKEN = 0  # the connection is the session's
    BUSY = 1  # another connection of the same session goes before it
    UNKNOWN = 2  # the acceptor does not know (any more) of the session that is to go on
    REPLACED = 3  # the dialler has begun a new session: the acceptor's half is over
    FENCED = 4  # the dialler was declared dead: nobody takes it any more


class Welcome(msgspec.Struct, array_like=True, frozen=True):
    """The acceptor's answer.

    Attributes:
        verdict: what became of the hello; `REPLACED` never leaves.
        session: the id of the acceptor's half.
        received: how much it received.
        reason: with `FENCED`, why the dialler was declared dead.
    """

    verdict: Verdict
    session: int = 0
    received: int = 0
    reason: str = ""


class Loss(enum.Enum):
    """In which way the other process is gone."""

    LEFT = "left"  # it said goodbye
    ENDED = "ended"  # nothing listens any more where it did
    UNREACHABLE = "unreachable"  # for longer than the grace
    BROKEN = "broken"  # the two cannot talk with each other; it may well live
    DECLARED = "declared"  # the job says that it is dead
    FENCED = "fenced"  # the other says so of this process


class State(enum.Enum):
    """How a session stands."""

    CONNECTING = "connecting"  # no connection yet
    CONNECTED = "connected"
    CUT = "cut"  # between two connections
    DEAD = "dead"


class Decision(enum.Enum):
    """What the owner is to do now."""

    WAIT = "wait"
    DIAL = "dial"
    END = "end"  # the other is dead; `reason` says why. Said once


class PeerSessionError(Exception):
    """What the other side says about the session cannot be."""


class PeerSession(Generic[MessageT]):
    """One half of a session.

    Args:
        own_id: this process.
        peer_id: the other; of two that dial at once, the smaller id's connection stays.
        session_id: a fresh random number, not 0.
        now: the time in seconds, as everywhere here.
        grace_s: how long the other may be unreachable before it counts as dead.

    Attributes:
        state: see `State`.
        reason: why it is dead, or "".
        loss: in which way; None as long as it is not.
        received: how many messages came from the other side.
        sent: how many were taken to be written on the connection, or on one before it.
    """

    def __init__(
        self, own_id: str, peer_id: str, session_id: int, now: float, *, grace_s: float = GRACE_S
    ) -> None:
        self.state = State.CONNECTING
        self.reason = ""
        self.loss: Loss | None = None
        self.received = 0
        self.sent = 0
        # The same when the last connection ended; what the other received of it is not known.
        self._sent_before = 0
        self._first = own_id < peer_id
        self._grace_s = grace_s
        self.session_id = session_id
        self._theirs = 0
        self._waiting: deque[MessageT] = deque()
        self._written: deque[MessageT] = deque()  # the newest is number `sent`
        self._unacknowledged_messages = 0
        self._unacknowledged_bytes = 0
        self._dials = 0
        self._dialling = False
        self._dialled_at = 0.0
        self._reached = False  # the connection being made has got to the other machine
        self._reached_at = now
        self._accepted = 0
        self._welcomed = 0
        self._lost_at = now
        self._why = "not reached yet"
        self._silent_since: float | None = None
        self._retry_at: float | None = now
        self._retry_s = FIRST_RETRY_S
        self._end_told = False

    # -- messages --------------------------------------------------------------------------------

    def send(self, message: MessageT) -> None:
        """Queue a message; it stays here until the other side has it."""
        self._waiting.append(message)

    def take(self) -> MessageT | None:
        """The next message to write on the connection; None if there is none, or no connection."""
        if not self._waiting or self.state is not State.CONNECTED:
            return None
        message = self._waiting.popleft()
        self._written.append(message)
        self.sent += 1
        return message

    def acknowledge(self, number: int) -> None:
        """The other side has received our messages up to `number`.

        Raises:
            PeerSessionError: it was never sent that many.
        """
        if number > self.sent:
            message = f"it acknowledged message {number} of {self.sent}"
            raise PeerSessionError(message)
        while self._written and number > self.sent - len(self._written):
            self._written.popleft()

    def receive(self, num_messages: int, size_bytes: int) -> bool:
        """Messages of the other side were received and dealt with; whether to acknowledge them at once."""
        self.received += num_messages
        self._unacknowledged_messages += num_messages
        self._unacknowledged_bytes += size_bytes
        return self._unacknowledged_messages >= ACK_MESSAGES or self._unacknowledged_bytes >= ACK_BYTES

    def acknowledgement(self) -> int | None:
        """The number to acknowledge now; None if there is nothing new."""
        if not self._unacknowledged_messages:
            return None
        self._unacknowledged_messages = self._unacknowledged_bytes = 0
        return self.received

    @property
    def idle(self) -> bool:
        """Whether everything was handed to the connection."""
        return not self._waiting

    @property
    def num_queued(self) -> int:
        """How many messages were queued; the last of them has that number."""
        return self.sent + len(self._waiting)

    @property
    def num_written(self) -> int:
        """How many messages the other side may have got; those after it has never seen."""
        return max(self.sent, self._sent_before)

    @property
    def num_unacknowledged(self) -> int:
        """How many messages the other side may still not have."""
        return len(self._waiting) + len(self._written)

    # -- connections -----------------------------------------------------------------------------

    def dial(self, now: float) -> None:
        """A connection is being made by this side, as `decide` said."""
        self._dialling, self._dialled_at, self._reached = True, now, False
        self._retry_at = None

    def reached(self, now: float) -> None:
        """The connection got as far as the other machine: whatever it waits for now, the other is there."""
        self._excuse_own_absence(now)
        self._reached, self._reached_at = True, now

    def hello(self, now: float) -> Hello:
        """The first word on the connection that is being made. Nothing may be read from a former one after this."""
        self._drop_connection(now)
        self._dials += 1
        return Hello(self.session_id, self._theirs, self._dials, self._accepted, self.received)

    def judge(self, hello: Hello, now: float) -> Verdict:
        """What to make of the other side's hello; nothing changes."""
        if self._theirs and hello.session != self._theirs:
            return Verdict.REPLACED
        if hello.known not in (0, self.session_id):
            return Verdict.UNKNOWN
        if hello.accepted < self._welcomed:  # begun before it took the one that we have
            return Verdict.BUSY
        recent = self._dialling and now - self._dialled_at < RECENT_DIAL_S
        return Verdict.BUSY if recent and self._first else Verdict.TAKEN

    def accept(self, hello: Hello, now: float) -> Welcome:
        """Take the connection of a hello that was judged TAKEN; the answer to send.

        A former connection, and one that is being made, are to be dropped.

        Raises:
            PeerSessionError: the hello cannot be.
        """
        self._drop_connection(now)
        self._theirs = hello.session
        self._accepted = hello.dial
        self._begin(hello.received, now)
        return Welcome(Verdict.TAKEN, self.session_id, self.received)

    def welcomed(self, welcome: Welcome, now: float) -> bool:
        """The acceptor's answer to our hello; whether the connection is the session's now.

        Raises:
            PeerSessionError: the welcome cannot be.
        """
        if welcome.verdict is Verdict.BUSY:
            self._lost_at = now  # it lives, and has answered
            self.dial_failed(now, "it is connecting by itself")
            return False
        if welcome.verdict is Verdict.FENCED:
            self.left(welcome.reason, Loss.FENCED)
            return False
        if welcome.verdict is not Verdict.TAKEN or (self._theirs and welcome.session != self._theirs):
            self.left("it gave this process up for dead")
            return False
        self._theirs = welcome.session
        self._welcomed = self._dials
        self._begin(welcome.received, now)
        return True

    def cut(self, now: float, why: str) -> None:
        """The session's connection ended."""
        if self.state is not State.CONNECTED:
            return
        self._drop_connection(now)
        self._why, self._retry_s = why, FIRST_RETRY_S
        self._retry_at = now if self._first else now + SECOND_DIAL_S

    def dial_failed(self, now: float, why: str, *, ended: bool = False) -> None:
        """The connection that was being made has failed.

        Args:
            now: when.
            why: how that showed.
            ended: it shows that the other process is not there any more.
        """
        self._excuse_own_absence(now)
        self._end_reach(now)
        if self.state is State.CONNECTED and self._silent_since is None:
            return
        if ended:
            self.left(why, Loss.ENDED)
            return
        if self._silent_since is None:
            self._why = why
        self._retry_at = now + self._retry_s
        self._retry_s = min(2 * self._retry_s, MAX_RETRY_S)

    def silent(self, now: float, silent_s: float) -> None:
        """The connection stands, and nothing has come over it for `silent_s` seconds."""
        if self.state is State.CONNECTED and self._silent_since is None:
            self._silent_since = now - silent_s
            self._retry_s, self._retry_at = FIRST_RETRY_S, now

    def heard(self) -> None:
        """Something came over the connection."""
        if self._silent_since is not None:
            self._silent_since = None
            self._retry_at = None

    def left(self, why: str, loss: Loss = Loss.BROKEN) -> None:
        """The other process is known to have ended, or has said goodbye."""
        if self.state is not State.DEAD:
            self.state, self.reason, self.loss = State.DEAD, why, loss
            self._dialling, self._retry_at = False, None
            self._waiting.clear()
            self._written.clear()

    # -- time ------------------------------------------------------------------------------------

    def decide(self, now: float) -> Decision:
        """What to do now; to be asked after each event and at `wake_at`."""
        self._excuse_own_absence(now)
        since = self._unreachable_since()
        if since is not None and now >= self._grace_ends(since):
            self.left(f"unreachable for {now - since:.1f} s: {self._what()}", Loss.UNREACHABLE)
        if self.state is State.DEAD:
            told, self._end_told = self._end_told, True
            return Decision.WAIT if told else Decision.END
        if self._retry_at is not None and now >= self._retry_at and not self._dialling:
            return Decision.DIAL
        return Decision.WAIT

    def wake_at(self) -> float | None:
        """When `decide` is to be asked again; None as long as nothing happens."""
        since = self._unreachable_since()
        times = [self._retry_at] if self._retry_at is not None and not self._dialling else []
        if since is not None:
            times.append(self._grace_ends(since))
        return min((at for at in times if at < math.inf), default=None)

    def condition(self, now: float) -> str:
        """How it stands with the other, and since when; "" while it is heard of."""
        if self._is_reached:
            return f"stuck for {max(0.0, now - self._reached_at):.1f} s: it was reached, and does not answer"
        return self.reason if self.state is State.DEAD else self.cut_off(now)

    def cut_off(self, now: float, for_s: float = 0.0) -> str:
        """Why the other cannot be reached, and since when; "" while it can, also if it does not answer.

        Of one that is gone for another reason it is "": the link was not to blame.

        Args:
            now: when.
            for_s: "" too if it has been so for less than so many seconds.
        """
        if self.state is State.DEAD:
            return self.reason if self.loss in (Loss.UNREACHABLE, Loss.DECLARED) else ""
        since = None if self._is_reached else self._unreachable_since()
        if since is None or now - since < for_s:
            return ""
        return f"unreachable for {max(0.0, now - since):.1f} s: {self._what()}"

    # -- inside ----------------------------------------------------------------------------------

    def _drop_connection(self, now: float) -> None:
        if self.state is State.CONNECTED:
            silent = self._silent_since is not None
            self._lost_at = now if self._silent_since is None else self._silent_since
            self.state, self._why = State.CUT, "silent" if silent else "its connection is being replaced"
        self._silent_since = None
        self._sent_before = self.num_written
        self.sent -= len(self._written)
        self._waiting.extendleft(reversed(self._written))
        self._written.clear()

    def _begin(self, received: int, now: float) -> None:
        if not self.sent <= received <= self.sent + len(self._waiting):
            message = f"it says that it received {received} messages, after {self.sent}"
            raise PeerSessionError(message)
        for _ in range(received - self.sent):
            self._waiting.popleft()
        self.sent, self._sent_before = received, 0
        self.state = State.CONNECTED
        self._lost_at = now
        self._dialling = False
        self._silent_since = self._retry_at = None
        # What was acknowledged on a former connection may not have arrived; the hello and the welcome said it all.
        self._unacknowledged_messages = self._unacknowledged_bytes = 0

    def _unreachable_since(self) -> float | None:
        if self.state is State.DEAD:
            return None
        return self._silent_since if self.state is State.CONNECTED else self._lost_at

    def _grace_ends(self, since: float) -> float:
        # Who was reached is there: busy, stopped or debugged. How long that may last is not the connection's to say.
        return math.inf if self._is_reached else since + self._grace_s

    @property
    def _is_reached(self) -> bool:
        return self.state is not State.DEAD and self._dialling and self._reached

    def _end_reach(self, now: float) -> None:
        """A dial has failed: as long as it had reached the other, that was not unreachable."""
        if self._is_reached:
            reached_s = now - self._reached_at
            self._lost_at = min(now, self._lost_at + reached_s)
            if self._silent_since is not None:
                self._silent_since = min(now, self._silent_since + reached_s)
        self._dialling = self._reached = False

    def _excuse_own_absence(self, now: float) -> None:
        """While this process was stopped, and did not dial or look what became of that, nobody was unreachable."""
        due_at = self._dialled_at + CONNECT_TIMEOUT_S if self._dialling else self._retry_at
        absent_s = 0.0 if due_at is None or self._is_reached else now - due_at
        if absent_s < OVERDUE_S:
            return
        if self._dialling:
            self._dialled_at += absent_s
        else:
            self._retry_at = now
        self._lost_at = min(now, self._lost_at + absent_s)
        if self._silent_since is not None:
            self._silent_since = min(now, self._silent_since + absent_s)

    def _what(self) -> str:
        return "silent" if self._silent_since is not None else self._why
