"""TLS 1.3 between processes of one cluster: a key pair that follows from the cluster's key, and nobody else's."""

from __future__ import annotations

import contextlib
import datetime
import os
import ssl
from collections.abc import Iterator

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from rlinf_scheduler.comm.secret import ClusterSecret

# Fixed, so that all processes make the same certificate; clocks of machines may differ by years.
_FROM = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
_UNTIL = datetime.datetime(2999, 1, 1, tzinfo=datetime.UTC)


class ClusterTls:
    """What both ends of an encrypted connection need; each shows the cluster's certificate and demands it.

    Args:
        secret: the cluster's key.
    """

    def __init__(self, secret: ClusterSecret) -> None:
        key = Ed25519PrivateKey.from_private_bytes(secret.derive(b"tls"))
        certificate = _certificate(key).public_bytes(Encoding.PEM)
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


def _certificate(key: Ed25519PrivateKey) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "rlinf cluster")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, _FROM, _UNTIL)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    return builder.sign(key, None)


@contextlib.contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """A path under which `data` can be read, which is not on any disk."""
    descriptor = os.memfd_create("rlinf", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, data)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
