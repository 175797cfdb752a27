"""The session between two processes, run by the thousand over connections that are cut anywhere."""

import random
from collections import deque

import pytest

from effort import case, tries
from rlinf_scheduler.comm.transport.peer_session import (
    GRACE_S,
    MAX_RETRY_S,
    Decision,
    Hello,
    PeerSession,
    PeerSessionError,
    State,
    Verdict,
    Welcome,
)


class Wire:
    """One connection: a queue in each direction, which loses what is under way when it is cut."""

    def __init__(self, dialler, acceptor):
        self.ends = (dialler, acceptor)
        self.to = {dialler: deque(), acceptor: deque()}
        self.open = True


class Half:
    """An owner of a session, as the messenger is, over wires."""

    def __init__(self, name, peer_name, number):
        self.session = PeerSession(name, peer_name, number, 0.0)
        self.peer = None
        self.dialled = None  # the wire that this half is making
        self.wire = None  # the session's
        self.read_from = None  # the wire that it may still be read from
        self.heard = []
        self.ended = False

    def step(self, now):
        decision = self.session.decide(now)
        if decision is Decision.DIAL:
            self.session.dial(now)
            self.dialled = Wire(self, self.peer)
            self.read_from = None
            self.wire = None
            self.dialled.to[self.peer].append(self.session.hello(now))
            return self.dialled
        self.ended = self.ended or decision is Decision.END
        return None

    def pump(self, budget):
        while self.wire is not None and self.wire.open and budget:
            message = self.session.take()
            if message is None:
                break
            self.wire.to[self.peer].append(message)
            budget -= 1

    def acknowledge(self):
        number = self.session.acknowledgement()
        if number is not None and self.wire is not None and self.wire.open:
            self.wire.to[self.peer].append(("ack", number))

    def receive(self, wire, now):
        word = wire.to[self].popleft()
        if isinstance(word, Hello):
            self.judge(wire, word, now)
        elif isinstance(word, Welcome):
            self.greet(wire, word, now)
        elif wire is self.wire:
            if isinstance(word, tuple):
                self.session.acknowledge(word[1])
            else:
                self.heard.append(word)
                self.session.receive(1, 10)

    def judge(self, wire, hello, now):
        verdict = self.session.judge(hello, now)
        if verdict is Verdict.TAKEN:
            self.dialled = None
            self.wire = wire
            wire.to[self.peer].append(self.session.accept(hello, now))
        else:
            wire.to[self.peer].append(Welcome(verdict))

    def greet(self, wire, welcome, now):
        if wire is not self.dialled:
            return
        self.dialled = None
        if self.session.welcomed(welcome, now):
            self.wire = wire

    def notice(self, wire, now):
        if wire is self.wire:
            self.wire = None
            self.session.cut(now, "cut")
        elif wire is self.dialled:
            self.dialled = None
            self.session.dial_failed(now, "cut")


class World:
    """Two halves, the wires between them, and a clock; what happens next is drawn."""

    def __init__(self, seed, num_messages, num_cuts):
        self.rng = random.Random(seed)
        self.halves = Half("a", "b", 11), Half("b", "a", 22)
        for half, peer in (self.halves, self.halves[::-1]):
            half.peer = peer
        self.now = 0.0
        self.wires, self.unnoticed = [], []
        self.num_messages = num_messages
        self.to_send = {half: list(range(num_messages)) for half in self.halves}
        self.num_cuts = num_cuts
        self.actions = [self.advance] * 4 + [self.send] * 3 + [self.pump] * 3 + [self.receive] * 7
        self.actions += [self.acknowledge, self.notice, self.notice, self.cut_one]

    def run(self):
        for _ in range(30_000):
            self.rng.choice(self.actions)(self.rng.choice(self.halves))
            self.close_unused()
            if all(len(half.heard) >= self.num_messages for half in self.halves):
                return

    def advance(self, half):
        self.now += self.rng.choice((0.0, 0.001, 0.02))
        wire = half.step(self.now)
        if wire is not None:
            self.wires.append(wire)

    def send(self, half):
        if self.to_send[half]:
            half.session.send(self.to_send[half].pop(0))

    def pump(self, half):
        half.pump(self.rng.randint(1, 5))

    def acknowledge(self, half):
        half.acknowledge()

    def receive(self, half):
        waiting = [wire for wire in self.wires if wire.to[half]]
        if waiting:
            half.receive(self.rng.choice(waiting), self.now)

    def cut_one(self, _half):
        if self.num_cuts and self.wires:
            self.num_cuts -= 1
            self.cut(self.rng.choice(self.wires))

    def cut(self, wire):
        wire.open = False
        for end in wire.ends:
            for _ in range(self.rng.randint(0, len(wire.to[end]))):
                wire.to[end].pop()
            self.unnoticed.append((wire, end))

    def notice(self, _half):
        if self.unnoticed:
            wire, end = self.unnoticed.pop(self.rng.randrange(len(self.unnoticed)))
            while wire.to[end]:
                end.receive(wire, self.now)
            end.notice(wire, self.now)

    def close_unused(self):
        """Whoever gave a connection up closes it, and the other hears of that."""
        for wire in self.wires:
            used = all(wire in (end.wire, end.dialled) for end in wire.ends)
            if wire.open and not used and not any(wire.to.values()):
                self.cut(wire)
        self.wires = [wire for wire in self.wires if wire.open or any(wire.to.values())]


