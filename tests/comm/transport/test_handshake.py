"""The steps of a handshake, without sockets: two generators that feed each other."""

import pytest

from rlinf_scheduler.comm import ClusterSecret, Endpoint
from rlinf_scheduler.comm.codec import encode
from rlinf_scheduler.comm.shm.payload import frame_offsets
from rlinf_scheduler.comm.transport import handshake
from rlinf_scheduler.comm.transport.handshake import (
    HEADER_BYTES,
    NONCE_BYTES,
    PROTOCOL_VERSION,
    SECURE,
    HandshakeError,
)
from rlinf_scheduler.comm.transport.identity import Identity
from rlinf_scheduler.comm.transport.peer_session import Hello, PeerSession, Verdict, Welcome

HELLO = Hello(1, 0, 1, 0, 0)


def identity(secret, name="someone"):
    one = Identity(secret, name)
    one.endpoint = Endpoint(one.process_id, "machine", "/path", "")
    return one


def take(_who, _hello):
    return Welcome(Verdict.TAKEN, 2, 0)


class Side:
    """One side: what it wrote, and how it ended."""

    def __init__(self, steps):
        self.steps = steps
        self.inbox, self.result, self.error, self.wanted = b"", None, None, None
        self.said = b""
        self.secured = 0

    def go_on(self, data=None):
        out = b""
        try:
            step = self.steps.send(data)
            while not isinstance(step, int):
                if step is SECURE:
                    self.secured += 1
                else:
                    out += step
                step = self.steps.send(b"")
            self.wanted = step
        except StopIteration as end:
            self.wanted, self.result = None, end.value
        except HandshakeError as error:
            self.wanted, self.error = None, error
        self.said += out
        return out

    def feed(self, data):
        self.inbox += data
        out = b""
        while self.wanted is not None and len(self.inbox) >= self.wanted:
            piece, self.inbox = self.inbox[: self.wanted], self.inbox[self.wanted :]
            out += self.go_on(piece)
        return out


def meet(dialler, acceptor, expected=None, *, judge=take, encrypts=(False, False), tamper=lambda data: data):
    """Both sides, after they have said what they could."""
    proved = []
    one = Side(handshake.dial(dialler, expected or acceptor.process_id, lambda: HELLO, encrypts=encrypts[0]))
    other = Side(handshake.accept(acceptor, judge, lambda: proved.append(1), encrypts=encrypts[1]))
    to_other, to_one = one.go_on(), other.go_on()
    while to_other or to_one:
        to_one += other.feed(tamper(to_other))
        to_other = one.feed(to_one)
        to_one = b""
    other.proved = bool(proved)
    return one, other


def test_two_of_a_cluster_know_each_other_afterwards(secret):
    dialler, acceptor = identity(secret, "dialler"), identity(secret, "acceptor")
    one, other = meet(dialler, acceptor)
    assert one.result.name == "acceptor"
    assert one.result.endpoint == acceptor.endpoint
    assert one.result.welcome == Welcome(Verdict.TAKEN, 2, 0)
    assert other.result.endpoint == dialler.endpoint
    assert other.result.session == HELLO
    assert other.proved


def test_with_encryption_nothing_is_said_in_the_clear_but_proofs(secret):
    one, other = meet(identity(secret), identity(secret), encrypts=(True, True))
    assert one.secured == other.secured == 1


def test_another_version_is_refused_by_both_and_both_are_named(secret, monkeypatch):
    this, other = PROTOCOL_VERSION, PROTOCOL_VERSION + 1
    old = identity(secret)
    steps = Side(handshake.dial(old, "x", lambda: HELLO, encrypts=False))
    first = steps.go_on()
    monkeypatch.setattr(handshake, "PROTOCOL_VERSION", PROTOCOL_VERSION + 1)
    acceptor = Side(handshake.accept(identity(secret), take, lambda: None, encrypts=False))
    acceptor.go_on()
    answer = acceptor.feed(first)
    assert (
        str(acceptor.error) == f"it speaks version {this} of the protocol, and this process version {other}"
    )
    monkeypatch.setattr(handshake, "PROTOCOL_VERSION", PROTOCOL_VERSION)
    steps.feed(answer)
    assert str(steps.error) == f"it speaks version {other} of the protocol, and this process version {this}"
    assert steps.error.final
    assert len(answer) == HEADER_BYTES


