"""A process's sessions with its peers in a simulated world: the real machines, over streams that are cut and stall."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from rlinf_scheduler.comm.transport.peer_session import (
    ACK_DELAY_S,
    GRACE_S,
    Decision,
    Hello,
    PeerSession,
    PeerSessionError,
    State,
    Verdict,
    Welcome,
)
from simulator.network import Network, Stream
from simulator.world import Process, Violation, World

# Whoever was heard so lately is there.
RECENT_US = 1_000_000
# So late may a death be noticed once nothing stands between.
NOTICED_US = 3_000_000

MakeSession = Callable[[str, str, int, float], "PeerSession[Any]"]


class _Half:
    """One half of a session, and the streams it has."""

    __slots__ = (
        "ack_due",
        "begun_us",
        "dialling",
        "heard_us",
        "num_heard",
        "num_said",
        "peer",
        "pumping",
        "session",
        "stream",
        "wake_us",
    )

    def __init__(self, peer: str, session: PeerSession[Any]) -> None:
        self.peer = peer
        self.session = session
        self.stream: Stream | None = None  # the session's
        self.dialling: Stream | None = None
        self.num_said = self.num_heard = 0
        self.heard_us = -RECENT_US
        self.begun_us = 0
        self.pumping = False
        self.ack_due = False
        self.wake_us: int | None = None


class PeerSessions:
    """All sessions of one process.

    Args:
        process: whose they are; it is told what comes and who is lost.
        network: what lies between.
        make: makes a session machine of own name, peer's name, id and time in seconds.
    """

    def __init__(self, process: Process, network: Network, make: MakeSession = PeerSession) -> None:
        self.process = process
        self._user: Any = process
        self._world: World = process.world
        self._network = network
        self._make = make
        self._draw = self._world.randomness("sessions", process.name)
        self._halves: dict[str, _Half] = {}
        network.join(self)

    def send(self, peer: str, message: Any) -> None:
        """Send; it arrives once and in order, unless the session ends before."""
        is_new = peer not in self._halves
        half = self._half(peer)
        if half.session.state is not State.DEAD:
            half.num_said += 1
            half.session.send((half.num_said, message))
            if is_new:
                self._step(half)
            elif not half.pumping:  # who sends something does not hear of an end while it does
                self._pump(half)

    def check_rest(self) -> None:
        """Check that nothing is under way when the world rests."""
        for half in self._halves.values():
            session = half.session
            if session.state is State.DEAD:
                continue
            if session.state is not State.CONNECTED or session.num_unacknowledged:
                rest = f"{session.num_unacknowledged} messages for {half.peer}, {session.state.value}"
                message = f"{self.process.name} rests with {rest}"
                raise Violation(message, (self.process.name, half.peer))

    # -- streams ---------------------------------------------------------------------------------

    def made(self, stream: Stream) -> None:
        """Our stream leads to the other machine: say hello."""
        half = self._halves[stream.other(self.process.name)]
        if half.dialling is not stream:
            self._network.close(stream, self.process.name)
            return
        half.session.reached(self.process.now())
        hello = half.session.hello(self.process.now())
        self._leave_stream(half)
        self._network.send(stream, self.process.name, hello)
        self._step(half)

    def not_made(self, stream: Stream, *, ended: bool) -> None:
        """Our stream could not be made."""
        half = self._halves[stream.other(self.process.name)]
        if half.dialling is stream:
            half.dialling = None
            half.session.dial_failed(self.process.now(), "refused" if ended else "timed out", ended=ended)
            self._step(half)

    def heard(self, stream: Stream, frame: Any) -> None:
        """A frame came."""
        half = self._half(stream.other(self.process.name))
        half.heard_us = self._world.now_us
        if isinstance(frame, Hello):
            self._welcome(half, stream, frame)
        elif isinstance(frame, Welcome):
            self._welcomed(half, stream, frame)
        elif half.stream is stream:
            self._read(half, *frame)
        self._step(half)

    def closed(self, stream: Stream, *, ended: bool) -> None:
        """A stream has ended."""
        half = self._halves.get(stream.other(self.process.name))
        if half is None:
            return
        if half.stream is stream:
            half.stream = None
            half.session.cut(self.process.now(), "cut")
        elif half.dialling is stream:
            half.dialling = None
            half.session.dial_failed(self.process.now(), "cut")
        if ended:
            half.session.left("ended")
        self._step(half)

    def silent(self, stream: Stream, silent_s: float) -> None:
        """Nothing comes over a stream."""
        half = self._halves.get(stream.other(self.process.name))
        if half is not None and half.stream is stream:
            half.session.silent(self.process.now(), silent_s)
            self._step(half)

    def alive(self, stream: Stream) -> None:
        """The other machine has answered a probe."""
        half = self._halves.get(stream.other(self.process.name))
        if half is not None and half.stream is stream:
            half.session.heard()
            self._step(half)

    # -- inside ----------------------------------------------------------------------------------

    def _half(self, peer: str) -> _Half:
        half = self._halves.get(peer)
        if half is None:
            session = self._make(self.process.name, peer, self._draw.getrandbits(62) + 1, self.process.now())
            half = self._halves[peer] = _Half(peer, session)
            half.begun_us = self._world.now_us
        return half

    def _welcome(self, half: _Half, stream: Stream, hello: Hello) -> None:
        session, name = half.session, self.process.name
        verdict = Verdict.UNKNOWN if session.state is State.DEAD else session.judge(hello, self.process.now())
        self._world.note(name, "judges", half.peer, verdict.name)
        if verdict is Verdict.TAKEN:
            self._leave_stream(half)
            self._leave_dial(half)
            half.stream = stream
            self._network.send(stream, name, self._trust(half, session.accept, hello, self.process.now()))
            return
        if verdict is Verdict.REPLACED:
            session.left("it has begun anew")
            verdict = Verdict.UNKNOWN
        self._network.send(stream, name, Welcome(verdict))
        self._network.close(stream, name)

    def _welcomed(self, half: _Half, stream: Stream, welcome: Welcome) -> None:
        if half.dialling is not stream:
            return
        half.dialling = None
        if self._trust(half, half.session.welcomed, welcome, self.process.now()):
            half.stream = stream
        else:
            self._network.close(stream, self.process.name)

    def _read(self, half: _Half, messages: list[tuple[int, Any]], acknowledged: int | None) -> None:
        session = half.session
        session.heard()
        if acknowledged is not None:
            self._trust(half, session.acknowledge, acknowledged)
        for number, message in messages:
            if number != half.num_heard + 1:
                raise Violation(
                    f"{self.process.name} hears message {number} of {half.peer} after {half.num_heard}",
                    (self.process.name, half.peer),
                )
            half.num_heard = number
            self._user.receive(half.peer, message)
        if messages and session.receive(len(messages), 100 * len(messages)):
            self._acknowledge(half)
        elif messages and not half.ack_due:
            half.ack_due = True
            self.process.call_later(ACK_DELAY_S, partial(self._acknowledge, half))

    def _trust(self, half: _Half, act: Callable[..., Any], *args: Any) -> Any:
        try:
            return act(*args)
        except PeerSessionError as error:
            message = f"{self.process.name} cannot believe {half.peer}: {error}"
            raise Violation(message, (self.process.name, half.peer)) from error

    def _acknowledge(self, half: _Half) -> None:
        half.ack_due = False
        number = half.session.acknowledgement() if half.stream is not None else None
        if number is not None and half.stream is not None:
            self._network.send(half.stream, self.process.name, ([], number))

    def _step(self, half: _Half) -> None:
        """Do what the session decides, and write what there is to write."""
        decision = half.session.decide(self.process.now())
        if decision is Decision.DIAL:
            half.session.dial(self.process.now())
            half.dialling = self._network.dial(self.process.name, half.peer)
        elif decision is Decision.END:
            self._end(half)
        wake_s = half.session.wake_at()
        if wake_s is not None:
            wake_us = max(self._world.now_us + 1, int(wake_s * 1e6) + 1)
            if half.wake_us is None or wake_us < half.wake_us or half.wake_us <= self._world.now_us:
                half.wake_us = wake_us
                self.process.later(wake_us - self._world.now_us, self._step, half)
        if not half.pumping:
            self._pump(half)

    def _pump(self, half: _Half) -> None:
        """Write some of what waits; a stream takes only so much at a time."""
        half.pumping = False
        if half.stream is None:
            return
        messages = []
        for _ in range(self._draw.randint(1, 3)):
            message = half.session.take()
            if message is None:
                break
            messages.append(message)
        if messages:
            half.pumping = True
            self._network.send(half.stream, self.process.name, (messages, half.session.acknowledgement()))
            self.process.later(self._draw.randrange(40), self._pump, half)

    def _end(self, half: _Half) -> None:
        self._world.note(self.process.name, "gives up", half.peer, half.session.reason)
        self._check_end(half)
        self._leave_stream(half)
        self._leave_dial(half)
        self._user.lost(half.peer)

    def _check_end(self, half: _Half) -> None:
        """Check that whoever is given up has ended, was out of reach too long, or has given this process up."""
        peer, other = half.peer, self._network.end_of(half.peer)
        pair = frozenset((self.process.name, peer))
        if not other.process.alive:
            since_us = max(other.process.died_us, self._network.clear_since_us(pair), half.begun_us)
            if self._world.now_us - since_us > NOTICED_US + self.process.paused_us:
                message = f"{self.process.name} notices late that {peer} has died"
                raise Violation(message, (self.process.name, peer))
            return
        if other.has_given_up(self.process.name):
            return
        if 0 <= self._world.now_us - half.heard_us < RECENT_US:
            message = f"{self.process.name} gives {peer} up, which it has just heard"
            raise Violation(message, (self.process.name, peer))
        paused_us = self.process.paused_us + other.process.paused_us
        if self._network.unreachable_us.get(pair, 0) + paused_us < GRACE_S * 1e6:
            message = f"{self.process.name} gives {peer} up, which could be reached"
            raise Violation(message, (self.process.name, peer))

    def has_given_up(self, peer: str) -> bool:
        """Return whether this process holds another for dead."""
        half = self._halves.get(peer)
        return half is not None and half.session.state is State.DEAD

    def _leave_stream(self, half: _Half) -> None:
        if half.stream is not None:
            self._network.close(half.stream, self.process.name)
            half.stream = None

    def _leave_dial(self, half: _Half) -> None:
        if half.dialling is not None:
            self._network.close(half.dialling, self.process.name)
            half.dialling = None