def test_nothing_is_lost_and_nothing_comes_twice_however_connections_are_cut():
    for seed in range(tries(300)):
        with case(seed):
            world = World(seed, num_messages=60, num_cuts=20)
            world.run()
            for half in world.halves:
                assert half.heard == list(range(60))
                assert not half.ended


@pytest.fixture
def connected():
    """Two halves with a connection, made by the first."""
    one, other = PeerSession("a", "b", 1, 0.0), PeerSession("b", "a", 2, 0.0)
    one.dial(0.0)
    assert one.welcomed(other.accept(one.hello(0.0), 0.0), 0.0)
    return one, other


def test_what_was_not_acknowledged_is_written_again_and_in_order(connected):
    one, other = connected
    for number in range(5):
        one.send(number)
    assert [one.take() for _ in range(4)] == [0, 1, 2, 3]
    other.receive(2, 100)
    one.acknowledge(1)
    one.cut(1.0, "cut")
    other.cut(1.0, "cut")
    assert one.take() is None
    other.dial(1.0)
    hello = other.hello(1.0)
    assert one.judge(hello, 1.0) is Verdict.TAKEN
    assert other.welcomed(one.accept(hello, 1.0), 1.0)
    assert [one.take() for _ in range(4)] == [2, 3, 4, None]


def test_what_the_other_side_may_have_got_is_what_was_ever_written_and_it_has_not_denied(connected):
    one, other = connected
    for number in range(3):
        one.send(number)
    assert [one.take() for _ in range(2)] == [0, 1]
    one.cut(1.0, "cut")
    one.send(3)
    assert (one.num_queued, one.num_written) == (4, 2)
    other.cut(1.0, "cut")
    other.dial(1.0)
    assert other.welcomed(one.accept(other.hello(1.0), 1.0), 1.0)
    assert (one.num_queued, one.num_written) == (4, 0)
    one.take()
    one.left("it has ended")
    assert one.num_written == 1


def test_of_two_that_dial_at_once_the_smaller_ids_connection_stays():
    one, other = PeerSession("a", "b", 1, 0.0), PeerSession("b", "a", 2, 0.0)
    one.dial(0.0)
    other.dial(0.0)
    first, second = one.hello(0.0), other.hello(0.0)
    assert one.judge(second, 0.0) is Verdict.BUSY
    assert other.judge(first, 0.0) is Verdict.TAKEN
    assert one.welcomed(other.accept(first, 0.0), 0.0)
    # What the other had begun before it took this connection comes too late.
    assert one.judge(second, 10.0) is Verdict.BUSY


def test_a_dial_that_gets_nowhere_does_not_keep_the_other_side_out_for_long():
    one, other = PeerSession("a", "b", 1, 0.0), PeerSession("b", "a", 2, 0.0)
    one.dial(0.0)
    other.dial(0.0)
    assert one.judge(other.hello(0.0), 3.0) is Verdict.TAKEN


def test_silence_is_unreachable_and_speech_ends_it(connected):
    one, _ = connected
    one.silent(14.0, 4.0)
    assert one.condition(16.0) == "unreachable for 6.0 s: silent"
    assert one.decide(16.0) is Decision.DIAL
    one.heard()
    assert one.condition(16.0) == ""
    assert one.decide(16.0) is Decision.WAIT
    assert one.wake_at() is None


def test_after_the_grace_it_is_dead_and_that_is_said_once(connected):
    one, _ = connected
    one.cut(5.0, "its connection broke (ECONNRESET)")
    now = 5.0
    while now < 5.0 + GRACE_S:
        assert one.decide(now) is Decision.DIAL
        one.dial(now)
        one.dial_failed(now + 0.001, "no route (EHOSTUNREACH)")
        assert now < one.wake_at() <= now + MAX_RETRY_S + 0.002
        now = one.wake_at()
    assert one.decide(now) is Decision.END
    assert one.reason == "unreachable for 30.0 s: no route (EHOSTUNREACH)"
    assert one.decide(now) is Decision.WAIT
    assert one.wake_at() is None


def test_who_was_silent_and_is_dialled_again_keeps_its_grace(connected):
    one, _ = connected
    one.silent(104.0, 4.0)
    assert one.decide(104.0) is Decision.DIAL
    one.dial(104.0)
    one.hello(104.1)
    assert one.decide(104.2) is Decision.WAIT
    assert one.condition(106.0) == "unreachable for 6.0 s: silent"


