"""Gets that take work, in a loop or to be acknowledged: they end, taking nothing, when the rank here is drained."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from rlinf_scheduler.channel import wire
from rlinf_scheduler.channel.client_parts import ClientParts
from rlinf_scheduler.channel.operation import ANSWER_S, ChannelOperation
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.errors import RankLeaving

if TYPE_CHECKING:
    from rlinf_scheduler.queueing.item import QueueName


# Of what has not begun.
NOT_DRAINING: Promise[str] = Promise()


class TakesWork(ChannelOperation):
    """The base of gets that end when this process takes no more work."""

    __slots__ = ()
    has_hooks = True
    draining: Promise[str]

    def begin(self, client: ClientParts) -> None:
        """Begin it at the server, unless no more work is taken."""
        client.feature(TakingWork).begin(self)

    def own_end(self, channel: str) -> RankLeaving | None:
        """Return what it ends with when no more work is taken."""
        return RankLeaving(channel, self.draining.result(0)) if self.draining.done() else None

    @property
    def grace_s(self) -> float:
        """How long the server's word on it is waited for when it is over."""
        return ANSWER_S if self.draining.done() else super().grace_s


class IterationGet(TakesWork):
    """A get of an iteration.

    Attributes:
        draining: done when this process takes no more work.
    """

    __slots__ = ("draining",)

    @classmethod
    def until(cls, draining: Promise[str], queue_name: QueueName, now: Callable[[], float]) -> Self:
        """Return one that ends when `draining` is done."""
        operation = cls("get", queue_name, None, now)
        operation.draining = draining
        return operation

    def renewed(self) -> Self:
        """The same, begun at the same time, as another operation."""
        again = super().renewed()
        again.draining = self.draining
        return again

    def delivered(self, client: ClientParts, told: wire.Delivered) -> None:
        """Have it looked at whether its caller takes the item."""
        if self.blocks:
            client.deliveries.expect(self)
        client.deliveries.tell(self)


class TakingWork:
    """Ends what takes work on one channel when this process is to take no more. On the I/O thread only.

    Args:
        client: this process's of that channel.
    """

    def __init__(self, client: ClientParts) -> None:
        self._client = client
        client.draining.add_done_callback(self._on_draining)
        client.on_lost.append(self._forget)

    def begin(self, operation: Any) -> None:
        """Begin an operation, or end it at once."""
        operation.draining = self._client.draining
        if operation.draining.done():
            self._client.end_unsent(operation)
        else:
            self._client.begin_get(operation)

    def _forget(self) -> None:
        self._client.draining.remove_done_callback(self._on_draining)

    def _on_draining(self, _: Promise[str]) -> None:
        self._client.hand_over(self._end_all, None)

    def _end_all(self, _nothing: None) -> None:
        for operation in list(self._client.operations.values()):
            # What a thread has sent by itself it gives up by itself.
            if operation.draining is not None and not operation.is_direct:
                operation.stop_clock()
                self._client.expire(operation)
