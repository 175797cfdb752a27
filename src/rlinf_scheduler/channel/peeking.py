"""Looks at the first items of a queue, which stay where they are: they are copied, and the copies are whole."""

from __future__ import annotations

from itertools import islice

import msgspec

from rlinf_scheduler.channel import control_wire
from rlinf_scheduler.channel.held import Fetching, HeldAt, NotHeld
from rlinf_scheduler.channel.operation import ANSWER_S, ChannelOperation
from rlinf_scheduler.channel.placed import PlacedItems
from rlinf_scheduler.channel.refusals import ending_error
from rlinf_scheduler.channel.requests import READ_S, Requests
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.loop import ending
from rlinf_scheduler.comm.messenger import Messenger
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.shm.payload import ReceivedPayload, is_here
from rlinf_scheduler.errors import ChannelUnanswered, CommTimeout, SharedMemoryUnreadable
from rlinf_scheduler.queueing import Ending


def copies_of_first(
    requests: Requests, messenger: Messenger, there: PlacedItems | None, name: str, peek: control_wire.Peek
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
    try:
        return _copies(requests, messenger, there, name, peek)
    except (SharedMemoryUnreadable, NotHeld):
        # What this process can neither read nor fetch comes by way of the channel.
        as_bytes = msgspec.structs.replace(peek, as_bytes=True)
        return _copies(requests, messenger, there, name, as_bytes)


def _copies(
    requests: Requests, messenger: Messenger, there: PlacedItems | None, name: str, peek: control_wire.Peek
) -> list[ReceivedPayload]:
    until = messenger.now() + ANSWER_S
    answer_s = READ_S if peek.as_bytes else ANSWER_S
    while True:
        asked = requests.begin(peek, control_wire.Peeked, answer_s)
        reply = requests.answer_to(asked, "peek", answer_s)
        told: control_wire.Peeked = reply.head
        if told.reason:
            looked = ChannelOperation("get", peek.queue, None, messenger.now, wait=False)
            raise ending_error(name, looked, Ending.REFUSED, (told.reason, told.state))
        left = iter(reply.frames)
        parts = [list(islice(left, count)) for count in told.num_frames]
        if there is None and (peek.as_bytes or all(map(is_here, parts))):
            return [ReceivedPayload(part) for part in parts]
        held = [HeldAt.from_frames(part) or part for part in parts]
        if held != parts:
            received = _fetched(requests, messenger, held, name, peek)
        else:
            received = [messenger.payloads.receive(part) for part in parts]
        copies = [_copy(there, each) for each in received]
        # What somebody has taken meanwhile, he may have written to.
        again = msgspec.structs.replace(peek, as_bytes=False)
        if requests.ask(again, control_wire.Peeked).marks == told.marks:
            return copies
        if messenger.now() >= until:
            why = "others take its items before they are copied"
            raise ChannelUnanswered(name, peek.queue, "peek", messenger.now() - until + ANSWER_S, why)


def _fetched(
    requests: Requests,
    messenger: Messenger,
    held: list[list[Buffer] | HeldAt],
    name: str,
    peek: control_wire.Peek,
) -> list[ReceivedPayload]:
    """Return items, of which some lie on other nodes."""
    fetched: Promise[list[ReceivedPayload]] = Promise()

    def end(items: list[ReceivedPayload] | None, error: Exception | None) -> None:
        if items is not None:
            fetched.set_result(items)
        elif isinstance(error, CommTimeout):
            about = name, peek.queue, "peek", error.waited_s
            fetched.set_exception(ChannelUnanswered(*about, fetching.describe()))
        else:  # whatever it is, they may come by way of the channel
            fetched.set_exception(NotHeld(str(error)))

    fetching = Fetching(messenger, held, end)
    messenger.submit(ending(fetching.begin, fetched.set_exception))
    try:
        items: list[ReceivedPayload] = requests.answer_to(fetched, "peek", fetching.timeout_s)
    except BaseException:
        messenger.submit(fetching.cancel)
        raise
    return items


def _copy(there: PlacedItems | None, arrived: ReceivedPayload) -> ReceivedPayload:
    copy = arrived.copied()
    return copy if there is None or not there.has(copy.frames()) else there.landed(copy)
