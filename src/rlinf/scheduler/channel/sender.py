"""What goes from a process to a channel's server: it gathers, and is sent together."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from rlinf.scheduler.channel import wire
from rlinf.scheduler.channel.line import ServerLine
from rlinf.scheduler.channel.operation import Operation
from rlinf.scheduler.channel.spec import ChannelRef
from rlinf.scheduler.comm.framing import Buffer

# In one message.
MAX_OPERATIONS = 1024
MAX_BYTES = 1 << 20


class OperationSender:
    """Sends operations and confirmations of one process on one channel. On the I/O thread only.

    Args:
        line: leads to the channel's server.
        ref: the channel.

    Attributes:
        waiting: operations with their frames, in order.
        confirmed: tickets whose items were taken.
        arrived: tickets whose items are here and were not taken.
        num_sent: how many messages it has sent, or is about to send.
    """

    def __init__(self, line: ServerLine, ref: ChannelRef) -> None:
        self.waiting: deque[tuple[wire.OperationMessage, Sequence[Buffer]]] = deque()
        self.confirmed: list[int] = []
        self.arrived: list[int] = []
        self.num_sent = 0
        self._line = line
        self._server = ref.endpoint
        self._inline_bytes_limit = ref.spec.inline_bytes

    def inline_bytes(self, operation: Operation) -> int:
        """How many bytes of its item the opening message of a put carries."""
        parcel = operation.parcel
        if parcel is None or parcel.goes_as_descriptor(self._server) or self._is_announced(operation):
            return 0
        return parcel.size_bytes

    def opening(self, operation: Operation) -> tuple[wire.OperationMessage, Sequence[Buffer]]:
        """The message that begins an operation, and its frames."""
        parcel = operation.parcel
        if parcel is None:
            return operation.opening(), ()
        if self._is_announced(operation):
            return operation.opening(size_bytes=parcel.size_bytes), ()
        frames = parcel.frames_for(self._server)
        return operation.opening(len(frames)), frames

    def fill(self, operation: Operation) -> None:
        """Send the bytes of a put that was announced."""
        if operation.parcel is not None:
            frames = operation.parcel.bytes_frames()
            self.waiting.append((wire.Fill(operation.ticket, len(frames)), frames))

    def send(self) -> None:
        """Send everything that has gathered."""
        while self.waiting or self.confirmed or self.arrived:
            # Before anything leaves `waiting`: see `ClientShell.sent_before`.
            self.num_sent += 1
            confirmed, self.confirmed = self.confirmed, []
            arrived, self.arrived = self.arrived, []
            operations: list[wire.OperationMessage] = []
            frames: list[Buffer] = []
            size = 0
            while self.waiting and len(operations) < MAX_OPERATIONS and size < MAX_BYTES:
                operation, its_frames = self.waiting.popleft()
                operations.append(operation)
                for frame in its_frames:
                    frames.append(frame)
                    size += len(frame)
            message = wire.Operations(confirmed, arrived, operations)
            # Frames were copied when the put began.
            self._line.tell(message, frames)

    def clear(self) -> None:
        """Forget what has gathered: there is nobody to send it to."""
        self.waiting.clear()
        self.confirmed.clear()
        self.arrived.clear()

    def _is_announced(self, operation: Operation) -> bool:
        parcel = operation.parcel
        return (
            parcel is not None
            and self._inline_bytes_limit is not None
            and parcel.size_bytes > self._inline_bytes_limit
            and not parcel.goes_as_descriptor(self._server)
        )
