"""Reports: what is in the queues, who waits for what, since when. Without them a channel does the same unseen."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import accumulate
from typing import Any, TypeVar

from msgspec.structs import replace

from rlinf_scheduler.channel import control_wire, wire
from rlinf_scheduler.channel.held import FETCH_TIMEOUT_S
from rlinf_scheduler.channel.remote_items import RemoteItem
from rlinf_scheduler.channel.server import RATES_S, ChannelServer
from rlinf_scheduler.channel.spec import ChannelSpec
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.peer import Request
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.comm.shm.payload import ReceivedPayload, is_here
from rlinf_scheduler.errors import ChannelUnanswered
from rlinf_scheduler.observe.own_activity import OwnActivity
from rlinf_scheduler.observe.own_stats import OwnStats
from rlinf_scheduler.observe.process_stats import Activity, ProcessStats
from rlinf_scheduler.observe.reasons import Stall, WaitersOfChannel, tell_stall
from rlinf_scheduler.observe.status import MAX_QUEUES
from rlinf_scheduler.queueing.item import Item, QueueName
from rlinf_scheduler.queueing.stats import (
    ChannelStats,
    ChannelUser,
    QueueDepth,
    QueueStats,
    QueueUser,
    counts_of,
    encode_rows,
)
from rlinf_scheduler.queueing.surveying import QueueSurvey, SurveyContext
from rlinf_scheduler.session import Session

# So many queues are told of in one step: what they hold; and all that there is to say.
NUM_DEPTHS, NUM_REPORTS = 256, 64
# Of queues at which nobody waits, so many are told of, of which so many for their items that nobody gets.
MAX_SHOWN, MAX_LEFT = 32, 16

_log = Reporter(__name__)
Told = TypeVar("Told", Activity, ProcessStats)
Say = Callable[[], ChannelStats | None]


class ExplainFeature:
    """The handlers of questions about the channel at one server, and what it says in surveys of the job.

    What is said of every queue is put together part by part: between two parts others have their turn.
    """

    def __init__(self, server: ChannelServer) -> None:
        self._server = server
        self._survey = QueueSurvey(server.state)
        self._submit = server.beside.submit
        server.handlers |= {
            control_wire.Query: self._query,
            control_wire.Peek: self._peek,
            control_wire.Stats: self._list_depths,
            control_wire.Explain: self._explain,
        }

    def _query(self, request: Request) -> None:
        name, state = wire.as_name(request.head.queue), self._server.state
        queue = state.queues.find(name)
        num_dropped = 0 if queue is None else queue.num_dropped
        request.reply(
            control_wire.QueueState(self._survey.num_items(name), self._survey.is_full(name), num_dropped)
        )

    def _peek(self, request: Request) -> None:
        peek: control_wire.Peek = request.head
        name = wire.as_name(peek.queue)
        found = self._survey.first_items(name, peek.number)
        sizes = accumulate(item.size_bytes for item in found)
        items = [item for item, size in zip(found, sizes, strict=True) if size <= (peek.max_bytes or size)]
        show = partial(self._show, request, name, items)
        if peek.as_bytes:
            self._server.bring(items, show, FETCH_TIMEOUT_S)
        else:
            show("")

    def _show(self, request: Request, name: QueueName, items: Iterable[Item], late: str) -> None:
        if late:
            request.fail(ChannelUnanswered(self._server.spec.name, name, "peek", FETCH_TIMEOUT_S, late))
            return
        items = [item for item in items if not item.lost]
        parts = [self._frames_for(request, item.payload) for item in items]
        peeked = control_wire.Peeked(
            [len(part) for part in parts], [(item.order, item.attempts, item.since) for item in items]
        )
        if not parts:
            reason, peeked.state = self._survey.why_empty(name)
            peeked.reason = reason.value
        # What goes as bytes out of shared memory may be written by who takes it meanwhile.
        is_copied = any(
            item.payload.block is not None and is_here(part) for item, part in zip(items, parts, strict=True)
        )
        request.reply(peeked, [frame for part in parts for frame in part], snapshot=is_copied)

    def _frames_for(self, request: Request, arrived: ReceivedPayload | RemoteItem) -> list[Buffer]:
        known = self._server.clients.get(request.peer_id)
        if isinstance(arrived, RemoteItem) or request.head.as_bytes or known is None:
            return arrived.frames()
        return self._server.runtime.payloads.frames_for(arrived, known.endpoint, shared=True)

    def _list_depths(self, request: Request) -> None:
        since: list[float] = []

        def counts() -> ChannelStats:
            oldest_s = max(0.0, self._server.runtime.now() - min(since)) if since else None
            return replace(self._counts(), oldest_s=oldest_s)

        _List(request, self._survey.depths(NUM_DEPTHS, since), counts, self._submit).go_on()

    def _explain(self, request: Request) -> None:
        now, names, *_ = self._asked()
        asked = SurveyContext(now, names, self._server.users.by_queue(names, now))
        parts = self._survey.every(NUM_REPORTS, asked)
        _List(request, parts, self._reached, self._submit).go_on()

    def stats(self) -> ChannelStats:
        """Return the channel's counts, and its foremost queues."""
        shown, oldest_s = self._survey.foremost(MAX_QUEUES, self._asked())
        return replace(self._counts(), shown=tuple(shown), oldest_s=oldest_s)

    def activity(self) -> ChannelStats:
        """Return the channel with the queues that are used, in a moment, however many there are."""
        asked = self._asked()
        found = {queue.depth.name: queue for queue in self._survey.in_use(asked)}
        others = self._others(found.keys())
        found |= {queue.depth.name: queue for queue in self._survey.of(others, asked)}
        every = [found.get(name) or QueueStats(QueueDepth(name)) for name in dict.fromkeys([*found, *others])]
        names = {queue.depth.name for queue in every}
        users = self._server.users.by_queue(asked.names, asked.now, names)
        shown = (_used(queue, *users.get(queue.depth.name, ((), ()))) for queue in every)
        counts = self._counts()
        return replace(counts, shown=tuple(shown), num_untold=max(0, counts.num_queues - len(found)))

    def _asked(self) -> SurveyContext:
        return SurveyContext(self._server.runtime.now(), self._server.names, in_full=False)

    def _counts(self) -> ChannelStats:
        server = self._server
        puts_per_s, gets_per_s = self._rates()
        return replace(
            counts_of(server.state.queues),
            name=server.spec.name,
            held_by=server.runtime.name,
            num_delivered=server.num_delivered,
            puts_per_s=puts_per_s,
            gets_per_s=gets_per_s,
            producers=server.describe_producers(),
            users=tuple(
                ChannelUser(known.name, num_put=known.num_put, num_got=known.num_got)
                for known in server.clients.values()
            ),
        )

    def _reached(self) -> ChannelStats:
        """Return the counts, how each user is reached, and which items other nodes hold: each is looked at."""
        runtime, remote, counts = self._server.runtime, self._server.remote, self._counts()
        transports = runtime.transports()
        users = (
            replace(
                user,
                transport=transports.get(client, "not connected"),
                condition=runtime.condition(client),
            )
            for client, user in zip(self._server.clients, counts.users, strict=True)
        )
        elsewhere = () if remote is None else tuple(remote.describe())
        return replace(counts, users=tuple(users), elsewhere=elsewhere)

    def _others(self, told: AbstractSet[QueueName]) -> list[QueueName]:
        """Queues at which nobody waits: some whose items nobody gets, and those used last."""
        users = self._server.users
        used, gotten = users.last_used(len(told) + 2 * MAX_SHOWN), users.gotten_from()
        left = (
            queue.name
            for queue in self._survey.looked_at()
            if queue.fifo.num_items and queue.name not in gotten and queue.name not in told
        )
        some = heapq.nlargest(MAX_LEFT, left, key=lambda queue: used.get(queue, 0.0))
        newest = sorted(used.keys() - told, key=used.__getitem__, reverse=True)
        return list(dict.fromkeys((*some, *newest)))[:MAX_SHOWN]

    def _rates(self) -> tuple[float, float]:
        server, now = self._server, self._server.runtime.now()
        while server.samples and server.samples[0][0] < now - RATES_S:
            server.samples.popleft()
        end = server.sample(now)
        (began, puts, gets), (_, puts_now, gets_now) = server.samples[0] if server.samples else end, end
        span_s = max(now - began, 1.0)
        return max(0, puts_now - puts) / span_s, max(0, gets_now - gets) / span_s


