"""How messages lie in a stream of bytes.

    message = u32 little-endian length of the control part
              control part: an `Envelope` as msgpack
              the frames, one after the other

The control part is small and typed; the frames are opaque and are never looked into here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec
import numpy as np

from rlinf_scheduler.errors import CodecError

Buffer: TypeAlias = bytes | bytearray | memoryview
# Memory as numpy takes it.
Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]

REQUEST = 1
NOTIFY = 2
REPLY = 3
REPLY_TO_CONFIRM = 4  # a reply whose sender wants to know whether it was taken
FAIL = 5
CANCEL = 6
CONFIRMED = 7
GOODBYE = 8  # the sender leaves; nothing comes after it
ACK = 9  # `ident` messages have been received; carries no number itself

PREFIX_BYTES = 4
MAX_CONTROL_BYTES = 64 << 20
# A control part has at most so much for each frame, and so much for what stands around a head.
SIZE_BYTES = 9
ENVELOPE_BYTES = 4 << 10
# Up to here one joined piece is cheaper to send than many pieces, and copying it is a microsecond or two.
JOIN_BYTES = 16 << 10
# So is one of many frames of up to so many bytes on average, as items that travel together are. Measured: of 2 KB a
# joined piece takes three quarters of the time, of 4 KB as long, and twice as long where they are some ten MB together.
SMALL_FRAME_BYTES = 2 << 10
# From here on a part that has only begun to arrive is received straight into its own memory.
DIRECT_BYTES = 64 << 10


class Envelope(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The control part of a message.

    Attributes:
        kind: one of the constants above.
        ident: of the request that it belongs to; 0 for none.
        service: who is to get it.
        head: what it says, still as msgpack: whoever knows its type decodes it.
        sizes: of each frame, in bytes.
    """

    kind: int
    ident: int
    service: str
    head: msgspec.Raw
    sizes: list[Annotated[int, msgspec.Meta(ge=0)]]


class _Outgoing(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The same, as it is written: the head is encoded with the rest."""

    kind: int
    ident: int
    service: str
    head: Any
    sizes: list[int]


class Message(NamedTuple):
    """A message as it arrived: the frames are writable, aligned, and nobody else's."""

    envelope: Envelope
    frames: list[Buffer]


decode_head = msgspec.msgpack.Decoder().decode
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Envelope).decode


class ProtocolError(Exception):
    """The bytes of a stream are not messages."""


def pack(
    kind: int, ident: int, service: str, head: Any, frames: Sequence[Buffer] = (), *, snapshot: bool = True
) -> list[Buffer]:
    """The pieces of one message, in the order in which they go on the wire.

    A small message, or one of small frames, comes as a single `bytes`, which shares nothing with `frames`; of others
    the frames themselves follow: copied if `snapshot`, for their owner may change them before they have left.

    Raises:
        TypeError: `head` holds something that msgpack cannot carry.
        CodecError: `head` is larger than a receiver accepts; what is large belongs into frames.
    """
    rows = [frame if type(frame) is bytes else flat(frame) for frame in frames]
    sizes = [len(frame) for frame in rows]
    control = _encode(_Outgoing(kind, ident, service, head, sizes))
    if len(control) > MAX_CONTROL_BYTES:
        raise _too_large(len(control), service)
    prefix = len(control).to_bytes(PREFIX_BYTES, "little")
    if not rows or sum(sizes) <= max(JOIN_BYTES, SMALL_FRAME_BYTES * len(sizes)):
        return [b"".join((prefix, control, *rows))]
    return [prefix + control, *(detached(frame) if snapshot else frame for frame in rows if len(frame))]


def encode_head(service: str, head: Any, num_frames: int) -> bytes:
    """`head` as it will travel with so many frames, in a message that is made later.

    Raises:
        TypeError, CodecError: as of `pack`.
    """
    encoded = _encode(head)
    size_bytes = len(encoded) + SIZE_BYTES * num_frames
    if size_bytes > MAX_CONTROL_BYTES - ENVELOPE_BYTES:
        raise _too_large(size_bytes, service)
    return encoded


def _too_large(size_bytes: int, service: str) -> CodecError:
    limit = f"{MAX_CONTROL_BYTES >> 20} MiB"
    what = f"a message to '{service}'" if service else "an answer"
    return CodecError(f"the head of {what} has {size_bytes} bytes; it may have {limit}, frames may be larger")


def flat(frame: Buffer) -> Buffer:
    """`frame` as a row of bytes."""
    view = memoryview(frame)
    # A view with a zero in its shape cannot be cast.
    return view.cast("B") if view.nbytes else b""


def object_bytes(head_bytes: int, buffer_bytes: int) -> int:
    """How large an object is that has such a head, and so many bytes of arrays, tensors and the like beside it.

    That is their `nbytes`. The head counts where it is more than what it describes.
    """
    return buffer_bytes if head_bytes <= buffer_bytes else head_bytes + buffer_bytes


def total_bytes(frames: Sequence[Buffer]) -> int:
    """How many bytes `frames` hold."""
    size = 0
    for frame in frames:
        size += frame.nbytes if type(frame) is memoryview else len(frame)
    return size


def detached(piece: Buffer) -> bytes:
    """`piece`, or a copy of it if its owner could still change it."""
    return piece if type(piece) is bytes else bytes(piece)


def allocate(size: int) -> memoryview:
    """Writable memory of `size` bytes, not zeroed: it is about to be overwritten."""
    return np.empty(size, np.uint8).data


def own(data: memoryview) -> Buffer:
    """A copy of a frame, writable."""
    if len(data) < DIRECT_BYTES:
        return bytearray(data)
    memory = allocate(len(data))
    memory[:] = data
    return memory


def unpack(pieces: list[Buffer]) -> Message:
    """The message that `pack` made these pieces of, in memory of its own: as it arrives in another process."""
    first = memoryview(pieces[0])
    begin = PREFIX_BYTES + int.from_bytes(first[:PREFIX_BYTES], "little")
    envelope = parse_control(bytes(first[PREFIX_BYTES:begin]))
    frames: list[Buffer] = []
    others = iter(pieces[1:])
    for size in envelope.sizes:
        if len(pieces) > 1 and size:
            frames.append(own(memoryview(next(others))))
        else:
            frames.append(own(first[begin : begin + size]))
            begin += size
    return Message(envelope, frames)


def parse_control(data: bytes) -> Envelope:
    """The control part that these bytes are.

    Raises:
        ProtocolError: they are none.
    """
    try:
        return _decode(data)
    except msgspec.ValidationError as error:
        message = f"a control part of another shape: {error}"
        raise ProtocolError(message) from error
    except msgspec.DecodeError as error:
        message = f"a control part that is not msgpack: {error}"
        raise ProtocolError(message) from error
