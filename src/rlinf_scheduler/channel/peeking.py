"""Looks at the first items of a queue, which stay where they are: they are copied, and the copies are whole."""

from __future__ import annotations

from functools import partial
from itertools import islice

import msgspec

from rlinf_scheduler.channel import control_wire
from rlinf_scheduler.channel.device_items import DeviceItems
from rlinf_scheduler.channel.held import FETCH_TIMEOUT_S, Fetching, HeldAt, NotHeld
from rlinf_scheduler.channel.operation import ANSWER_S, Operation
from rlinf_scheduler.channel.refusals import ending_error
from rlinf_scheduler.channel.requests import Requests
from rlinf_scheduler.comm.device.landing import land
from rlinf_scheduler.comm.device.records import is_staged
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.loop import ending
from rlinf_scheduler.comm.messenger import Messenger
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.shm.payload import ReceivedPayload, is_here
from rlinf_scheduler.errors import ChannelUnanswered, SharedMemoryUnreadable
from rlinf_scheduler.queueing import Ending


def copies_of_first(
    requests: Requests, messenger: Messenger, there: DeviceItems | None, name: str, peek: control_wire.Peek
) -> list[ReceivedPayload]:
    """Return copies of the first items of a queue.

    Args:
        requests: to the channel.
        messenger: this process's.
        there: of a channel whose items may lie on devices.
        name: the channel's.
        peek: which items.

    Raises:
        ChannelEmpty, ChannelClosed: there is none that may be taken.
        ChannelUnanswered: nobody answers, or others take its items before they are copied.
        CommError: they lie on a device, whose process cannot be reached.
    """
    until, wanted = messenger.now() + ANSWER_S, peek
    while messenger.now() < until:
        reply = requests.answer_to(requests.begin(wanted, control_wire.Peeked, ANSWER_S), "peek")
        told: control_wire.Peeked = reply.head
        if told.reason:
            looked = Operation("get", peek.queue, None, messenger.now, wait=False)
            raise ending_error(name, looked, Ending.REFUSED, (told.reason, told.state))
        left = iter(reply.frames)
        parts = [list(islice(left, count)) for count in told.num_frames]
        if there is None and (wanted.as_bytes or all(map(is_here, parts))):
            return [ReceivedPayload(part) for part in parts]
        try:
            copies = [_copy(messenger, there, each) for each in _received(requests, messenger, parts)]
        except (SharedMemoryUnreadable, NotHeld):
            wanted = msgspec.structs.replace(peek, as_bytes=True)
            continue
        # What somebody has taken meanwhile, he may have written to.
        if requests.ask(peek, control_wire.Peeked).marks == told.marks:
            return copies
    why = "others take its items before they are copied"
    raise ChannelUnanswered(name, peek.queue, "peek", ANSWER_S, why)


def _received(requests: Requests, messenger: Messenger, parts: list[list[Buffer]]) -> list[ReceivedPayload]:
    """Return items, of which some may lie elsewhere."""
    held = [HeldAt.from_frames(part) or part for part in parts]
    if held == parts:
        return [messenger.payloads.receive(part) for part in parts]
    fetched: Promise[list[ReceivedPayload]] = Promise()
    fetching = Fetching(messenger, held, partial(_end, fetched))
    messenger.submit(ending(fetching.begin, fetched.set_exception))
    items: list[ReceivedPayload] = requests.answer_to(fetched, "peek", FETCH_TIMEOUT_S)
    return items


def _end(
    fetched: Promise[list[ReceivedPayload]], items: list[ReceivedPayload] | None, error: Exception | None
) -> None:
    if error is not None:  # whatever it is, they can come by way of the channel
        fetched.set_exception(NotHeld(str(error)))
    else:
        fetched.set_result(items or [])


def _copy(messenger: Messenger, there: DeviceItems | None, arrived: ReceivedPayload) -> ReceivedPayload:
    copy = arrived.copied()
    if there is None or not is_staged(copy.frames()):
        return copy
    return land(messenger, there.devices, there.what, copy)