def _used(queue: QueueStats, putters: Iterable[QueueUser], getters: Iterable[QueueUser]) -> QueueStats:
    return replace(queue, putters=tuple(putters), getters=tuple(getters))


class _List:
    """An answer about every queue, put together part by part.

    Args:
        request: what is answered.
        parts: each gives the next part.
        head: makes the head, in the end.
        submit: has something done soon.
    """

    def __init__(
        self,
        request: Request,
        parts: Sequence[Callable[[], list[Any]]],
        head: Callable[[], ChannelStats],
        submit: Callable[[Callable[[], None]], object],
    ) -> None:
        self._request = request
        self._parts = parts
        self._head = head
        self._submit = submit
        self._frames: list[Buffer] = []

    def go_on(self) -> None:
        """Add a part, and let others have their turn before the next, or answer."""
        parts, frames = self._parts, self._frames
        if parts:
            frames.append(encode_rows(parts[len(frames)]()))
        if len(frames) == len(parts):
            self._request.reply(self._head(), frames)
        elif not self._request.is_cancelled:
            self._submit(self.go_on)


def watch_channel(session: Session, spec: ChannelSpec, activity: Say, stats: Say) -> Callable[[], None]:
    """Let a channel of this process be seen until the function that is returned is called, once or again.

    Args:
        session: this process's.
        spec: the channel.
        activity: says what goes on in it, on the I/O thread; None: it is no more.
        stats: says how much is in it and went through it, likewise.
    """
    forget = session.service(OwnActivity).add(partial(_add, activity))
    uncount = session.service(OwnStats).add(partial(_add, stats))
    watch = _StallWatch(session, spec, activity) if spec.stall_after_s else None

    def stop() -> None:
        forget()
        uncount()
        if watch is not None:
            watch.is_over = True

    return stop


def _add(say: Callable[[], Any], told: Told) -> Told:
    said = say()
    return told if said is None else replace(told, channels=(*told.channels, said))


class _StallWatch:
    """Looks again and again who waits at a channel, on the I/O thread."""

    def __init__(self, session: Session, spec: ChannelSpec, activity: Say) -> None:
        self.is_over = False
        self._session = session
        self._name = spec.name
        self._activity = activity
        self._waiters = WaitersOfChannel(spec.stall_after_s)
        self._pause_s = spec.stall_after_s / 4
        session.messenger.submit(self._begin)

    def _begin(self) -> None:
        self._session.messenger.call_later(self._pause_s, self._look)

    def _look(self) -> None:
        if self.is_over or self._session.messenger.why_closed:
            return
        try:
            self._tell()
        except Exception:  # noqa: BLE001 - whatever it is: the next look may go well
            _log.exception("channel '%s': who waits there could not be found out", self._name)
        finally:
            self._begin()

    def _tell(self) -> None:
        found = self._activity()
        for late in () if found is None else self._waiters.late(found, self._session.messenger.now()):
            stall = Stall("", self._name, late.operation, (late.who,), late.since_s)
            tell_stall(self._session, stall)
