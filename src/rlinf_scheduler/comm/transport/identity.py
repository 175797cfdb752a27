"""Who a process is, and how it proves it: its id is the hash of a public key whose private half never leaves it."""

from __future__ import annotations

import hashlib

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.secret import ClusterSecret


class Proof(msgspec.Struct, array_like=True, frozen=True):
    """That a process is who it says it is.

    Attributes:
        public_key: its Ed25519 key, 32 bytes; its process id is the hash of it.
        signature: of the connection's nonces, its role, and both process ids; 64 bytes.
    """

    public_key: bytes
    signature: bytes

    def holds(self, role: bytes, transcript: bytes, process_id: str, other_id: str) -> bool:
        """Whether it proves, on this connection and to `other_id`, that the prover is `process_id`."""
        if process_id_of(self.public_key) != process_id:
            return False
        try:
            key = Ed25519PublicKey.from_public_bytes(self.public_key)
            key.verify(self.signature, _statement(role, transcript, process_id, other_id))
        except (InvalidSignature, ValueError):
            return False
        return True


class Identity:
    """This process, as its connections present it.

    Args:
        secret: the cluster's key.
        name: what it is called in messages to people.

    Attributes:
        process_id: the hash of its public key.
        endpoint: how others reach it; set once that is known.
    """

    __slots__ = ("_key", "_public", "endpoint", "name", "process_id", "secret")

    def __init__(self, secret: ClusterSecret, name: str) -> None:
        self.secret = secret
        self.name = name
        self._key = Ed25519PrivateKey.generate()
        self._public = self._key.public_key().public_bytes_raw()
        self.process_id = process_id_of(self._public)
        self.endpoint = Endpoint(self.process_id, "", "", "")

    def prove(self, role: bytes, transcript: bytes, other_id: str) -> Proof:
        """The proof of who this is, for one connection to one process."""
        statement = _statement(role, transcript, self.process_id, other_id)
        return Proof(self._public, self._key.sign(statement))


def process_id_of(public_key: bytes) -> str:
    """The id of the process that holds the private half of a key."""
    return hashlib.sha256(public_key).hexdigest()[:32]


def _statement(role: bytes, transcript: bytes, process_id: str, other_id: str) -> bytes:
    return b"\0".join((b"rlinf process", role, process_id.encode(), other_id.encode(), transcript))
