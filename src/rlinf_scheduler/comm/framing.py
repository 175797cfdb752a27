"""How messages lie in a stream of bytes.

    message = u32 little-endian length of the control part
              control part: an `Envelope` as msgpack
              the frames, one after the other

The control part is small and typed; the frames are opaque and are never looked into here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
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


class StreamReader:
    """Turns a stream of bytes, cut anywhere, back into messages. No byte is copied more than once.

    Args:
        allocate: gives writable memory of so many bytes.
    """

    __slots__ = ("_allocate", "_envelope", "_filled", "_frames", "_prefix", "_target")

    def __init__(self, allocate: Callable[[int], memoryview] = allocate) -> None:
        self._allocate = allocate
        self._prefix = b""
        self._envelope: Envelope | None = None
        self._frames: list[Buffer] = []
        self._target: memoryview | None = None  # of the part that has only begun to arrive
        self._filled = 0

    def target(self) -> memoryview | None:
        """Where the next bytes of the stream may be received directly, if a large part is arriving."""
        if self._target is None or len(self._target) - self._filled < DIRECT_BYTES:
            return None
        return self._target[self._filled :]

    def advance(self, count: int, out: list[Message]) -> None:
        """Say that `count` bytes were received into `target()`; whole messages are appended to `out`.

        Raises:
            ProtocolError: this is no stream of messages.
        """
        self._filled += count
        if self._target is not None and self._filled == len(self._target):
            self._finish_target(self._target, out)

    def feed(self, data: memoryview, out: list[Message]) -> None:
        """Take the next bytes of the stream; whole messages are appended to `out`.

        Args:
            data: the bytes; they are copied, so the memory may be used again.
            out: where messages go.

        Raises:
            ProtocolError: this is no stream of messages.
        """
        position, available = 0, len(data)
        while position < available:
            if self._target is not None:
                count = min(len(self._target) - self._filled, available - position)
                self._target[self._filled : self._filled + count] = data[position : position + count]
                position += count
                self.advance(count, out)
            elif self._envelope is None:
                position = self._begin_control(data, position, out)
            else:
                position = self._take_frames(self._envelope, data, position, out)

    def _begin_control(self, data: memoryview, position: int, out: list[Message]) -> int:
        if self._prefix or len(data) - position < PREFIX_BYTES:
            taken = data[position : position + PREFIX_BYTES - len(self._prefix)]
            self._prefix += bytes(taken)
            position += len(taken)
            if len(self._prefix) < PREFIX_BYTES:
                return position
            length = int.from_bytes(self._prefix, "little")
            self._prefix = b""
        else:
            length = int.from_bytes(data[position : position + PREFIX_BYTES], "little")
            position += PREFIX_BYTES
        if length > MAX_CONTROL_BYTES:
            message = f"a control part of {length} bytes"
            raise ProtocolError(message)
        if position + length <= len(data):
            self._begin_message(bytes(data[position : position + length]), out)
            return position + length
        self._target, self._filled = allocate(length), 0
        return position

    def _begin_message(self, control: bytes, out: list[Message]) -> None:
        self._envelope = _parse_control(control)
        self._go_on(out)

    def _take_frames(self, envelope: Envelope, data: memoryview, position: int, out: list[Message]) -> int:
        """Take the next frames, as far as they are here; of one that has only begun, say where it goes."""
        frames, available = self._frames, len(data)
        for size in islice(envelope.sizes, len(frames), None):
            end = position + size
            if end > available:
                self._target, self._filled = self._allocate(size), 0
                return position
            frames.append(bytearray(data[position:end]) if size < DIRECT_BYTES else _copy(data[position:end]))
            position = end
        self._go_on(out)
        return position

    def _finish_target(self, target: memoryview, out: list[Message]) -> None:
        self._target = None
        if self._envelope is None:
            self._begin_message(bytes(target), out)
        else:
            self._frames.append(target)
            self._go_on(out)

    def _go_on(self, out: list[Message]) -> None:
        """Take empty frames, and the whole message if that was all."""
        envelope = self._envelope
        if envelope is None:
            return
        sizes, frames = envelope.sizes, self._frames
        while len(frames) < len(sizes):
            if sizes[len(frames)]:
                return
            frames.append(bytearray())
        out.append(Message(envelope, frames))
        self._envelope = None
        self._frames = []


def _copy(data: memoryview) -> memoryview:
    memory = allocate(len(data))
    memory[:] = data
    return memory


def _parse_control(data: bytes) -> Envelope:
    try:
        return _decode(data)
    except msgspec.ValidationError as error:
        message = f"a control part of another shape: {error}"
        raise ProtocolError(message) from error
    except msgspec.DecodeError as error:
        message = f"a control part that is not msgpack: {error}"
        raise ProtocolError(message) from error
