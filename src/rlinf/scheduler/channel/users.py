"""Who puts into which queue of a channel, and who gets from it: remembered for a while, also of those that are gone."""

from __future__ import annotations

from collections import OrderedDict

from rlinf.scheduler.channel import wire
from rlinf.scheduler.observe.notes import ChannelNote, QueueNote, User, Waiter
from rlinf.scheduler.queueing import QueueName

# So many pairs of a process and a queue are remembered: queues' names may be used once each.
MAX_USES = 2048


class _Use:
    __slots__ = ("at", "count")

    def __init__(self) -> None:
        self.count, self.at = 0, 0.0


class Users:
    """The processes that use the queues of one channel. On the I/O thread only.

    >>> users = Users()
    >>> users.note("p1", wire.Put(1, "default", 0, True, 0), now=3.0)
    >>> users.lose("p1", "rollout:0")
    >>> users.putters("default", {}, now=5.0)
    (User(process='rollout:0', num_operations=1, last_s=2.0, is_gone=True),)
    """

    def __init__(self) -> None:
        # By what is done, and by client and queue: how often, and when last.
        self._uses: dict[type, OrderedDict[tuple[str, QueueName], _Use]] = {
            wire.Put: OrderedDict(),
            wire.Get: OrderedDict(),
        }
        self._gone: OrderedDict[str, str] = OrderedDict()

    def note(self, client: str, operation: wire.OperationMessage, now: float) -> None:
        """A client begins an operation; of each one, so it takes no longer than it must."""
        uses = self._uses.get(type(operation))
        if uses is None:
            return
        queue = operation.queue  # type: ignore[union-attr]
        key = client, queue if type(queue) is str else wire.as_name(queue)
        use = uses.get(key)
        if use is None:
            use = uses[key] = _Use()
            if len(uses) > MAX_USES:
                uses.popitem(last=False)
        use.count += 1
        use.at = now

    def lose(self, client: str, name: str) -> None:
        """A client has left, or is gone."""
        self._gone[client] = name
        if len(self._gone) > MAX_USES:
            self._gone.popitem(last=False)

    def putters(self, queue: QueueName, names: dict[str, str], now: float) -> tuple[User, ...]:
        """Those who put into a queue; `names` are the names of the clients that are there."""
        return self._of(wire.Put, queue, names, now)

    def getters(self, queue: QueueName, names: dict[str, str], now: float) -> tuple[User, ...]:
        """Those who ask for items of a queue; likewise."""
        return self._of(wire.Get, queue, names, now)

    def _of(self, kind: type, queue: QueueName, names: dict[str, str], now: float) -> tuple[User, ...]:
        return tuple(
            User(name, use.count, now - use.at, client not in names)
            for (client, its_queue), use in self._uses[kind].items()
            if its_queue == queue and (name := names.get(client) or self._gone.get(client, ""))
        )

    @property
    def queues(self) -> list[QueueName]:
        """The queues that were used last."""
        return list(dict.fromkeys(queue for uses in self._uses.values() for _, queue in uses))


def channel_note(
    name: str, found: wire.Explanation, users: Users, names: dict[str, str], now: float
) -> ChannelNote:
    """What a channel's process says of it.

    Args:
        name: the channel's.
        found: who waits for what there.
        users: who used it.
        names: of its clients, by process id.
        now: the present moment, on the channel's clock.
    """
    reported = {wire.as_name(queue.depth.name): queue for queue in found.queues}
    queues = (
        _queue_note(queue, reported.get(queue), users, names, now)
        for queue in dict.fromkeys([*reported, *users.queues[-MAX_SHOWN:]])
    )
    return ChannelNote(name, found.held_by, tuple(queues), found.producers)


# Of queues in which nothing is and nobody waits, so many are told of.
MAX_SHOWN = 32


def _queue_note(
    queue: QueueName, found: wire.ExplainedQueue | None, users: Users, names: dict[str, str], now: float
) -> QueueNote:
    putters, getters = users.putters(queue, names, now), users.getters(queue, names, now)
    if found is None:
        return QueueNote(repr(queue), 0, 0, putters=putters, getters=getters)
    return QueueNote(
        repr(queue),
        found.depth.num_items,
        found.depth.weight,
        tuple(Waiter(each.who, each.operation, each.since_s) for each in found.waiting),
        tuple(Waiter(each.who, each.operation, each.since_s) for each in found.held),
        tuple(found.limits),
        found.ended,
        putters,
        getters,
    )