def test_how_objects_are_written_and_where_they_lie_belongs_to_a_version():
    """Who changes one of these raises the version: a process of another one would read them wrongly, unnoticed."""
    large = 4 << 20
    offsets, _ = frame_offsets([100, large, 10, large, 10])
    forms = [encode(obj).head[0] for obj in (None, bytes(2000), bytearray(2000), b"small", "x" * 100_000)]
    assert (PROTOCOL_VERSION, forms) == (4, [0, 1, 2, 5, 4])
    assert offsets == [0, 4096, 4096 + large, 8192 + large, 8192 + 2 * large]


@pytest.mark.parametrize("encrypts", [(True, False), (False, True)])
def test_who_encrypts_and_who_does_not_tell_each_other_so(secret, encrypts):
    one, other = meet(identity(secret), identity(secret), encrypts=encrypts)
    for side, here in ((one, encrypts[0]), (other, encrypts[1])):
        words = ("off", "on") if here else ("on", "off")
        assert str(side.error) == "it has encryption {}, and this process has it {}".format(*words)


def test_a_dialler_refuses_an_acceptor_with_another_key(secret):
    one, other = meet(identity(secret), identity(ClusterSecret.generate()))
    assert "cluster's key" in str(one.error)
    assert one.error.final
    assert other.result is None
    assert not other.proved


def test_an_acceptor_refuses_a_dialler_with_another_key(secret):
    stranger = identity(ClusterSecret.generate())
    other = Side(handshake.accept(identity(secret), take, lambda: pytest.fail("no proof"), encrypts=False))
    other.go_on()
    one = Side(handshake.dial(stranger, "x", lambda: HELLO, encrypts=False))
    other.feed(one.go_on())
    other.feed(bytes(handshake.MAC_BYTES))
    assert "cluster's key" in str(other.error)


def test_a_proof_from_another_connection_is_refused(secret):
    one, first = meet(identity(secret), identity(secret))
    assert first.result is not None
    again = Side(handshake.accept(identity(secret), take, lambda: None, encrypts=False))
    again.go_on()
    again.feed(one.said)
    assert "cluster's key" in str(again.error)


def test_a_reflected_proof_is_refused(secret):
    other = Side(handshake.accept(identity(secret), take, lambda: None, encrypts=False))
    other.go_on()
    one = Side(handshake.dial(identity(secret), "x", lambda: HELLO, encrypts=False))
    answer = other.feed(one.go_on())
    other.feed(answer[HEADER_BYTES + NONCE_BYTES :])
    assert "cluster's key" in str(other.error)


def test_another_protocol_is_told_at_its_first_bytes(secret):
    other = Side(handshake.accept(identity(secret), take, lambda: None, encrypts=False))
    other.go_on()
    assert other.feed(b"GET / HTTP/1.1") == b""
    assert "not this protocol" in str(other.error)


def test_a_process_that_takes_anothers_id_is_refused(secret):
    impostor, victim = identity(secret, "impostor"), identity(secret, "victim")
    impostor.endpoint = victim.endpoint
    _, other = meet(impostor, identity(secret))
    assert f"not the process {victim.process_id}" in str(other.error)
    impostor.process_id = victim.process_id
    _, other = meet(impostor, identity(secret))
    assert "not the process" in str(other.error)
    one, _ = meet(identity(secret), impostor, victim.process_id)
    assert "not the process" in str(one.error)


def test_a_proof_for_one_process_does_not_convince_another(secret):
    dialler, acceptor, third = (identity(secret) for _ in range(3))
    proof = dialler.prove(b"dialler", b"nonces", acceptor.process_id)
    assert proof.holds(b"dialler", b"nonces", dialler.process_id, acceptor.process_id)
    assert not proof.holds(b"dialler", b"nonces", dialler.process_id, third.process_id)
    assert not proof.holds(b"acceptor", b"nonces", dialler.process_id, acceptor.process_id)
    assert not proof.holds(b"dialler", b"others", dialler.process_id, acceptor.process_id)


def test_another_process_at_the_address_is_no_reason_to_try_again(secret):
    one, _ = meet(identity(secret), identity(secret, "newcomer"), expected="of-somebody-who-is-gone")
    # The acceptor cannot have signed for an id that is not its own.
    assert one.result is None
    assert one.error.final


def test_who_is_not_taken_hears_why(secret):
    one, other = meet(identity(secret), identity(secret), judge=lambda *_: Welcome(Verdict.BUSY))
    assert other.result is None
    assert one.result.welcome.verdict is Verdict.BUSY
    session = PeerSession("a", "b", 1, 0.0)
    session.dial(0.0)
    session.hello(0.0)
    assert not session.welcomed(one.result.welcome, 0.0)
