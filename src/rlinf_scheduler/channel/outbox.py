"""The responses of a channel's server: they gather for each client, and are sent together."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from rlinf_scheduler.channel import wire
from rlinf_scheduler.channel.clients import KnownClient, ShortcutEnd, delivered
from rlinf_scheduler.channel.remote_items import RemoteItem
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.loop import run_guarded
from rlinf_scheduler.comm.runtime import Runtime
from rlinf_scheduler.comm.shm.kernel import trim_heap
from rlinf_scheduler.comm.shm.payload import ReceivedPayload
from rlinf_scheduler.comm.threads import run_beside_in_time
from rlinf_scheduler.errors import CodecError
from rlinf_scheduler.observe.timekeeping import TIMES
from rlinf_scheduler.queueing.item import Item, marks_tell
from rlinf_scheduler.queueing.messages import Deliver
from rlinf_scheduler.queueing.queue import NOTHING
from rlinf_scheduler.queueing.state import ChannelState

# A peak is more than so many bytes; it is over when a quarter of it is left. What is left of one is looked after until
# it is small.
PEAK_BYTES = 64 << 20
SMALL_BYTES = PEAK_BYTES // 16
SHARE = 4
# What comes meanwhile may use the memory again. Items that are no longer held may be on their way to a slow client, and
# lie in the heap until they are there: it is trimmed again, later and later.
TRIM_AFTER_S = (2.0, 8.0, 32.0)


class ResponseOutbox:
    """The responses of one channel's server: they gather for each client, and are sent together.

    Args:
        runtime: sends them.
        state: its queues.
        give_back: gives back what was delivered to an operation of a client.

    Attributes:
        is_due: something has gathered, and is about to be sent.
        holders: say of an item whether it is held for others than its getter.
    """

    def __init__(
        self, runtime: Runtime, channel_id: str, state: ChannelState, give_back: Callable[[str, int], None]
    ) -> None:
        self.is_due = False
        self.holders: list[Callable[[Item], bool]] = []
        self._runtime = runtime
        self._service = wire.service(channel_id, wire.RESPONSES)
        self._state = state
        self._heap = Heap(runtime.call_later)
        self._give_back = give_back
        self._waiting: dict[KnownClient, None] = {}

    def deliver(self, known: KnownClient, instruction: Deliver) -> None:
        """Send items."""
        self.gather_for(known)
        if TIMES.span_file is None and _join(known, instruction):
            return
        as_bytes = known.bytes_until > 0 and self._runtime.now() < known.bytes_until
        counts = []
        sent: list[Buffer] = []
        is_read = not marks_tell(instruction.items)
        for item in instruction.items:
            arrived: ReceivedPayload | RemoteItem = item.payload
            if as_bytes or isinstance(arrived, RemoteItem) or arrived.block is None:
                frames = arrived.frames()
            else:
                # What is written into what may come back is not to be seen by who has it next; into what others read
                # too, not by them.
                may_return = instruction.grant is not None or is_read
                shared = may_return or any(holds(item) for holds in self.holders)
                frames = self._runtime.payloads.frames_for(arrived, known.endpoint, shared=shared)
            counts.append(len(frames))
            sent += frames
        # All or none: the frames of others follow.
        known.responses.append(delivered(instruction, counts))
        known.frames += sent

    def respond(
        self, known: KnownClient, answer: wire.Granted | wire.Refused, end: ShortcutEnd | None = None
    ) -> None:
        """Send a response, or give it by the shortcut by which the operation came."""
        if end is None or isinstance(answer, wire.Granted) or not end.answer(wire.DirectAnswer(answer, [])):
            self.gather_for(known).responses.append(answer)

    def gather_for(self, known: KnownClient) -> KnownClient:
        """Return a client, and make sure that its responses are sent when everything at hand has been read."""
        self._waiting[known] = None
        if not self.is_due:
            self.is_due = True
            self._runtime.submit(self.flush)
        return known

    def flush(self) -> None:
        """Send everything that has gathered."""
        self.is_due = False
        self._heap.note(self._state.queues.bounded_bytes)
        clients, self._waiting = self._waiting, {}
        for client in sorted(clients, key=lambda client: not client.frames):
            run_guarded(self._send_gathered, client)

    def _send_gathered(self, client: KnownClient) -> None:
        accepted, others, frames = client.accepted, client.responses, client.frames
        client.accepted, client.responses, client.frames = [], [], []
        self._send(client, accepted, others, frames)

    def _send(
        self, client: KnownClient, accepted: list[int], others: list[wire.Response], frames: list[Buffer]
    ) -> None:
        """Send responses, in several messages where they are too much for one."""
        try:
            # Nobody writes into frames that the state machine holds.
            head = wire.Responses(accepted, others)
            self._runtime.notify(client.endpoint, self._service, head, frames, snapshot=False)
        except CodecError as error:
            if accepted and others:
                self._send(client, accepted, [], [])
                self._send(client, [], others, frames)
            elif len(accepted) + len(others) > 1:
                half, half_accepted = len(others) // 2, len(accepted) // 2
                num_frames = sum(map(wire.num_frames_of, others[:half]))
                self._send(client, accepted[:half_accepted], others[:half], frames[:num_frames])
                self._send(client, accepted[half_accepted:], others[half:], frames[num_frames:])
            else:
                self._refuse(client, others[0], error)

    def _refuse(self, client: KnownClient, answer: wire.Response, error: CodecError) -> None:
        """Take back a delivery that no message has room for."""
        if isinstance(answer, wire.Delivered):
            problem = f"{len(answer.num_frames)} items are too many at once: {error}"
            self._send(client, [], [wire.Refused(answer.ticket, wire.INVALID, problem)], [])
            self._runtime.submit(partial(self._give_back, client.client, answer.ticket))

    def forget(self, known: KnownClient) -> None:
        """Drop the responses to a client that is gone."""
        self._waiting.pop(known, None)

    def leave(self, known: KnownClient) -> None:
        """Tell a client that the server is no more."""
        self._runtime.notify(known.endpoint, self._service, wire.Responses([], [], left=True))


def _join(known: KnownClient, instruction: Deliver) -> bool:
    """Let a delivery travel with those before it that are alike; whether there is nothing to be said of it alone."""
    items = instruction.items
    if len(items) != 1 or not instruction.complete or instruction[4:6] != NOTHING:
        return False
    item = items[0]
    arrived = item.payload
    if item.version is not None or isinstance(arrived, RemoteItem) or arrived.block is not None:
        return False
    frames = arrived.frames()
    by = "" if item.origin is None else item.origin[0][0]
    last = known.responses[-1] if known.responses else None
    if type(last) is wire.Handed and last.num_frames == len(frames) and last.by == by:
        last.tickets.append(instruction.ticket)
    else:
        known.responses.append(wire.Handed(len(frames), by, [instruction.ticket]))
    known.frames += frames
    return True


class Heap:
    """The memory that a channel's items take in the heap of its process.

    The C library keeps what was freed among what is in use, and small items leave much of that.

    Args:
        call_later: calls a function on the I/O thread after so many seconds.
        trim: gives the free parts of the heap back; on a thread of its own, for it takes milliseconds a GiB.
    """

    def __init__(
        self,
        call_later: Callable[[float, Callable[[], None]], Any],
        trim: Callable[[], None] = trim_heap,
    ) -> None:
        self._call_later = call_later
        self._trim = trim
        self._least_bytes = PEAK_BYTES
        self._peak_bytes = 0
        self._held_bytes = 0
        self._due = False

    def note(self, held_bytes: int) -> None:
        """The channel holds so many bytes now."""
        self._held_bytes = held_bytes
        if held_bytes > self._peak_bytes:
            self._peak_bytes = held_bytes
        elif self._is_over() and not self._due:
            self._come_again(0)

    def _is_over(self) -> bool:
        return self._peak_bytes >= self._least_bytes and SHARE * self._held_bytes <= self._peak_bytes

    def _come_again(self, times: int) -> None:
        self._due = True
        self._call_later(TRIM_AFTER_S[times], lambda: self._look(times + 1))

    def _look(self, times: int) -> None:
        self._due = False
        if not self._is_over():
            return
        run_beside_in_time(self._call_later, self._trim)
        if times < len(TRIM_AFTER_S):
            self._come_again(times)
            return
        self._peak_bytes = self._held_bytes
        self._least_bytes = PEAK_BYTES if self._held_bytes < SMALL_BYTES else SMALL_BYTES
