"""How two processes prove to each other, before anything else, that they hold the cluster's key. Does no I/O.

    dialler  -> acceptor   magic (5 bytes), nonce D (32 bytes)
    acceptor -> dialler    nonce A (32 bytes), MAC(key, "acceptor", D, A)
    dialler  -> acceptor   MAC(key, "dialler", A, D)

Every part has a fixed size. Each side answers the other's fresh nonce, so that captured bytes are worth
nothing, and in its own role, so that reflected ones are not either. The MAC is HMAC-SHA256.
"""

from __future__ import annotations

import hmac
import secrets

from rlinf.scheduler.comm.secret import ClusterSecret

MAGIC = b"RLNF1"
NONCE_BYTES = 32
MAC_BYTES = 32


class HandshakeError(Exception):
    """The other side does not belong to the cluster; the text says how it showed."""


class Handshake:
    """One side of the handshake.

    Args:
        secret: the cluster's secret.
        dials: whether this side made the connection.

    Attributes:
        wants_bytes: how many bytes `take` needs next; 0 when the other side has proved itself.
    """

    def __init__(self, secret: ClusterSecret, *, dials: bool) -> None:
        self._secret = secret
        self._dials = dials
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._their_nonce = b""
        self.wants_bytes = NONCE_BYTES + MAC_BYTES if dials else len(MAGIC) + NONCE_BYTES

    def begin(self) -> bytes:
        """What this side sends unasked."""
        return MAGIC + self._nonce if self._dials else b""

    def take(self, data: bytes) -> bytes:
        """Take the next `wants_bytes` bytes from the other side; what is to be sent in answer comes back.

        Raises:
            HandshakeError: the connection is to be dropped.
        """
        if self._dials:
            self._their_nonce = data[:NONCE_BYTES]
            self._check(b"acceptor", data[NONCE_BYTES:])
            self.wants_bytes = 0
            return self._secret.mac(b"dialler", self._their_nonce, self._nonce)
        if not self._their_nonce:
            if data[: len(MAGIC)] != MAGIC:
                raise HandshakeError("what it sent is not this protocol")
            self._their_nonce = data[len(MAGIC) :]
            self.wants_bytes = MAC_BYTES
            return self._nonce + self._secret.mac(b"acceptor", self._their_nonce, self._nonce)
        self._check(b"dialler", data)
        self.wants_bytes = 0
        return b""

    def _check(self, role: bytes, proof: bytes) -> None:
        if not hmac.compare_digest(proof, self._secret.mac(role, self._nonce, self._their_nonce)):
            raise HandshakeError("it does not hold the cluster's key")
