"""What operations on channels end with."""

from __future__ import annotations

from rlinf_scheduler.errors.base import SchedulerError, WaitTimeout


class ChannelError(SchedulerError):
    """Something about a channel.

    Args:
        channel: the channel's name.
        problem: one sentence, or "".
    """

    def __init__(self, channel: str, problem: str = "") -> None:
        super().__init__(channel, problem)
        self.channel = channel
        self.problem = problem

    def __str__(self) -> str:
        return f"channel '{self.channel}': {self.problem}"


class ChannelNotFound(ChannelError, LookupError):
    """No channel of that name was created before the deadline."""


class ChannelExists(ChannelError):
    """A channel of that name is there already."""


class ChannelClosed(ChannelError):
    """The channel is closed: puts are refused, and getters have drained it."""

    def __init__(self, channel: str, problem: str = "it is closed") -> None:
        super().__init__(channel, problem)


class RankLeaving(ChannelClosed):
    """This process takes no more work, as its rank leaves its group; the channel goes on, and others take from it."""


class ChannelLost(ChannelError):
    """The channel was deleted, or the process that held it is gone; so are the items that were in it."""


class ChannelArgumentError(ChannelError, ValueError):
    """An argument makes no sense: a negative weight, a batch of weight zero, a queue's name that is a float."""


class ChannelTimeout(ChannelError, WaitTimeout):
    """An operation on a channel passed its deadline; nothing was taken or put (but see ChannelUnanswered).

    Args:
        channel: the channel's name.
        queue_name: which of its queues; None if it is about the channel as a whole.
        operation: "put", "get", "get_batch", "query" (`qsize` and the like), "stats", "close" or "delete".
        waited_s: how long, in seconds.
        state: what the queue looked like then, one phrase.
        why: who waits for what, as far as that could be found out; "" where it was not.
    """

    def __init__(
        self,
        channel: str,
        queue_name: object,
        operation: str,
        waited_s: float,
        state: str = "",
        why: str = "",
    ) -> None:
        super().__init__(channel, state)
        self.args = (channel, queue_name, operation, waited_s, state, why)
        self.queue_name = queue_name
        self.operation = operation
        self.waited_s = waited_s
        self.state = state
        self.why = why

    def __str__(self) -> str:
        tail = f" ({self.state})" if self.state else ""
        queue = "" if self.queue_name is None else f", queue {self.queue_name!r}"
        subject = f"channel '{self.channel}'{queue}"
        return self._with_why(f"{subject}: {self.operation} not done after {self.waited_s:.1f} s{tail}")


class BatchTimeout(ChannelTimeout):
    """A batch was not there at its deadline, and nothing was taken.

    `state` says what batch was wanted, what its queue held, and what other queues of the channel held.
    """


_NOT_KNOWN = ("put", "close", "delete", "ack", "nack")


class ChannelUnanswered(ChannelTimeout):
    """The channel's server did not answer: it is stuck, stopped or overloaded.

    A get has taken nothing. Whether an item was put is not known: it may still appear in its queue. Nor is it known
    whether a channel was closed or deleted, or what was on lease acknowledged or given back.
    """

    def __str__(self) -> str:
        known = "; whether it was done is not known" if self.operation in _NOT_KNOWN else ""
        return f"{super().__str__()}{known}"


class ChannelUnanswerable(ChannelError):
    """A question that was asked by `Channel.ask` has become a dead letter: nobody will answer it.

    Args:
        channel: the channel's name.
        attempts: how often it was given out.
        consumer: who had it last.
        reason: why that came to nothing.
    """

    def __init__(self, channel: str, attempts: int, consumer: str, reason: str) -> None:
        super().__init__(channel, reason)
        self.args = (channel, attempts, consumer, reason)
        self.attempts = attempts
        self.consumer = consumer
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"channel '{self.channel}': nobody answers; the question was given out {self.attempts} times, "
            f"at last to '{self.consumer}': {self.reason}"
        )


class QueueError(ChannelError):
    """Something about one queue of a channel.

    Args:
        channel: the channel's name.
        queue_name: which of its queues.
        problem: one sentence.
    """

    _prefix = ""

    def __init__(self, channel: str, queue_name: object, problem: str) -> None:
        super().__init__(channel, problem)
        self.args = (channel, queue_name, problem)
        self.queue_name = queue_name

    def __str__(self) -> str:
        return f"channel '{self.channel}', queue {self.queue_name!r}: {self._prefix}{self.problem}"


class LeaseExpired(QueueError):
    """Items come, are settled or kept longer that are not on lease any more: their queue or another has them.

    `problem` says why the lease is over.
    """

    _prefix = "the lease is over: "


class ChannelJournalError(ChannelError):
    """The files of a durable channel cannot be used: another process holds them, or they are damaged, or another's.

    Args:
        channel: the channel's name.
        path: which file.
        problem: what is wrong with it.
    """

    def __init__(self, channel: str, path: str, problem: str) -> None:
        super().__init__(channel, problem)
        self.args = (channel, path, problem)
        self.path = path

    def __str__(self) -> str:
        return f"channel '{self.channel}': {self.path} {self.problem}"


class ItemsLost(QueueError):
    """Items were lost with the node that held their bytes, with the process that held them there or on its device.

    Of items in a queue one getter is told, once, and all of them are named; the next get goes on with what is left. A
    put is told of its own item, which its queue never had. `problem` says how many, who had put them, and where they
    were.
    """


class SlotExpired(QueueError):
    """An item is put with a slot that is over: one was put with it before, or it was given back.

    A process that makes an item again, for another one died while it made it, learns by this that the first was put.
    """


class VersionTooEarly(QueueError):
    """`set_version` was refused: items that the version before was to take would be older than they may be.

    Args:
        channel: the channel's name.
        queue_name: which of its queues.
        version: the one that was refused.
        problem: what is to be taken first.
    """

    def __init__(self, channel: str, queue_name: object, version: int, problem: str) -> None:
        super().__init__(channel, queue_name, problem)
        self.args = (channel, queue_name, version, problem)
        self.version = version
        self._prefix = f"too early for version {version}: "


class BatchImpossible(ChannelError):
    """A batch that no future put can complete: the queue is full and its weight does not reach the target."""
