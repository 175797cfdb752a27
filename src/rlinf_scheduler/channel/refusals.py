"""How an operation ended, as the error that its caller sees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlinf_scheduler.channel.operation import ChannelOperation
from rlinf_scheduler.comm.promise import Unheard
from rlinf_scheduler.errors import (
    BatchImpossible,
    BatchTimeout,
    ChannelArgumentError,
    ChannelClosed,
    ChannelEmpty,
    ChannelError,
    ChannelExists,
    ChannelFull,
    ChannelLost,
    ChannelTimeout,
    ChannelUnanswered,
    CodecError,
    CommError,
    CommTimeout,
    ItemsLost,
    NameTaken,
    NotServed,
    SchedulerError,
    SlotExpired,
)
from rlinf_scheduler.queueing.client import Ending
from rlinf_scheduler.queueing.item import QueueName
from rlinf_scheduler.queueing.messages import Reason

if TYPE_CHECKING:
    from rlinf_scheduler.channel.client_parts import ClientParts

NO_ANSWER = "the channel's server does not answer"


def ending_error(channel: str, operation: ChannelOperation, ending: Ending, detail: Any) -> SchedulerError:
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
        case Reason.LEFT.value:
            return ChannelClosed(channel, f"{queue}: {state}")
        case Reason.SUCCEEDED.value:
            return ChannelError(channel, f"{queue}: another one asks for {operation.describe_batch()} now")
        case Reason.FULL.value:
            return ChannelFull(channel, f"{queue} is full: {state}")
        case Reason.EMPTY.value:
            return ChannelEmpty(channel, f"{queue} has nothing for this {operation.kind}: {state}")
        case Reason.LOST.value | Reason.SPENT.value:
            kind = ItemsLost if reason == Reason.LOST.value else SlotExpired
            return kind(channel, operation.queue_name, state)
        case Reason.IMPOSSIBLE.value | Reason.OVERSIZE.value:
            batch = operation.describe_batch()
            why = (
                f"it is full with {state}"
                if reason == Reason.IMPOSSIBLE.value
                else f"its head is {state}; get it alone, or with oversize='alone'"
            )
            return BatchImpossible(channel, f"{queue} cannot come to {batch}: {why}")
        case _:
            return operation.refusal(channel, reason, state) or ChannelArgumentError(
                channel, f"{queue}: {state}"
            )


def _timeout(channel: str, operation: ChannelOperation, state: str | None) -> ChannelTimeout:
    about = (channel, operation.queue_name, operation.kind, operation.waited_s)
    if not operation.is_batch:
        return ChannelTimeout(*about, state or "")
    wanted = f"{operation.describe_batch()} is wanted"
    if not state:
        return BatchTimeout(*about, wanted)
    are = "is" if state.startswith("1 ") else "are"
    return BatchTimeout(*about, f"{wanted}; there {are} {state}")


def unheard_puts(client: ClientParts) -> Unheard:
    """Return what ends the asynchronous puts of a channel that fail: a part of its client."""
    return Unheard(f"channel '{client.name}': an asynchronous put")


def gone_error(channel: str, reason: str) -> ChannelLost:
    """The error of operations on a channel whose server is gone."""
    return ChannelLost(channel, f"the process that held it is gone: {reason}")


def unanswered_error(channel: str, operation: ChannelOperation, why: str) -> ChannelUnanswered:
    """The error of an operation that nobody has answered; `why`, if that is known."""
    about = operation.queue_name, operation.kind, operation.waited_s
    return ChannelUnanswered(channel, *about, why or NO_ANSWER)


def deleted_error(channel: str) -> ChannelLost:
    """The error of operations on a channel that is no more."""
    return ChannelLost(channel, "the channel was deleted")


def lost_error(channel: str, error: BaseException) -> ChannelLost:
    """The error of operations on a channel, of what a request to its server has failed with."""
    return deleted_error(channel) if isinstance(error, NotServed) else gone_error(channel, str(error))


def request_error(
    channel: str, error: BaseException, what: str, queue: QueueName | None, condition: str
) -> BaseException:
    """Return the error for the asker, made of the one that the channel's server failed with.

    Args:
        channel: the channel's name.
        error: what it has failed with.
        what: what was asked, in a word.
        queue: of which queue; None where it was of none.
        condition: why nothing comes from the server now; "" where nothing is known to be wrong.
    """
    failure: BaseException
    if isinstance(error, CodecError):
        failure = ChannelError(channel, f"{what}: {error}")
    elif isinstance(error, CommTimeout):
        failure = ChannelUnanswered(channel, queue, what, error.waited_s, condition or NO_ANSWER)
    elif isinstance(error, CommError):
        failure = lost_error(channel, error)
    else:
        return error
    failure.__cause__ = error
    return failure


def why_unregistered(channel: str, error: BaseException) -> BaseException:
    """The error of who opens a channel, of what the directory has said to its name."""
    if not isinstance(error, NameTaken):
        return error
    taken = ChannelExists(channel, str(error))
    taken.__cause__ = error
    return taken
