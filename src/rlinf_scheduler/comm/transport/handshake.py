"""How two processes prove to each other who they are, before a message moves. Does no I/O.

    dialler  -> acceptor   header, nonce D (32 bytes)                header: magic (4), version (u16), encryption (u8)
    acceptor -> dialler    header, nonce A (32 bytes), MAC(key, "acceptor", D, A, headers)
    dialler  -> acceptor   MAC(key, "dialler", A, D, headers)
                           from here on in TLS, where there is encryption
    dialler  -> acceptor   who it is, signed; the session's hello
    acceptor -> dialler    who it is, signed; the session's welcome

Up to the MACs every part has a fixed size, and nothing is parsed. Each side answers the other's fresh nonce, so that
captured bytes are worth nothing, and in its own role, so that reflected ones are not either. The MAC is HMAC-SHA256.

The steps are generators: they yield bytes to be written, a number of bytes to be read (which are sent back in), or
`SECURE`, from where on the stream is TLS.
"""

from __future__ import annotations

import enum
import hmac
import secrets
import struct
from collections.abc import Callable, Generator
from typing import TypeAlias, TypeVar

import msgspec

from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.secret import ClusterSecret
from rlinf_scheduler.comm.transport.identity import Identity, Proof
from rlinf_scheduler.comm.transport.peer_session import Hello, Verdict, Welcome

PROTOCOL_VERSION = 4
MAGIC = b"RLNF"
NONCE_BYTES = 32
MAC_BYTES = 32
MAX_INTRODUCTION_BYTES = 64 << 10
_HEADER = struct.Struct("<4sHB")
HEADER_BYTES = _HEADER.size


class Secure(enum.Enum):
    """The one step that is neither reading nor writing."""

    SECURE = "secure"


SECURE = Secure.SECURE
ResultT = TypeVar("ResultT")
Steps: TypeAlias = Generator[bytes | int | Secure, bytes, ResultT]


class HandshakeError(Exception):
    """The connection is of no use; the text says how it showed.

    Args:
        reason: what is wrong.
        final: whether trying again is of no use: it is not the process that was meant, or cannot be talked to.
    """

    def __init__(self, reason: str, *, final: bool = False) -> None:
        super().__init__(reason)
        self.final = final


class Introduction(msgspec.Struct, array_like=True, frozen=True):
    """Who a process is.

    Attributes:
        endpoint: how it is reached.
        name: how it is called in messages to people.
        to: whom it takes the other side for: the id of a process.
        proof: that the process id is its own.
        session: the dialler's hello, or the acceptor's welcome.
    """

    endpoint: Endpoint
    name: str
    to: str
    proof: Proof
    session: Hello | None = None
    welcome: Welcome | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Introduction).decode


def dial(
    me: Identity, expected_id: str, hello: Callable[[], Hello], *, encrypts: bool
) -> Steps[Introduction]:
    """The dialler's side; gives who the acceptor is, and its welcome.

    Args:
        me: who we are.
        expected_id: whom we want to reach.
        hello: gives the session's hello, when all but that is done.
        encrypts: whether the connection turns to TLS.

    Raises:
        HandshakeError: the connection is to be dropped.
    """
    header, nonce = _HEADER.pack(MAGIC, PROTOCOL_VERSION, encrypts), secrets.token_bytes(NONCE_BYTES)
    yield header + nonce
    theirs = yield HEADER_BYTES
    _check_header(theirs, encrypts)
    rest = yield NONCE_BYTES + MAC_BYTES
    their_nonce, headers = rest[:NONCE_BYTES], header + theirs
    _check_mac(me.secret, b"acceptor", (nonce, their_nonce, headers), rest[NONCE_BYTES:])
    yield me.secret.mac(b"dialler", their_nonce, nonce, headers)
    if encrypts:
        yield SECURE
    transcript = nonce + their_nonce
    proof = me.prove(b"dialler", transcript, expected_id)
    yield _framed(Introduction(me.endpoint, me.name, expected_id, proof, session=hello()))
    answer = yield from _read_introduction()
    _check_proof(answer, b"acceptor", transcript)
    if answer.endpoint.process_id != expected_id:
        raise HandshakeError(f"at its address is another process, '{answer.name}'", final=True)
    if answer.welcome is None or answer.to != me.process_id:
        raise HandshakeError("its answer holds no welcome")
    return answer


