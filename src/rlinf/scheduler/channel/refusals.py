"""How an operation ended, as the error that its caller sees."""

from __future__ import annotations

from typing import Any

from rlinf.scheduler.channel.operation import Operation
from rlinf.scheduler.errors import (
    BatchImpossible,
    BatchTimeout,
    ChannelArgumentError,
    ChannelClosed,
    ChannelEmpty,
    ChannelError,
    ChannelExists,
    ChannelFull,
    ChannelTimeout,
    ItemsLost,
    NameTaken,
    SchedulerError,
    VersionTooEarly,
)
from rlinf.scheduler.queueing import Ending, Reason


def ending_error(channel: str, operation: Operation, ending: Ending, detail: Any) -> SchedulerError:
    """Return the error of an operation that timed out or was refused.

    Args:
        channel: the channel's name.
        operation: which one.
        ending: how it ended.
        detail: what its queue looked like, in a phrase; for a refused one (reason, that phrase).
    """
    if ending is Ending.TIMED_OUT:
        return _timeout(channel, operation, detail)
    reason, state = detail
    if operation.timeout_s is not None and reason in (Reason.FULL.value, Reason.EMPTY.value):
        return _timeout(channel, operation, state)
    queue = f"queue {operation.queue_name!r}"
    match reason:
        case Reason.CLOSED.value | Reason.ENDED.value:
            return ChannelClosed(channel, *([f"{queue} has ended"] if reason == Reason.ENDED.value else ()))
        case Reason.SUCCEEDED.value:
            return ChannelError(channel, f"{queue}: another one asks for {operation.describe_batch()} now")
        case Reason.FULL.value:
            return ChannelFull(channel, f"{queue} is full: {state}")
        case Reason.EMPTY.value:
            return ChannelEmpty(channel, f"{queue} has nothing for this {operation.kind}: {state}")
        case Reason.TOO_EARLY.value:
            return VersionTooEarly(channel, operation.queue_name, operation.version or 0, state)
        case Reason.LOST.value:
            return ItemsLost(channel, operation.queue_name, state)
        case Reason.IMPOSSIBLE.value | Reason.OVERSIZE.value:
            batch = operation.describe_batch()
            why = (
                f"it is full with {state}"
                if reason == Reason.IMPOSSIBLE.value
                else f"its head is {state}; get it alone, or with oversize='alone'"
            )
            return BatchImpossible(channel, f"{queue} cannot come to {batch}: {why}")
        case _:
            return ChannelArgumentError(channel, f"{queue}: {state}")


def _timeout(channel: str, operation: Operation, state: str | None) -> ChannelTimeout:
    about = (channel, operation.queue_name, operation.kind, operation.waited_s)
    if not operation.is_batch:
        return ChannelTimeout(*about, state or "")
    wanted = f"{operation.describe_batch()} is wanted"
    return BatchTimeout(*about, f"{wanted}; there are {state}" if state else wanted)


def why_unregistered(channel: str, error: BaseException) -> BaseException:
    """The error of who opens a channel, of what the directory has said to its name."""
    if not isinstance(error, NameTaken):
        return error
    taken = ChannelExists(channel, str(error))
    taken.__cause__ = error
    return taken
