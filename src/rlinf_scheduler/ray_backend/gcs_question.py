"""One question to a Ray, without Ray: does it answer at this address, and does it accept this token?

Ray's own client asks for 20 s before it gives up, and loses on the way why. The question is one gRPC call over
HTTP/2 (RFC 9113, RFC 7541), to the service that every Ray client asks first.
"""

from __future__ import annotations

import enum
import socket
import time

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _GOAWAY = 0, 1, 3, 4, 7
_END_STREAM, _END_HEADERS = 1, 4
_FRAME_HEAD = 9
_NO_MESSAGE = bytes(5)  # of a gRPC message: not compressed, and no bytes of it
_MAX_ANSWER_BYTES = 1 << 16
_STATUS = b"grpc-status"
_UNAUTHENTICATED = b"16"
_QUESTION = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/ray.rpc.NodeInfoGcsService/GetClusterId"),
    (b":authority", b"ray"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
)


class GcsAnswer(enum.Enum):
    """What came back."""

    ACCEPTED = "accepted"
    REFUSED = "refused"  # for want of a token, or of the right one
    NOT_RAY = "not Ray"  # somebody is there, and does not speak as Ray does, or not in time
    NOBODY = "nobody"  # nobody listens there


# The first bytes of every client.
GREETING = _PREFACE + bytes((0, 0, 0, _SETTINGS, 0, 0, 0, 0, 0))


def ask_gcs(host: str, port: int, token: str | None, timeout_s: float) -> GcsAnswer:
    """Ask the Ray at an address for its name, with a token or without one."""
    deadline = time.monotonic() + timeout_s
    try:
        connection = socket.create_connection((host, port), timeout=timeout_s)
    except OSError:
        return GcsAnswer.NOBODY
    with connection:
        try:
            connection.sendall(_question(token))
            return _read_answer(connection, deadline)
        except OSError:
            return GcsAnswer.NOT_RAY


def _question(token: str | None) -> bytes:
    fields = _QUESTION if token is None else (*_QUESTION, (b"authorization", f"Bearer {token}".encode()))
    headers = b"".join(_field(name, value) for name, value in fields)
    return GREETING + _frame(_HEADERS, _END_HEADERS, 1, headers) + _frame(_DATA, _END_STREAM, 1, _NO_MESSAGE)


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + body


def _field(name: bytes, value: bytes) -> bytes:
    """A header field as it is written out, not indexed (RFC 7541, 6.2.2)."""
    return b"\x00" + _length(len(name)) + name + _length(len(value)) + value


def _length(number: int) -> bytes:
    if number < 127:
        return bytes((number,))
    number, encoded = number - 127, bytearray(b"\x7f")
    while number >= 128:
        encoded.append(number % 128 + 128)
        number //= 128
    return bytes((*encoded, number))


def _read_answer(connection: socket.socket, deadline: float) -> GcsAnswer:
    received, taken = bytearray(), 0
    while taken < _MAX_ANSWER_BYTES:
        while len(received) < _FRAME_HEAD or len(received) < _FRAME_HEAD + int.from_bytes(
            received[:3], "big"
        ):
            connection.settimeout(max(0.001, deadline - time.monotonic()))
            more = connection.recv(4096)
            if not more or len(received) > _MAX_ANSWER_BYTES:
                return GcsAnswer.NOT_RAY
            received += more
        end = _FRAME_HEAD + int.from_bytes(received[:3], "big")
        kind, body = received[3], bytes(received[_FRAME_HEAD:end])
        del received[:end]
        taken += end
        # Ray writes names and values of its fields as they are.
        if kind == _HEADERS and _STATUS in body:
            refused = body.partition(_STATUS)[2][1:3] == _UNAUTHENTICATED
            return GcsAnswer.REFUSED if refused else GcsAnswer.ACCEPTED
        if kind in (_RESET, _GOAWAY):
            break
    return GcsAnswer.NOT_RAY
