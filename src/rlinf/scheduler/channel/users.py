"""Who puts into which queue of a channel, and who gets from it: remembered for a while, also of those that are gone."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from rlinf.scheduler.channel import wire
from rlinf.scheduler.observe.notes import ChannelNote, QueueNote, User, Waiter
from rlinf.scheduler.queueing import QueueName

# So many pairs of a process and a queue are remembered: queues' names may be used once each.
MAX_USES = 2048
PUT, GET = "put", "get"
_KINDS = {wire.Put: PUT, wire.Get: GET}


class Users:
    """The processes that use the queues of one channel. On the I/O thread only.

    >>> users = Users()
    >>> users.note("p1", wire.Put(1, "default", 0, True, 0), now=3.0)
    >>> users.lose("p1", "rollout:0")
    >>> list(users.of("put", "default", {}, now=5.0))
    [User(process='rollout:0', num_operations=1, last_s=2.0, is_gone=True)]
    """

    def __init__(self) -> None:
        # By what is done, client and queue: how often, and when last.
        self._uses: OrderedDict[tuple[str, str, QueueName], tuple[int, float]] = OrderedDict()
        self._gone: OrderedDict[str, str] = OrderedDict()

    def note(self, client: str, operation: wire.OperationMessage, now: float) -> None:
        """A client begins an operation."""
        kind = _KINDS.get(type(operation))
        if kind is None:
            return
        key = kind, client, wire.as_name(operation.queue)  # type: ignore[union-attr]
        count, _ = self._uses.get(key, (0, 0.0))
        self._uses[key] = count + 1, now
        if not count and len(self._uses) > MAX_USES:
            self._uses.popitem(last=False)

    def lose(self, client: str, name: str) -> None:
        """A client has left, or is gone."""
        self._gone[client] = name
        if len(self._gone) > MAX_USES:
            self._gone.popitem(last=False)

    def of(self, kind: str, queue: QueueName, names: dict[str, str], now: float) -> Iterator[User]:
        """Those who put into a queue, or get from it; `names` are the names of the clients that are there."""
        for (its_kind, client, its_queue), (count, at) in self._uses.items():
            name = names.get(client) or self._gone.get(client, "")
            if its_kind == kind and its_queue == queue and name:
                yield User(name, count, now - at, client not in names)

    @property
    def queues(self) -> list[QueueName]:
        """The queues that were used last."""
        return list(dict.fromkeys(queue for _, _, queue in self._uses))


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
    putters, getters = (tuple(users.of(kind, queue, names, now)) for kind in (PUT, GET))
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
