"""Reading every item that is put into a channel, beside its consumers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar, Self

from rlinf_scheduler.channel import control_wire
from rlinf_scheduler.channel.access import ChannelAccess, Getting, OfServer
from rlinf_scheduler.channel.arguments import DEFAULT_QUEUE
from rlinf_scheduler.channel.batch import Batch, Delivery, load_all
from rlinf_scheduler.channel.batches import Batching
from rlinf_scheduler.channel.copies import only_looked_at
from rlinf_scheduler.channel.inspecting import Inspecting
from rlinf_scheduler.channel.lease import Leasing
from rlinf_scheduler.channel.lease_operation import DeadLetter
from rlinf_scheduler.channel.question import Question
from rlinf_scheduler.channel.shard import Sharding
from rlinf_scheduler.channel.spec import ChannelRef, checked_max_bytes, checked_maxsize, checked_subscription
from rlinf_scheduler.checks import explains_calls
from rlinf_scheduler.errors import ChannelArgumentError, ChannelError, SchedulerError
from rlinf_scheduler.queueing.item import QueueName, SubscriptionName
from rlinf_scheduler.queueing.taps import Subscribe, Unsubscribe

# A subscription has room for so many items unless it is said.
NUM_ITEMS = 1024

_next_number = itertools.count(1).__next__


@explains_calls
class Subscription(Getting, Batching, Sharding, Leasing, Inspecting):
    """A subscription of a channel (`Channel.subscribe`), read as a channel is; it has one queue, which needs no name.

    Its members share its items: whoever subscribes under the same name. A member leaves by `unsubscribe`, or at the end
    of a `with` block; with the last one the subscription is gone. If the last one fails (an exception ends the block,
    its process dies) it is kept for the channel's `successor_s` seconds, for a successor to go on.

    Args:
        ref: the channel.
        name: the subscription's.
        maxsize: how many items it holds; 0 is unbounded.
    """

    def __init__(self, ref: ChannelRef, name: str, maxsize: int) -> None:
        super().__init__(ref)
        self._tap = SubscriptionName(name)
        self._maxsize = maxsize
        self._number = _next_number()
        self._is_in = False

    @property
    def name(self) -> str:
        """The subscription's."""
        return self._tap.subscription

    @property
    def maxsize(self) -> int:
        """How many items it holds; 0 is unbounded."""
        return self._maxsize

    def num_dropped(self) -> int:
        """Return how many items it has given up since its beginning, because it was full; of all its members.

        Raises:
            ChannelUnanswered: the channel's process did not answer within 5 s.
        """
        return self._query(DEFAULT_QUEUE, None).num_dropped

    def dead_letters(
        self, queue_name: QueueName | None = None, *, key: QueueName | None = None
    ) -> list[DeadLetter]:
        """Return those of the subscription; see `Channel.dead_letters`."""
        return super().dead_letters(DEFAULT_QUEUE if queue_name is None else queue_name, key=key)

    def unsubscribe(self) -> None:
        """Be a member no more; what waits here goes on as long as there are others, and then gets ChannelClosed.

        Raises:
            ChannelUnanswered: the channel's process did not answer within 5 s.
        """
        if self._is_in:
            self._connection().requests.ask(self._leaving(failed=False), control_wire.Done)
            self._is_in = False

    def _subscribe(self, queue: QueueName | None, max_bytes: int | None) -> Self:
        self._is_in = True
        message = Subscribe(self._number, self.name, queue, self._maxsize, max_bytes)
        problem = self._connection().requests.ask(message, control_wire.Done).problem
        if problem:
            self._is_in = False
            raise ChannelArgumentError(self._name, problem)
        return self

    def _leaving(self, *, failed: bool) -> Unsubscribe:
        return Unsubscribe(self._number, self.name, failed)

    def _queue(self, queue_name: Any, key: Any) -> QueueName:
        if queue_name != DEFAULT_QUEUE or key is not None:
            problem = f"subscription '{self.name}' has one queue, and no name is needed for it"
            raise ChannelArgumentError(self._name, problem)
        return self._tap

    # Questions are seen as what was asked: their answers are others' business.

    def _load_item(self, items: Delivery) -> Any:
        with only_looked_at():  # the queue's consumers have it, too
            return _asked(items[0].load())

    def _load_all(self, items: Delivery, begin: Callable[[int], None] | None = None) -> Batch:
        with only_looked_at():
            batch = load_all(items, begin)
        batch[:] = map(_asked, batch)
        return batch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.unsubscribe()
            return
        with suppress(ChannelError):  # what has failed is more important
            self._connection().requests.ask(self._leaving(failed=True), control_wire.Done)
            self._is_in = False

    def __del__(self) -> None:
        if self._is_in:
            with suppress(SchedulerError):  # a forked child is no member, and a job may be over
                self._connection().requests.tell(self._leaving(failed=True))

    def __reduce__(self) -> Any:
        problem = (
            f"subscription '{self.name}' is this process's; send the channel, and subscribe where it is read"
        )
        raise ChannelArgumentError(self._name, problem)

    def __str__(self) -> str:
        return repr(self)

    def __repr__(self) -> str:
        return f"<Subscription '{self.name}' of channel '{self._name}'>"


def _asked(item: Any) -> Any:
    return item.item if type(item) is Question else item


class Subscribing(ChannelAccess):
    """The part of `Channel` that is about its subscriptions."""

    _of_server: ClassVar[OfServer] = (("subscribe", "subscriptions"),)

    def subscribe(
        self,
        name: str,
        queue_name: QueueName | None = DEFAULT_QUEUE,
        *,
        maxsize: int = NUM_ITEMS,
        max_bytes: int | None = None,
        key: QueueName | None = None,
    ) -> Subscription:
        """Read every item that is put from now on, beside the consumers, who get each of them all the same.

            with channel.subscribe("logger") as seen:
                for item in seen:
                    log(item)

        Whoever subscribes under one name shares its items; each name sees all of them. What is large lies in shared
        memory once until its last reader is done; what one writes into an array of it, no other sees. The subscription
        ends when its queue has ended, or the channel is closed, and it has read what there was.

        Args:
            name: the subscription's, in this channel.
            queue_name: the queue; None for all, in the order in which their items were accepted.
            maxsize: how many items it holds that it has not given out or that are on lease; 0 is unbounded. One that is
                full gives up its oldest items and counts them (`num_dropped`, `explain`): nobody waits for it.
            max_bytes: how many bytes, unless it is a single larger item; 0 is unbounded, None what it has already, or a
                quarter of what the channel may hold. It counts for the subscription alone.
            key: another name of `queue_name`.

        Raises:
            ChannelArgumentError: there is a subscription of this name with other options.
            ChannelUnanswered: the channel's process did not answer within 5 s.
        """
        queue = None if queue_name is None and key is None else self._queue(queue_name, key)
        bound = checked_max_bytes(self._name, max_bytes)
        subscription = Subscription(
            self._ref, checked_subscription(self._name, name), checked_maxsize(self._name, maxsize)
        )
        return subscription._subscribe(queue, bound)
