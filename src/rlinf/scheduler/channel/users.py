"""Who puts into which queue of a channel, and who gets from it: remembered for a while, also of those that are gone."""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rlinf.scheduler.channel import control_wire, wire
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
    >>> users.note("p1", [wire.Put(1, "default", 0, True, 0)], now=3.0)
    >>> users.lose("p1", "rollout:0")
    >>> users.by_queue({}, now=5.0)["default"].putters
    [User(process='rollout:0', num_operations=1, last_s=2.0, is_gone=True)]
    """

    def __init__(self) -> None:
        # By what is done, and by client and queue: how often, and when last.
        self._uses: dict[type, OrderedDict[tuple[str, QueueName], _Use]] = {
            wire.Put: OrderedDict(),
            wire.Get: OrderedDict(),
        }
        self._uses[wire.Puts] = self._uses[wire.Put]
        self._uses[wire.Gets] = self._uses[wire.Get]
        self._gone: OrderedDict[str, str] = OrderedDict()

    def note(self, client: str, operations: Iterable[wire.OperationMessage], now: float) -> None:
        """A client begins operations; mostly many of a kind, which are counted together."""
        kind: Any = None
        queue: Any = None
        use = _Use()
        for operation in operations:
            if type(operation) is not kind or operation.queue != queue:  # type: ignore[union-attr]
                kind = type(operation)
                uses = self._uses.get(kind)
                if uses is None:
                    kind = None
                    continue
                queue = operation.queue  # type: ignore[union-attr]
                use = self._use(uses, (client, wire.as_name(queue)))
                use.at = now
            use.count += len(wire.tickets_of(operation))

    def _use(self, uses: OrderedDict[tuple[str, QueueName], _Use], key: tuple[str, QueueName]) -> _Use:
        use = uses.get(key)
        if use is None:
            use = uses[key] = _Use()
            if len(uses) > MAX_USES:
                uses.popitem(last=False)
        else:
            uses.move_to_end(key)
        return use

    def lose(self, client: str, name: str) -> None:
        """A client has left, or is gone."""
        self._gone[client] = name
        if len(self._gone) > MAX_USES:
            self._gone.popitem(last=False)

    def by_queue(self, names: dict[str, str], now: float) -> dict[QueueName, UsersOfQueue]:
        """Who used which queue; `names` are the names of the clients that are there."""
        found: dict[QueueName, UsersOfQueue] = {}
        for kind in (wire.Put, wire.Get):
            for (client, queue), use in self._uses[kind].items():
                of_queue = found.setdefault(queue, UsersOfQueue([], []))
                of_queue.last_s = min(of_queue.last_s, now - use.at)
                name = names.get(client) or self._gone.get(client, "")
                if name:
                    who = of_queue.putters if kind is wire.Put else of_queue.getters
                    who.append(User(name, use.count, now - use.at, client not in names))
        return found


@dataclass(slots=True)
class UsersOfQueue:
    """Who has put into a queue, who has asked for its items, and how long ago somebody did so last, in seconds."""

    putters: list[User]
    getters: list[User]
    last_s: float = math.inf


def channel_note(
    name: str, found: control_wire.Explanation, users: Users, names: dict[str, str], now: float
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
    used = users.by_queue(names, now)
    unused = UsersOfQueue([], [])
    every = dict.fromkeys([*reported, *used])
    told = {queue for queue, each in reported.items() if each.waiting or each.held}
    told.update(
        heapq.nsmallest(
            MAX_SHOWN,
            (queue for queue in every if queue not in told),
            key=lambda queue: _rank(reported.get(queue), used.get(queue, unused)),
        )
    )
    queues = (
        _queue_note(queue, reported.get(queue), used.get(queue, unused)) for queue in every if queue in told
    )
    return ChannelNote(name, found.held_by, tuple(queues), found.producers)


# Of queues at which nobody waits, so many are told of.
MAX_SHOWN = 32


def _rank(found: control_wire.ExplainedQueue | None, users: UsersOfQueue) -> tuple[bool, float]:
    """First those whose items nobody gets, then those used last."""
    is_left = found is not None and found.depth.num_items > 0 and not users.getters
    return not is_left, users.last_s


def _queue_note(
    queue: QueueName, found: control_wire.ExplainedQueue | None, users: UsersOfQueue
) -> QueueNote:
    putters, getters = tuple(users.putters), tuple(users.getters)
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
