"""Who may come in over TCP: CURVE keys made from the cluster's secret, and the answer to ZeroMQ's question."""

from __future__ import annotations

import secrets

import zmq
from zmq.utils import z85

from rlinf.scheduler.comm.secret import ClusterSecret
from rlinf.scheduler.errors import CommError

ZAP_ADDRESS = "inproc://zeromq.zap.01"


class CurveKeys:
    """The two key pairs that a cluster's secret determines."""

    def __init__(self, secret: ClusterSecret) -> None:
        if not zmq.has("curve"):
            raise CommError("this ZeroMQ was built without CURVE, so that no other machine can be reached")
        self.server_secret = z85.encode(secret.derive(b"curve server"))
        self.server_public = zmq.curve_public(self.server_secret)
        self.client_secret = z85.encode(secret.derive(b"curve client"))
        self.client_public = zmq.curve_public(self.client_secret)


def judge(question: list[bytes], keys: CurveKeys) -> tuple[bool, str, list[bytes]]:
    """Whether a connection may come in: the verdict, its address, and the answer to ZeroMQ (ZAP 1.0, RFC 27)."""
    version, ident, _domain, address, _identity, mechanism, *credentials = question
    allowed = (
        mechanism == b"CURVE"
        and len(credentials) == 1
        and secrets.compare_digest(z85.encode(credentials[0]), keys.client_public)
    )
    status = [b"200", b"OK"] if allowed else [b"400", b"not of this cluster"]
    return allowed, address.decode(), [version, ident, *status, b"", b""]
