"""Messages out of a stream of bytes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from rlinf_scheduler.comm.framing import (
    DIRECT_BYTES,
    MAX_CONTROL_BYTES,
    PREFIX_BYTES,
    Buffer,
    Envelope,
    Message,
    ProtocolError,
    allocate,
    own,
    parse_control,
)


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
        self._envelope = parse_control(control)
        self._go_on(out)

    def _take_frames(self, envelope: Envelope, data: memoryview, position: int, out: list[Message]) -> int:
        """Take the next frames, as far as they are here; of one that has only begun, say where it goes."""
        frames, available = self._frames, len(data)
        for size in islice(envelope.sizes, len(frames), None):
            end = position + size
            if end > available:
                self._target, self._filled = self._allocate(size), 0
                return position
            frames.append(own(data[position:end]))
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
