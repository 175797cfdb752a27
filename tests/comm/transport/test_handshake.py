import pytest

from rlinf.scheduler.comm import ClusterSecret
from rlinf.scheduler.comm.transport.handshake import Handshake, HandshakeError


def sides(dialler_secret, acceptor_secret):
    return Handshake(dialler_secret, dials=True), Handshake(acceptor_secret, dials=False)


def test_two_holders_of_the_key_come_together(secret):
    dialler, acceptor = sides(secret, secret)
    last = dialler.take(acceptor.take(dialler.begin()))
    assert acceptor.take(last) == b""
    assert dialler.wants_bytes == acceptor.wants_bytes == 0


def test_a_dialler_refuses_an_acceptor_with_another_key(secret):
    dialler, acceptor = sides(secret, ClusterSecret.generate())
    answer = acceptor.take(dialler.begin())
    with pytest.raises(HandshakeError, match="cluster's key"):
        dialler.take(answer)


def test_an_acceptor_refuses_a_proof_from_another_connection(secret):
    dialler, acceptor = sides(secret, secret)
    proof = dialler.take(acceptor.take(dialler.begin()))
    _, another = sides(secret, secret)
    another.take(dialler.begin())
    with pytest.raises(HandshakeError, match="cluster's key"):
        another.take(proof)


def test_a_reflected_proof_is_refused(secret):
    _, acceptor = sides(secret, secret)
    answer = acceptor.take(Handshake(secret, dials=True).begin())
    with pytest.raises(HandshakeError, match="cluster's key"):
        acceptor.take(answer[32:])


def test_another_protocol_is_told_at_its_first_bytes(secret):
    _, acceptor = sides(secret, secret)
    with pytest.raises(HandshakeError, match="not this protocol"):
        acceptor.take(b"GET / HTTP/1.1".ljust(acceptor.wants_bytes))
