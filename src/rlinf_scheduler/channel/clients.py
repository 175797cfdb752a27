"""The processes that use a channel, as its server knows them: their threads' operations, and which queues each uses.

What a thread sends by its shortcut may overtake what its process has sent the usual way before. So each such operation
says how many messages stand before it, and waits until they were read. It is answered where it came from. If its
thread cannot wait for the answer any more, its process asks the usual way what became of it.
"""

from __future__ import annotations

import socket
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import islice
from typing import Any

import msgspec

from rlinf_scheduler.channel import wire
from rlinf_scheduler.channel.remote_items import RemoteItem
from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.shm.payload import ReceivedPayload
from rlinf_scheduler.observe.timekeeping import TIMES
from rlinf_scheduler.queueing.item import QueueName
from rlinf_scheduler.queueing.messages import Accept, Deliver, Instruction, Reason, Refuse
from rlinf_scheduler.queueing.state import ChannelState
from rlinf_scheduler.queueing.stats import QueueUser
from rlinf_scheduler.queueing.surveying import UsersByQueue

# A client that cannot open shared memory for a moment gets bytes for so long, and longer each time.
MIN_PAUSE_S = 1.0
MAX_PAUSE_S = 60.0
# So many pairs of a process and a queue are remembered: queues' names may be used once each.
MAX_USES = 2048

_encode = msgspec.msgpack.Encoder().encode


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
        self.direct = DirectOperations()

    def send_bytes(self, now: float) -> None:
        """It cannot open shared memory, and gets bytes for a while."""
        if now >= self.bytes_until:
            self.bytes_until = now + self.pause_s
            self.pause_s = min(2 * self.pause_s, MAX_PAUSE_S)


class ShortcutEnd:
    """The server's end of one thread's shortcut.

    Attributes:
        client: the process whose thread it is.
    """

    __slots__ = ("client", "connection")

    def __init__(self, client: str, connection: socket.socket) -> None:
        self.client = client
        self.connection = connection

    def answer(self, answer: wire.DirectAnswer) -> bool:
        """Send an answer; False if it does not go this way."""
        datagram = _encode(answer)
        return len(datagram) <= wire.MAX_DATAGRAM_BYTES and is_sent(self.connection, datagram)

    def deliver(self, instruction: Deliver) -> bool:
        """Deliver what is small; of anything else say that it comes the usual way."""
        size_bytes, counts = 0, []
        frames: list[Any] = []
        for item in instruction.items:
            payload: ReceivedPayload | RemoteItem = item.payload
            size_bytes += payload.size_bytes
            if size_bytes > wire.DIRECT_BYTES or payload.block is not None or isinstance(payload, RemoteItem):
                break
            parts = payload.frames()
            counts.append(len(parts))
            frames += parts
        else:
            if self.answer(wire.DirectAnswer(delivered(instruction, counts), frames)):
                return True
        self.answer(wire.DirectAnswer(wire.Elsewhere(instruction.ticket), []))
        return False


class DirectOperations:
    """When it is an operation's turn, where its answer goes, and what is said when somebody asks what became of it.

    A way carries one operation at a time: the next one comes when the last one was answered, or not at all.

    >>> direct = DirectOperations()
    >>> direct.arrive("way", 7, "put", after=1)
    False
    >>> direct.read()
    [('way', 'put')]
    >>> direct.accept(7)
    'way'

    Attributes:
        unanswered: those whose turn has come, and where their answers go.
    """

    __slots__ = ("_accepted", "_early", "_num_read", "unanswered")

    def __init__(self) -> None:
        self._num_read = 0
        self._early: dict[int, tuple[int, ShortcutEnd, wire.Direct]] = {}
        self.unanswered: dict[int, ShortcutEnd] = {}
        # The last put of each way that was accepted: its thread may not have read that.
        self._accepted: dict[ShortcutEnd, int] = {}

    def arrive(self, way: ShortcutEnd, ticket: int, operation: wire.Direct, after: int) -> bool:
        """An operation came, before which stand so many messages: whether it is its turn; if not, `read` gives it."""
        if after > self._num_read:
            self._early[ticket] = (after, way, operation)
            return False
        self.unanswered[ticket] = way
        return True

    def read(self) -> list[tuple[ShortcutEnd, wire.Direct]]:
        """A message that came the usual way was read: the operations whose turn it is now, in order."""
        self._num_read += 1
        if not self._early:
            return []
        due = [ticket for ticket, (after, _, _) in self._early.items() if after <= self._num_read]
        out = []
        for ticket in due:
            _, way, operation = self._early.pop(ticket)
            self.unanswered[ticket] = way
            out.append((way, operation))
        return out

    def accept(self, ticket: int) -> ShortcutEnd | None:
        """The item of a put is in its queue: where to say so; None if it came the usual way."""
        way = self.unanswered.pop(ticket, None) if self.unanswered else None
        if way is not None:
            self._accepted[way] = ticket
        return way

    def end(self, ticket: int) -> ShortcutEnd | None:
        """An operation ends in another way: where to say so; None if it came the usual way."""
        return self.unanswered.pop(ticket, None) if self.unanswered else None

    def query_outcome(
        self, client: str, ticket: int, state: ChannelState, read_all: Callable[[str], None]
    ) -> list[Instruction]:
        """Withdraw an operation, and always say what became of it.

        What has not come by now never went, and what is early is never done.

        Args:
            client: its name.
            ticket: the operation.
            state: the queues.
            read_all: reads what the client's threads have sent until now.
        """
        read_all(client)
        self._early.pop(ticket, None)
        self.unanswered.pop(ticket, None)
        withdrawn = state.apply(wire.Withdraw(ticket), client)
        if withdrawn:
            return withdrawn
        for way, accepted in self._accepted.items():
            if accepted == ticket:
                del self._accepted[way]
                return [Accept(client, ticket)]
        return [Refuse(client, ticket, Reason.CANCELLED, "")]

    def leave(self, way: ShortcutEnd) -> None:
        """A thread has left its way: nobody asks any more what became of what came by it."""
        self._accepted.pop(way, None)


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


def is_sent(connection: socket.socket, datagram: bytes) -> bool:
    """Send a datagram; False if its reader is gone, or has not read an earlier one."""
    try:
        connection.send(datagram)
    except OSError:
        return False
    return True


def delivered(instruction: Deliver, counts: list[int]) -> wire.Delivered:
    """Return what is said of items that are delivered, in so many frames each."""
    _, ticket, items, complete, grant, group, _ = instruction
    told = wire.Delivered(ticket, counts, complete, group=group)
    if grant is not None:
        told.grant = grant.told(items)
    versions = [item.version for item in items]
    if versions.count(None) < len(versions):
        told.versions = versions
    if items:
        last = items[-1].origin
        told.by = "" if last is None else last[0][0]
        if TIMES.span_file is not None or TIMES.wants_origins:
            origins = [item.origin for item in items]
            told.origins = [None if each is None else (each[0][0], each[1]) for each in origins]
    return told
