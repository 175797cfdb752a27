"""Who a process is and how it proves it; and TLS 1.3 between the processes of one cluster.

A process's id is the hash of a public key whose private half never leaves it. The key pair of TLS follows from the
cluster's key, and is nobody else's.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import os
import ssl
from collections.abc import Iterator

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


# Fixed, so that all processes make the same certificate; clocks of machines may differ by years.
_FROM = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
_UNTIL = datetime.datetime(2999, 1, 1, tzinfo=datetime.UTC)


class ClusterTls:
    """What both ends of an encrypted connection need; each shows the cluster's certificate and demands it.

    Args:
        secret: the cluster's key.
    """

    def __init__(self, secret: ClusterSecret) -> None:
        # Most jobs are of one machine, and these take longer to load than all else of this package.
        from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415
            Encoding,
            NoEncryption,
            PrivateFormat,
        )

        key = Ed25519PrivateKey.from_private_bytes(secret.derive(b"tls"))
        certificate = _certificate(key)
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        with _as_file(certificate + private) as path:
            self.client = _context(ssl.PROTOCOL_TLS_CLIENT, path, certificate.decode())
            self.server = _context(ssl.PROTOCOL_TLS_SERVER, path, certificate.decode())
        # No session is ever taken up again.
        self.server.num_tickets = 0


def _context(protocol: int, path: str, certificate: str) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # which process it is, it proves itself
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(path)
    context.load_verify_locations(cadata=certificate)
    return context


def _certificate(key: Ed25519PrivateKey) -> bytes:
    from cryptography import x509  # noqa: PLC0415 - as above
    from cryptography.hazmat.primitives.serialization import Encoding  # noqa: PLC0415
    from cryptography.x509.oid import NameOID  # noqa: PLC0415

    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "rlinf cluster")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, _FROM, _UNTIL)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    return builder.sign(key, None).public_bytes(Encoding.PEM)


@contextlib.contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """A path under which `data` can be read, which is not on any disk."""
    descriptor = os.memfd_create("rlinf", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, data)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