def test_once_the_hello_of_a_new_connection_is_said_the_old_one_is_over(connected):
    one, _ = connected
    one.silent(4.0, 4.0)
    one.dial(4.0)
    one.send("a message")
    assert one.take() == "a message"
    one.hello(4.1)
    assert one.take() is None
    assert one.state is State.CUT


def test_who_was_reached_but_does_not_answer_is_stuck_and_never_dead_for_that():
    """A debugger holds it at the first contact: nobody may take it for dead on this connection's word."""
    one = PeerSession("a", "b", 1, 0.0)
    one.dial(0.0)
    one.reached(0.5)
    for now in (GRACE_S + 1, 121.0, 1e6):
        assert one.decide(now) is Decision.WAIT
        assert one.cut_off(now) == ""
    assert one.wake_at() is None
    assert one.condition(40.5) == "stuck for 40.0 s: it was reached, and does not answer"


def test_time_in_which_it_was_reached_does_not_count_as_unreachable(connected):
    one, _ = connected
    one.cut(0.0, "cut")
    one.dial(1.0)
    one.reached(1.0)
    one.dial_failed(1001.0, "silent")
    assert one.cut_off(1002.0) == "unreachable for 2.0 s: silent"
    now = one.wake_at()
    while now < 1000.0 + GRACE_S:
        assert one.decide(now) is Decision.DIAL
        one.dial(now)
        one.dial_failed(now, "silent")
        now = one.wake_at()
    assert one.decide(now) is Decision.END


def test_time_in_which_this_process_was_stopped_before_a_dial_does_not_count_as_unreachable(connected):
    one, _ = connected
    one.cut(5.0, "no route (EHOSTUNREACH)")
    assert one.wake_at() < 6.0
    assert one.decide(70.0) is Decision.DIAL
    assert one.cut_off(70.0) == "unreachable for 0.0 s: no route (EHOSTUNREACH)"


def test_time_in_which_this_process_was_stopped_in_a_dial_does_not_count_as_unreachable(connected):
    one, _ = connected
    one.cut(5.0, "cut")
    one.dial(5.0)
    one.reached(70.0)
    one.dial_failed(70.0, "its connection closed during the handshake")
    assert one.decide(70.0) is Decision.WAIT
    assert one.decide(one.wake_at()) is Decision.DIAL


def test_who_takes_connections_and_drops_them_is_unreachable_after_the_grace(connected):
    one, _ = connected
    one.cut(0.0, "cut")
    now, ended = 0.0, False
    while not ended and now < 2 * GRACE_S:
        if one.decide(now) is Decision.DIAL:
            one.dial(now)
            one.reached(now)
            one.dial_failed(now + 0.001, "its connection closed during the handshake")
        now += 0.1
        ended = one.decide(now) is Decision.END
    assert GRACE_S <= now < GRACE_S + 1


def test_a_refusal_ends_it_at_once(connected):
    one, _ = connected
    one.cut(1.0, "cut")
    one.dial(1.0)
    one.dial_failed(1.1, "nobody listens at its address (ECONNREFUSED)", ended=True)
    assert one.decide(1.1) is Decision.END
    assert one.condition(2.0) == "nobody listens at its address (ECONNREFUSED)"
    assert one.cut_off(2.0) == "", "its process has ended, and was not cut off"


def test_a_session_that_the_other_has_given_up_does_not_go_on(connected):
    one, _ = connected
    one.cut(1.0, "cut")
    one.dial(1.0)
    hello = one.hello(1.0)
    anew = PeerSession("b", "a", 3, 1.0)
    assert anew.judge(hello, 1.0) is Verdict.UNKNOWN
    assert not one.welcomed(Welcome(Verdict.UNKNOWN), 1.0)
    assert one.decide(1.0) is Decision.END
    assert anew.judge(PeerSession("a", "b", 4, 1.0).hello(1.0), 1.0) is Verdict.TAKEN


def test_a_new_session_of_a_known_process_replaces_the_old(connected):
    one, _ = connected
    anew = PeerSession("b", "a", 3, 1.0)
    assert one.judge(anew.hello(1.0), 1.0) is Verdict.REPLACED


def test_numbers_that_cannot_be_are_refused(connected):
    one, other = connected
    with pytest.raises(PeerSessionError, match="acknowledged message 1 of 0"):
        one.acknowledge(1)
    one.cut(1.0, "cut")
    one.dial(1.0)
    hello = one.hello(1.0)
    with pytest.raises(PeerSessionError, match="received 7 messages, after 0"):
        other.accept(Hello(hello.session, hello.known, hello.dial, hello.accepted, 7), 1.0)


def test_many_messages_are_acknowledged_together(connected):
    one, _ = connected
    assert not one.receive(1, 100)
    assert one.acknowledgement() == 1
    assert one.acknowledgement() is None
    assert one.receive(100, 100)
    assert one.acknowledgement() == 101


def test_goodbye_is_the_end(connected):
    one, _ = connected
    one.send("never needed")
    one.left("it closed its messenger")
    assert one.state is State.DEAD
    assert one.decide(0.0) is Decision.END
    assert one.num_unacknowledged == 0
