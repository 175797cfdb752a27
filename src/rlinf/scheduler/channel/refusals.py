"""Why a server refused an operation, as the error that its caller sees."""

from __future__ import annotations

from concurrent.futures import CancelledError

from rlinf.scheduler.channel import wire
from rlinf.scheduler.channel.operation import Operation
from rlinf.scheduler.errors import (
    BatchImpossible,
    ChannelArgumentError,
    ChannelClosed,
    ChannelEmpty,
    ChannelFull,
    ChannelTimeout,
    SharedMemoryUnreadable,
)
from rlinf.scheduler.queueing import Reason


def refusal_error(channel: str, operation: Operation, reason: str, state: str) -> BaseException:
    """Return the error of a refused operation.

    Args:
        channel: the channel's name.
        operation: what was refused.
        reason: one of `queueing.Reason` or of `wire`.
        state: what its queue looked like, in a phrase.
    """
    queue = f"queue '{operation.queue_name}'"
    match reason:
        case wire.TIMED_OUT:
            return ChannelTimeout(channel, operation.queue_name, operation.kind, operation.waited_s, state)
        case Reason.CLOSED.value:
            return ChannelClosed(channel)
        case Reason.FULL.value:
            return ChannelFull(channel, f"{queue} is full: {state}")
        case Reason.EMPTY.value:
            return ChannelEmpty(channel, f"{queue} has nothing for this get: {state}")
        case Reason.IMPOSSIBLE.value:
            batch = f"a batch of weight {operation.batch_weight}"
            return BatchImpossible(channel, f"{queue} cannot come to {batch}: it is full with {state}")
        case wire.UNREADABLE:
            return SharedMemoryUnreadable(state)
        case Reason.CANCELLED.value:
            return CancelledError()
        case _:
            return ChannelArgumentError(channel, f"{queue}: {state}")
