"""Looking at what a channel holds, and who waits for it; what `Channel.explain` returns."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, ClassVar, TypeVar

import msgspec

from rlinf_scheduler.channel import control_wire
from rlinf_scheduler.channel.access import ChannelAccess, OfServer
from rlinf_scheduler.channel.arguments import DEFAULT_QUEUE
from rlinf_scheduler.channel.connection import ChannelConnection
from rlinf_scheduler.channel.copies import only_looked_at
from rlinf_scheduler.channel.held import Fetching, HeldAt, NotHeld
from rlinf_scheduler.channel.operation import ANSWER_S, ChannelOperation
from rlinf_scheduler.channel.placed import PlacedItems
from rlinf_scheduler.channel.question import Question
from rlinf_scheduler.channel.refusals import ending_error
from rlinf_scheduler.channel.requests import READ_S
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.loop import ending
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.shm.payload import ReceivedPayload, is_here
from rlinf_scheduler.errors import (
    ChannelError,
    ChannelLost,
    ChannelUnanswered,
    CommError,
    CommTimeout,
    SchedulerError,
    SharedMemoryUnreadable,
)
from rlinf_scheduler.queueing.client import Ending
from rlinf_scheduler.queueing.item import QueueName
from rlinf_scheduler.queueing.stats import ChannelStats, ChannelUser, QueueDepth, QueueStats, decode_rows
from rlinf_scheduler.wording import counted, counted_about, size_text

# So many items are in what `str` makes of a channel, and no more bytes than these are looked at for that.
NUM_SHOWN, SHOWN_BYTES = 16, 1 << 20
_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = _repr.maxlong = 120
_repr.maxlist = _repr.maxtuple = _repr.maxdict = NUM_SHOWN

QueueT = TypeVar("QueueT", QueueDepth, QueueStats)


class Inspecting(ChannelAccess):
    """The part of `Channel` that moves no item."""

    _of_server: ClassVar[OfServer] = (("explain", "reports (it has `stats`)"),)

    def qsize(self, queue_name: QueueName = DEFAULT_QUEUE, *, key: QueueName | None = None) -> int:
        """Return how many items a queue holds.

        Raises:
            ChannelUnanswered: the channel's process did not answer within 5 s.
        """
        return self._query(queue_name, key).num_items

    def empty(self, queue_name: QueueName = DEFAULT_QUEUE, *, key: QueueName | None = None) -> bool:
        """Return whether a queue holds nothing.

        Raises:
            ChannelUnanswered: the channel's process did not answer within 5 s.
        """
        return self._query(queue_name, key).num_items == 0

    def full(self, queue_name: QueueName = DEFAULT_QUEUE, *, key: QueueName | None = None) -> bool:
        """Return whether a put to a queue would have to wait.

        Raises:
            ChannelUnanswered: the channel's process did not answer within 5 s.
        """
        return self._query(queue_name, key).is_full

    def stats(self) -> ChannelStats:
        """Return what went through the channel and what is in it.

        Every queue is listed, some hundred at a time, and other operations go on meanwhile: the sums are of one moment,
        many queues of more than one.

        Raises:
            ChannelUnanswered: the channel's process did not answer within 5 s.
        """
        stats, depths = self._listing(control_wire.Stats(), QueueDepth)
        return stats.listing(depths)

    def explain(self) -> ChannelReport:
        """Return who waits for what and since when, what is held and by whom, rates and bounds; it moves no item.

            print(channel.explain())

        Every queue is listed, as by `stats`.

        Raises:
            ChannelUnanswered: the channel's process did not answer within 5 s.
        """
        return ChannelReport.of(*self._listing(control_wire.Explain(), QueueStats))

    def peek(self, queue_name: QueueName = DEFAULT_QUEUE, *, key: QueueName | None = None) -> Any:
        """Return a copy of the item that the next getter would take, and leave it where it is.

        Raises:
            ChannelEmpty: there is none.
            ChannelUnanswered: the channel's process did not answer within 5 s, or the node that has the item within a
                minute (longer for a large one).
            ChannelClosed: the queue has ended, or the channel is closed, and the queue is drained.
            CodecError: the item cannot be read here.
        """
        queue = self._queue(queue_name, key)
        return _loaded(copies_of_first(self._connection(), queue, 1)[0])

    def _listing(
        self, message: control_wire.Stats | control_wire.Explain, kind: type[QueueT]
    ) -> tuple[ChannelStats, list[QueueT]]:
        """Ask about every queue; of many the answer is decoded here, where nobody else waits for it."""
        connection, what = self._connection(), type(message).__name__.lower()
        answer = connection.requests.answer_to(
            connection.requests.begin(message, ChannelStats, ANSWER_S), what
        )
        return answer.head, [queue for frame in answer.frames for queue in decode_rows(frame, kind)]

    def __str__(self) -> str:
        """Return the first line of `explain` with the first items of the default queue, which stay where they are.

        It is what is known here if the channel's process does not answer, and why there is none if it is gone.
        `explain` moves no item.
        """
        try:
            report = self.explain()
        except ChannelLost as error:
            return str(error)
        except SchedulerError:
            return repr(self)
        num_items = next((q.depth.num_items for q in report.queues if q.depth.name == DEFAULT_QUEUE), 0)
        return report.headline + shown(self._first_items() if num_items else (), num_items)

    def _first_items(self) -> list[Any]:
        try:
            found = copies_of_first(self._connection(), DEFAULT_QUEUE, NUM_SHOWN, SHOWN_BYTES)
            return [_loaded(each) for each in found]
        except (ChannelError, CommError):  # others took them, or they are too large, or cannot be read here
            return []


def shown(items: Sequence[Any], num_items: int) -> str:
    """Return the first items of the default queue in words, as the end of a line about a channel.

    >>> shown(["a", "b"], 3)
    "; next are 'a', 'b' and 1 more"
    """
    if not items:
        return ""
    more = num_items - len(items)
    texts = [" ".join(_repr.repr(item).split()) for item in items]
    are = "is" if num_items == 1 else "are"
    return f"; next {are} {', '.join(texts)}{f' and {more} more' if more > 0 else ''}"


def _loaded(copy: ReceivedPayload) -> Any:
    with only_looked_at():
        item = copy.load()
    return item.item if type(item) is Question else item


# As documents call it.
QueueReport = QueueStats


@dataclass(frozen=True, slots=True)
class ChannelReport:
    """The state of a channel, as a report: `print(channel.explain())`.

    Attributes:
        name: the channel's.
        held_by: the process that holds it; "" of a durable channel that none holds now, of which nothing else is known.
        closed: whether puts are refused.
        num_puts: items put since the beginning.
        num_items: items that its queues hold.
        held_bytes: their size and that of items that were given out and of dead letters, in bytes.
        max_bytes: how much that may be; 0 is unbounded.
        puts_per_s: items put per second, of about the last ten seconds.
        gets_per_s: items delivered, likewise; those that come back count again.
        producers: who still has something to put; "" where producers are not counted.
        queues: those that hold something or are waited for, and the subscriptions.
        peers: the processes that use it.
        num_lost: items lost with the nodes, or the producers' devices, that held their bytes.
        elsewhere: which other nodes hold items, and how much, in phrases.
    """

    name: str
    held_by: str
    closed: bool
    num_puts: int
    num_items: int
    held_bytes: int
    max_bytes: int
    puts_per_s: float
    gets_per_s: float
    producers: str
    queues: tuple[QueueReport, ...]
    peers: tuple[ChannelUser, ...]
    num_lost: int = 0
    elsewhere: tuple[str, ...] = ()

    @classmethod
    def of(cls, stats: ChannelStats, queues: Iterable[QueueStats]) -> ChannelReport:
        """Return the report of a channel and its queues, as its server sent them."""
        return cls(
            name=stats.name,
            held_by=stats.held_by,
            closed=stats.closed,
            num_puts=stats.num_puts,
            num_items=stats.num_items,
            held_bytes=stats.held_bytes,
            max_bytes=stats.max_bytes,
            puts_per_s=stats.puts_per_s,
            gets_per_s=stats.gets_per_s,
            producers=stats.producers,
            queues=tuple(queues),
            peers=stats.users,
            num_lost=stats.num_lost,
            elsewhere=stats.elsewhere,
        )

    @classmethod
    def unheld(cls, name: str) -> ChannelReport:
        """Return the report of a durable channel that no process holds now."""
        return cls(name, "", False, 0, 0, 0, 0, 0.0, 0.0, "", (), ())

    @property
    def headline(self) -> str:
        """The first line."""
        if not self.held_by:
            return f"channel '{self.name}': no process holds it now; what it holds is in its journal"
        bound = f" of {size_text(self.max_bytes)}" if self.max_bytes else ""
        # What subscriptions have is told by each of them: they see items of queues.
        queues = [queue for queue in self.queues if not queue.subscription]
        num_subscriptions = len(self.queues) - len(queues)
        parts = [
            "closed" if self.closed else "",
            f"{counted(self.num_items, 'item')} in {counted(len(queues), 'queue')}",
            f"read by {counted(num_subscriptions, 'subscription')}" if num_subscriptions else "",
            QueueStats.given_out(queues),
            f"{self.num_lost} lost with their nodes or devices" if self.num_lost else "",
            f"{size_text(self.held_bytes)}{bound}",
            f"{counted_about(self.puts_per_s, 'put')} and {counted_about(self.gets_per_s, 'get')} a second",
            f"held by '{self.held_by}'",
        ]
        return f"channel '{self.name}': {', '.join(filter(None, parts))}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        data: dict[str, Any] = msgspec.to_builtins(asdict(self))
        return data

    def __str__(self) -> str:
        lines = [self.headline]
        if self.producers:
            lines.append(f"producers: {self.producers}")
        lines += self.elsewhere
        for queue in self.queues:
            lines += queue.lines()
        for peer in self.peers:
            condition = f", {peer.condition}" if peer.condition else ""
            lines.append(f"used by {peer.name} ({peer.transport}{condition})")
        return "\n".join(lines)


def copies_of_first(
    connection: ChannelConnection, queue: QueueName, number: int, max_bytes: int = 0
) -> list[ReceivedPayload]:
    """Return copies of the first items of a queue, which stay where they are; the copies are whole.

    Raises:
        ChannelEmpty, ChannelClosed: there is none that may be taken.
        ChannelUnanswered: nobody answers, or others take its items before they are copied.
        CommError: they lie on a device, whose process cannot be reached.
    """
    peek = control_wire.Peek(queue, number, max_bytes)
    try:
        return _copies(connection, peek)
    except (SharedMemoryUnreadable, NotHeld):
        # What this process can neither read nor fetch comes by way of the channel.
        as_bytes = msgspec.structs.replace(peek, as_bytes=True)
        return _copies(connection, as_bytes)


def _copies(connection: ChannelConnection, peek: control_wire.Peek) -> list[ReceivedPayload]:
    requests, messenger, name = connection.requests, connection.client.messenger, connection.ref.spec.name
    there = connection.client.on_devices
    until = messenger.now() + ANSWER_S
    answer_s = READ_S if peek.as_bytes else ANSWER_S
    while True:
        asked = requests.begin(peek, control_wire.Peeked, answer_s)
        reply = requests.answer_to(asked, "peek", answer_s)
        told: control_wire.Peeked = reply.head
        if told.reason:
            looked = ChannelOperation("get", peek.queue, None, messenger.now, wait=False)
            raise ending_error(name, looked, Ending.REFUSED, (told.reason, told.state))
        left = iter(reply.frames)
        parts = [list(islice(left, count)) for count in told.num_frames]
        if there is None and (peek.as_bytes or all(map(is_here, parts))):
            return [ReceivedPayload(part) for part in parts]
        held = [HeldAt.from_frames(part) or part for part in parts]
        if held != parts:
            received = _fetched(connection, held, peek)
        else:
            received = [messenger.payloads.receive(part) for part in parts]
        copies = [_copy(there, each) for each in received]
        # What somebody has taken meanwhile, he may have written to.
        again = msgspec.structs.replace(peek, as_bytes=False)
        if requests.ask(again, control_wire.Peeked).marks == told.marks:
            return copies
        if messenger.now() >= until:
            why = "others take its items before they are copied"
            raise ChannelUnanswered(name, peek.queue, "peek", messenger.now() - until + ANSWER_S, why)


def _fetched(
    connection: ChannelConnection, held: list[list[Buffer] | HeldAt], peek: control_wire.Peek
) -> list[ReceivedPayload]:
    """Return items, of which some lie on other nodes."""
    messenger = connection.client.messenger
    fetched: Promise[list[ReceivedPayload]] = Promise()

    def end(items: list[ReceivedPayload] | None, error: Exception | None) -> None:
        if items is not None:
            fetched.set_result(items)
        elif isinstance(error, CommTimeout):
            about = connection.ref.spec.name, peek.queue, "peek", error.waited_s
            fetched.set_exception(ChannelUnanswered(*about, fetching.describe()))
        else:  # whatever it is, they may come by way of the channel
            fetched.set_exception(NotHeld(str(error)))

    fetching = Fetching(messenger, held, end)
    messenger.submit(ending(fetching.begin, fetched.set_exception))
    try:
        items: list[ReceivedPayload] = connection.requests.answer_to(fetched, "peek", fetching.timeout_s)
    except BaseException:
        messenger.submit(fetching.cancel)
        raise
    return items


def _copy(there: PlacedItems | None, arrived: ReceivedPayload) -> ReceivedPayload:
    copy = arrived.copied()
    return copy if there is None or not there.has(copy.frames()) else there.landed(copy)
