"""What goes from a process to a channel's server: it gathers, and is sent together.

And the transport that it goes on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from rlinf_scheduler.channel import control_wire, wire
from rlinf_scheduler.channel.holding import InlinePayload
from rlinf_scheduler.channel.operation import ChannelOperation
from rlinf_scheduler.channel.spec import ChannelRef
from rlinf_scheduler.comm.framing import SIZE_BYTES, Buffer
from rlinf_scheduler.comm.messenger import Messenger
from rlinf_scheduler.comm.peer import Reply, Request
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.errors import ChannelLost, CodecError

# In one message; of bytes, heads and frames together.
MAX_OPERATIONS = 1024
MAX_BYTES = 1 << 20
# What one operation says, with the sizes of its frames, is no larger.
MAX_HEAD_BYTES = 16 << 20
# Of what travels as a run: so many.
RUN_OPERATIONS = 64


_encode = msgspec.msgpack.Encoder().encode


class ServerTransport(Protocol):
    """How a client talks to its server."""

    def begin(self, on_responses: Callable[[Request], None], on_lost: Callable[[ChannelLost], None]) -> None:
        """Hear responses from now on; `on_lost` is called if the server is found to be gone for good."""

    def tell(self, message: wire.EncodedOperations, frames: Sequence[Buffer]) -> None:
        """Send operations; nobody changes the frames any more. What raises has said nothing."""

    def ask(
        self, message: control_wire.Control, timeout_s: float | None = None, reply_type: Any = Any
    ) -> Promise[Reply]:
        """Send a request; the promise of the reply, which fails as `Messenger.request`'s."""

    def end(self) -> None:
        """Hear nothing any more."""

    @property
    def condition(self) -> str:
        """Why nothing comes through it now, in a phrase; "" if nothing is known to be wrong."""


class DirectTransport:
    """Leads to the process that holds the channel, as long as that lives."""

    condition = ""

    def __init__(self, messenger: Messenger, ref: ChannelRef) -> None:
        self._messenger = messenger
        self._server = ref.endpoint
        self._operations = wire.service(ref.spec.channel_id, wire.OPERATIONS)
        self._control = wire.service(ref.spec.channel_id, wire.CONTROL)
        self._responses = wire.service(ref.spec.channel_id, wire.RESPONSES)

    def begin(self, on_responses: Callable[[Request], None], _on_lost: Callable[[ChannelLost], None]) -> None:
        """Hear responses from now on; the owner hears of lost peers."""
        self._messenger.unserve(self._responses)
        self._messenger.serve(self._responses, on_responses, wire.Responses)

    def tell(self, message: wire.EncodedOperations, frames: Sequence[Buffer]) -> None:
        """Send operations; nobody changes the frames any more. What raises has said nothing."""
        self._messenger.notify(self._server, self._operations, message, frames, snapshot=False)

    def ask(
        self, message: control_wire.Control, timeout_s: float | None = None, reply_type: Any = Any
    ) -> Promise[Reply]:
        """Send a request; the promise of the reply, which fails as `Messenger.request`'s."""
        return self._messenger.request(
            self._server, self._control, message, timeout_s=timeout_s, reply_type=reply_type
        )

    def end(self) -> None:
        """Hear nothing any more."""
        self._messenger.unserve(self._responses)


