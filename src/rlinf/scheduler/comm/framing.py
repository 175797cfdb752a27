"""How messages lie in a stream of bytes.

    message = u32 little-endian length of the control part
              control part: msgpack of [kind, id, service, head, [size of each frame]]
              the frames, one after the other

The control part is small and typed; the frames are opaque and are never looked into here. The same stream
runs over Unix sockets and, cut into chunks, over TCP.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np

from rlinf.scheduler.errors import CodecError

Buffer: TypeAlias = bytes | bytearray | memoryview
# kind, id, service, head, frames
Message: TypeAlias = tuple[int, int, str, Any, list[Buffer]]

HELLO = 0
REQUEST = 1
NOTIFY = 2
REPLY = 3
REPLY_SETTLE = 4  # a reply whose sender wants to know whether it was taken
FAIL = 5
CANCEL = 6
SETTLED = 7
WINDOW = 8

PREFIX_BYTES = 4
MAX_CONTROL_BYTES = 64 << 20
# Up to here one joined piece is cheaper to send than many pieces, and copying it is a microsecond or two.
JOIN_BYTES = 16 << 10
# From here on a frame that has only begun to arrive is received straight into its own memory.
DIRECT_BYTES = 64 << 10

_encode = msgspec.msgpack.Encoder().encode
# What a control part is, so that msgspec checks it while it reads.
_Control: TypeAlias = tuple[int, int, str, Any, list[Annotated[int, msgspec.Meta(ge=0)]]]
_decode = msgspec.msgpack.Decoder(_Control).decode
_read_length = struct.Struct("<I").unpack_from


class ProtocolError(Exception):
    """The bytes of a stream are not messages."""


def pack(kind: int, ident: int, service: str, head: Any, frames: Sequence[Buffer] = ()) -> list[Buffer]:
    """The pieces of one message, in the order in which they go on the wire.

    A small message comes as a single `bytes`, which shares nothing with `frames`; of a larger one the
    frames themselves follow, not copied.

    Raises:
        TypeError: `head` holds something that msgpack cannot carry.
        CodecError: `head` is larger than a receiver accepts; what is large belongs into frames.
    """
    if not frames:
        control = _encode((kind, ident, service, head, ()))
        if len(control) > MAX_CONTROL_BYTES:
            raise _too_large(control, service)
        return [len(control).to_bytes(PREFIX_BYTES, "little") + control]
    flat = [frame if type(frame) is bytes else _flat(frame) for frame in frames]
    sizes = [len(frame) for frame in flat]
    control = _encode((kind, ident, service, head, sizes))
    if len(control) > MAX_CONTROL_BYTES:
        raise _too_large(control, service)
    prefix = len(control).to_bytes(PREFIX_BYTES, "little")
    if sum(sizes) <= JOIN_BYTES:
        return [b"".join((prefix, control, *flat))]
    return [prefix + control, *(frame for frame in flat if len(frame))]


def _too_large(control: bytes, service: str) -> CodecError:
    limit = f"{MAX_CONTROL_BYTES >> 20} MiB"
    what = f"a message to '{service}'" if service else "an answer"
    return CodecError(
        f"the head of {what} has {len(control)} bytes; it may have {limit}, frames may be larger"
    )


def _flat(frame: Buffer) -> Buffer:
    view = memoryview(frame)
    # A view with a zero in its shape cannot be cast.
    return view.cast("B") if view.nbytes else b""


def total_bytes(frames: Sequence[Buffer]) -> int:
    """How many bytes `frames` hold."""
    return sum(len(frame) if type(frame) is bytes else memoryview(frame).nbytes for frame in frames)


def detached(piece: Buffer) -> bytes:
    """`piece`, or a copy of it if its owner could still change it."""
    return piece if type(piece) is bytes else bytes(piece)


def allocate(size: int) -> memoryview:
    """Writable memory of `size` bytes, not zeroed: it is about to be overwritten."""
    return np.empty(size, np.uint8).data


class StreamReader:
    """Turns a stream of bytes, cut anywhere, back into messages.

    Every frame gets memory of its own, aligned and writable, that nobody else refers to.
    """

    __slots__ = ("_control", "_filled", "_frames", "_rest", "_target")

    def __init__(self) -> None:
        self._rest: bytes = b""
        self._control: _Control | None = None
        self._frames: list[Buffer] = []
        self._target: memoryview | None = None
        self._filled = 0

    def target(self) -> memoryview | None:
        """Where the next bytes of the stream may be received directly, if a large frame is arriving."""
        if self._target is None or len(self._target) - self._filled < DIRECT_BYTES:
            return None
        return self._target[self._filled :]

    def advance(self, count: int, out: list[Message]) -> None:
        """Say that `count` bytes were received into `target()`; whole messages are appended to `out`."""
        self._filled += count
        if self._target is not None and self._filled == len(self._target):
            self._frames.append(self._target)
            self._target = None
            self.feed(memoryview(b""), out)

    def feed(self, data: memoryview, out: list[Message]) -> None:
        """Take the next bytes of the stream; whole messages are appended to `out`.

        Args:
            data: the bytes; they are copied, so the memory may be used again.
            out: where messages go.

        Raises:
            ProtocolError: this is no stream of messages.
        """
        if self._rest:
            data = memoryview(self._rest + data)
            self._rest = b""
        position, available = 0, len(data)
        while True:
            if self._control is None:
                begin = position + PREFIX_BYTES
                if begin > available:
                    break
                (length,) = _read_length(data, position)
                end = begin + length
                if length > MAX_CONTROL_BYTES:
                    message = f"a control part of {length} bytes"
                    raise ProtocolError(message)
                if end > available:
                    break
                self._control = _parse_control(data[begin:end])
                position = end
            kind, ident, service, head, sizes = self._control
            if sizes:
                position = self._take_frames(data, position, sizes)
                if len(self._frames) < len(sizes):
                    break
            out.append((kind, ident, service, head, self._frames))
            self._control = None
            self._frames = []
        if position < available:
            self._rest = bytes(data[position:])

    def _take_frames(self, data: memoryview, position: int, sizes: list[int]) -> int:
        available = len(data)
        while len(self._frames) < len(sizes):
            size = sizes[len(self._frames)]
            end = position + size - self._filled if self._target is not None else position + size
            if self._target is None:
                if end <= available:
                    self._frames.append(
                        bytearray(data[position:end]) if size < DIRECT_BYTES else _copy(data[position:end])
                    )
                    position = end
                    continue
                self._target, self._filled = allocate(size), 0
            count = min(end, available) - position
            self._target[self._filled : self._filled + count] = data[position : position + count]
            self._filled += count
            position += count
            if self._filled < size:
                break
            self._frames.append(self._target)
            self._target, self._filled = None, 0
        return position


def _copy(data: memoryview) -> memoryview:
    memory = allocate(len(data))
    memory[:] = data
    return memory


def _parse_control(data: memoryview) -> _Control:
    try:
        control: _Control = _decode(data)
    except msgspec.ValidationError as error:
        message = f"a control part of another shape: {error}"
        raise ProtocolError(message) from error
    except msgspec.DecodeError as error:
        message = f"a control part that is not msgpack: {error}"
        raise ProtocolError(message) from error
    return control
