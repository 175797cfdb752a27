"""The processes that use a channel, as its server knows them, and which queues each uses."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from typing import Any

from rlinf_scheduler.channel import wire
from rlinf_scheduler.channel.shortcut import ShortcutEnd
from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.queueing import DirectOperations, QueueName, QueueUser, UsersByQueue

# A client that cannot open shared memory for a moment gets bytes for so long, and longer each time.
MIN_PAUSE_S = 1.0
MAX_PAUSE_S = 60.0


class KnownClient:
    """One process that uses the channel, and the responses that have gathered for it."""

    __slots__ = (
        "accepted",
        "bytes_until",
        "client",
        "direct",
        "endpoint",
        "frames",
        "name",
        "num_got",
        "num_put",
        "pause_s",
        "responses",
        "unreadable",
        "who",
    )

    def __init__(self, client: str, endpoint: Endpoint, name: str) -> None:
        self.client = client
        self.endpoint = endpoint
        self.name = name
        # As the origins of its items name it: one object for all of them.
        self.who = name, client
        # Items accepted from it, and delivered to it, by this process.
        self.num_put = self.num_got = 0
        self.accepted: list[int] = []
        self.responses: list[wire.Response] = []
        self.frames: list[Buffer] = []
        # Its puts that lie in shared memory which cannot be read here, and why.
        self.unreadable: dict[int, str] = {}
        # It could not open shared memory that it was sent: until then it gets bytes.
        self.bytes_until = 0.0
        self.pause_s = MIN_PAUSE_S
        self.direct: DirectOperations[ShortcutEnd, wire.Direct] = DirectOperations()

    def send_bytes(self, now: float) -> None:
        """It cannot open shared memory, and gets bytes for a while."""
        if now >= self.bytes_until:
            self.bytes_until = now + self.pause_s
            self.pause_s = min(2 * self.pause_s, MAX_PAUSE_S)


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
    >>> users.by_queue({}, now=5.0)["default"][0]
    [QueueUser(process='rollout:0', num_operations=1, last_s=2.0, is_gone=True)]
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
            if type(operation) is not kind or operation.queue != queue:
                kind = type(operation)
                uses = self._uses.get(kind)
                if uses is None:
                    kind = None
                    continue
                queue = operation.queue
                use = self._use(uses, (client, wire.as_name(queue)))
                use.at = now
            use.count += len(operation.tickets) if isinstance(operation, wire.Puts | wire.Gets) else 1

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

    def by_queue(
        self, names: Mapping[str, str], now: float, queues: Collection[QueueName] | None = None
    ) -> UsersByQueue:
        """Return the users of each queue, or of these; `names` are the names of the clients that are there."""
        found: UsersByQueue = {}
        for place, kind in enumerate((wire.Put, wire.Get)):
            for (client, queue), use in self._uses[kind].items():
                if queues is not None and queue not in queues:
                    continue
                name = names.get(client) or self._gone.get(client, "")
                if name:
                    user = QueueUser(name, use.count, now - use.at, client not in names)
                    found.setdefault(queue, ([], []))[place].append(user)
        return found

    def last_used(self, number: int) -> dict[QueueName, float]:
        """About so many queues that were used last, and when that was."""
        found: dict[QueueName, float] = {}
        for kind in (wire.Put, wire.Get):
            for (_, queue), use in islice(reversed(self._uses[kind].items()), number):
                found[queue] = max(use.at, found.get(queue, use.at))
        return found

    def gotten_from(self) -> set[QueueName]:
        """The queues whose items somebody has asked for."""
        return {queue for _, queue in self._uses[wire.Get]}