class OperationSender:
    """Sends operations and confirmations of one process on one channel. On the I/O thread only.

    Args:
        transport: leads to the channel's server.
        on_unsent: called with operations that cannot be sent, and why.

    Attributes:
        waiting: operations with their frames, in order.
        confirmed: tickets whose items were taken.
        arrived: tickets whose items are here and were not taken.
        num_sent: how many messages it has sent, or is about to send.
    """

    def __init__(
        self,
        transport: ServerTransport,
        ref: ChannelRef,
        on_unsent: Callable[[list[wire.OperationMessage], Exception], None],
    ) -> None:
        self.waiting: deque[tuple[wire.OperationMessage, list[Buffer]]] = deque()
        self.confirmed: list[int] = []
        self.arrived: list[int] = []
        self.num_sent = 0
        self._transport = transport
        self._on_unsent = on_unsent
        self._server = ref.endpoint
        self._inline_bytes_limit = ref.spec.inline_bytes

    def inline_bytes(self, operation: ChannelOperation) -> int:
        """How many bytes of its item the opening message of a put carries."""
        payload = operation.payload
        if payload is None:
            return 0
        if type(payload) is InlinePayload:  # as most are
            return payload.size_bytes
        if payload.goes_as_descriptor(self._server) or self._is_announced(operation):
            return 0
        return payload.size_bytes

    def begin(self, operation: ChannelOperation) -> None:
        """Send the message that begins an operation, together with those before it where they are alike."""
        payload = operation.payload
        if payload is None:
            if operation.is_plain:
                self._join_gets(operation)
            else:
                self.waiting.append((operation.opening(), []))
        elif type(payload) is InlinePayload and operation.is_plain:
            self._join_puts(operation, payload.frames)
        elif self._is_announced(operation):
            self.waiting.append((operation.opening(size_bytes=payload.size_bytes), []))
        else:
            frames = payload.frames_for(self._server)
            self.waiting.append((operation.opening(len(frames)), frames))

    def _join_gets(self, operation: ChannelOperation) -> None:
        last = self.waiting[-1][0] if self.waiting else None
        if type(last) is wire.Gets and _is_joined(last, operation):
            last.tickets.append(operation.ticket)
        else:
            self.waiting.append((wire.Gets(operation.queue_name, [operation.ticket]), []))

    def _join_puts(self, operation: ChannelOperation, frames: list[Buffer]) -> None:
        num_frames, weight = len(frames), int(operation.weight)
        if self.waiting:
            last, its_frames = self.waiting[-1]
            if type(last) is wire.Puts and last.num_frames == num_frames and _is_joined(last, operation):
                last.tickets.append(operation.ticket)
                last.weights.append(weight)
                its_frames += frames
                return
        puts = wire.Puts(operation.queue_name, num_frames, [operation.ticket], [weight])
        self.waiting.append((puts, [*frames]))

    def fill(self, operation: ChannelOperation) -> None:
        """Send the bytes of a put that was announced."""
        if operation.payload is not None:
            frames = operation.payload.bytes_frames()
            self.waiting.append((wire.Fill(operation.ticket, len(frames)), frames))

    def send(self) -> None:
        """Send everything that has gathered."""
        while self.waiting or self.confirmed or self.arrived:
            # Before anything leaves `waiting`: see `ChannelClient.sent_before`.
            self.num_sent += 1
            confirmed, self.confirmed = self.confirmed, []
            arrived, self.arrived = self.arrived, []
            sent: list[wire.OperationMessage] = []
            heads: list[msgspec.Raw] = []
            frames: list[Buffer] = []
            count = size = 0
            while self.waiting and count < MAX_OPERATIONS and size < MAX_BYTES:
                operation, its_frames = self.waiting.popleft()
                try:
                    head = _head_of(operation, len(its_frames))
                except Exception as error:  # noqa: BLE001 - it belongs to the waiter for the operation
                    self._on_unsent([operation], error)
                    continue
                sent.append(operation)
                heads.append(msgspec.Raw(head))
                count += len(wire.tickets_of(operation))
                size += len(head)
                for frame in its_frames:
                    frames.append(frame)
                    size += len(frame)
            try:
                # Frames were copied when the put began.
                self._transport.tell(wire.EncodedOperations(confirmed, arrived, heads), frames)
            except Exception as error:  # noqa: BLE001 - likewise
                # It counts for what goes by shortcuts: something is to come in its place.
                self._transport.tell(wire.EncodedOperations(confirmed, arrived, []), [])
                self._on_unsent(sent, error)

    def clear(self) -> None:
        """Forget what has gathered: there is nobody to send it to."""
        self.waiting.clear()
        self.confirmed.clear()
        self.arrived.clear()

    def _is_announced(self, operation: ChannelOperation) -> bool:
        payload = operation.payload
        return (
            payload is not None
            and self._inline_bytes_limit is not None
            and payload.size_bytes > self._inline_bytes_limit
            and not payload.goes_as_descriptor(self._server)
        )


def _head_of(operation: wire.OperationMessage, num_frames: int) -> bytes:
    head = _encode(operation)
    size_bytes = len(head) + SIZE_BYTES * num_frames
    if size_bytes > MAX_HEAD_BYTES:
        limit = f"{MAX_HEAD_BYTES >> 20} MiB"
        raise CodecError(f"what it says beside its item has {size_bytes} bytes; it may have {limit}")
    return head


def _is_joined(run: wire.Puts | wire.Gets, operation: ChannelOperation) -> bool:
    """Whether an operation travels with those of a run."""
    # Equal is not enough: 1 and True are other queues.
    name = operation.queue_name
    is_same = run.queue is name or (type(name) is str and run.queue == name)
    return is_same and len(run.tickets) < RUN_OPERATIONS