def accept(
    me: Identity,
    judge: Callable[[Introduction, Hello], Welcome],
    proved: Callable[[], None],
    *,
    encrypts: bool,
) -> Steps[Introduction | None]:
    """The acceptor's side; gives who the dialler is, None if it was not taken.

    Args:
        me: who we are.
        judge: what to make of who came.
        proved: called once the dialler has shown that it holds the cluster's key.
        encrypts: whether the connection turns to TLS.

    Raises:
        HandshakeError: the connection is to be dropped.
    """
    theirs = yield HEADER_BYTES
    header = _HEADER.pack(MAGIC, PROTOCOL_VERSION, encrypts)
    if theirs[: len(MAGIC)] != MAGIC:
        raise HandshakeError("what it sent is not this protocol")
    if theirs != header:
        # It can say to its user what is wrong; that is no secret.
        yield header
        _check_header(theirs, encrypts)
    their_nonce = yield NONCE_BYTES
    nonce, headers = secrets.token_bytes(NONCE_BYTES), theirs + header
    yield header + nonce + me.secret.mac(b"acceptor", their_nonce, nonce, headers)
    proof = yield MAC_BYTES
    _check_mac(me.secret, b"dialler", (nonce, their_nonce, headers), proof)
    proved()
    if encrypts:
        yield SECURE
    who = yield from _read_introduction()
    transcript = their_nonce + nonce
    _check_proof(who, b"dialler", transcript)
    if who.session is None:
        raise HandshakeError("it did not say hello")
    # Whoever wanted another process learns from our introduction that it is not here.
    welcome = judge(who, who.session) if who.to == me.process_id else Welcome(Verdict.UNKNOWN)
    dialler_id = who.endpoint.process_id
    answer = me.prove(b"acceptor", transcript, dialler_id)
    yield _framed(Introduction(me.endpoint, me.name, dialler_id, answer, welcome=welcome))
    return who if welcome.verdict is Verdict.TAKEN else None


def _check_header(theirs: bytes, here: bool) -> None:
    magic, version, encrypts = _HEADER.unpack(theirs)
    if magic != MAGIC:
        raise HandshakeError("what it sent is not this protocol", final=True)
    if version != PROTOCOL_VERSION:
        text = f"it speaks version {version} of the protocol, and this process version {PROTOCOL_VERSION}"
        raise HandshakeError(text, final=True)
    if bool(encrypts) != here:
        which = ("on", "off") if encrypts else ("off", "on")
        raise HandshakeError(f"it has encryption {which[0]}, and this process has it {which[1]}", final=True)


def _check_mac(secret: ClusterSecret, role: bytes, parts: tuple[bytes, bytes, bytes], proof: bytes) -> None:
    if not hmac.compare_digest(proof, secret.mac(role, *parts)):
        raise HandshakeError("it does not hold the cluster's key", final=True)


def _check_proof(who: Introduction, role: bytes, transcript: bytes) -> None:
    if not who.proof.holds(role, transcript, who.endpoint.process_id, who.to):
        raise HandshakeError(
            f"it is not the process {who.endpoint.process_id} that it says it is", final=True
        )


def _framed(introduction: Introduction) -> bytes:
    data = _encode(introduction)
    return len(data).to_bytes(4, "little") + data


def _read_introduction() -> Steps[Introduction]:
    length = int.from_bytes((yield 4), "little")
    if length > MAX_INTRODUCTION_BYTES:
        raise HandshakeError(f"it introduced itself with {length} bytes")
    data = yield length
    try:
        return _decode(data)
    except msgspec.DecodeError as error:
        raise HandshakeError(f"it introduced itself in another shape: {error}") from error
