"""What a channel's server says of itself to whoever asks what goes on. On the I/O thread only."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from rlinf_scheduler.channel import control_wire, wire
from rlinf_scheduler.channel.remote_items import RemoteItems
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.peer import Request
from rlinf_scheduler.comm.runtime import Runtime
from rlinf_scheduler.queueing import (
    ChannelState,
    Producers,
    QueueDepth,
    QueueName,
    QueueSnapshot,
    Tapped,
    Unfinished,
)
from rlinf_scheduler.wording import list_names

# So many queues are told of in one step: what they hold; and all that there is to say.
NUM_DEPTHS, NUM_REPORTS = 256, 64
# Rates are of so many seconds, sampled so often.
RATES_S = 10.0
SAMPLE_S = 0.5


class Explainer:
    """Keeps the clock of the channel's queues, and what rates are made of.

    Args:
        messenger: knows how clients are reached.
        state: the channel's queues.
        max_bytes: how many bytes they may hold; 0 is unbounded.
        producers: those of the channel.
        remote: items that other nodes hold.
        counts_producers: whether they are counted.
        submit: has something done soon, beside what happens to the channel.

    Attributes:
        num_delivered: items that went to getters.
        now: when something happened last.
    """

    def __init__(
        self,
        messenger: Runtime,
        state: ChannelState,
        max_bytes: int,
        producers: Producers,
        remote: RemoteItems,
        *,
        counts_producers: bool,
        submit: Callable[[Callable[[], None]], object],
    ) -> None:
        self._messenger = messenger
        self._submit = submit
        self._state = state
        self._max_bytes = max_bytes
        self._producers = producers
        self._remote = remote
        self._counts_producers = counts_producers
        self.now = messenger.now()
        self.num_delivered = 0
        # (when, items put until then, items delivered until then)
        self._samples: deque[tuple[float, int, int]] = deque(maxlen=int(RATES_S / SAMPLE_S) + 1)
        self._next_sample = 0.0

    def tick(self) -> None:
        """Something is about to happen."""
        now = self.now = self._messenger.now()
        self._state.set_clock(now)
        if now >= self._next_sample:
            self._next_sample = now + SAMPLE_S
            self._samples.append(self._sample(now))

    def answer(self, request: Request, clients: Mapping[str, str]) -> None:
        """Answer a client; `clients` are the names of the processes that use the channel, by process id.

        What is said of every queue is put together part by part: between two parts others have their turn.
        """
        state = self._state
        match request.head:
            case control_wire.Query(name):
                request.reply(self._query(wire.as_name(name)))
            case control_wire.Stats():
                _List(request, state.depths_in_parts(NUM_DEPTHS), _depth, self._counts, self._submit).go_on()
            case control_wire.Explain():
                told = partial(_queue, clients=clients, now=self._messenger.now())
                parts, head = state.report_in_parts(NUM_REPORTS), partial(self._explain, clients)
                _List(request, parts, told, head, self._submit).go_on()

    def _query(self, name: QueueName) -> control_wire.QueueState:
        num_dropped = self._state.num_dropped(name.subscription) if isinstance(name, Tapped) else 0
        return control_wire.QueueState(self._state.num_items(name), self._state.is_full(name), num_dropped)

    def _counts(self) -> control_wire.ChannelCounts:
        state, totals = self._state, self._state.totals
        return control_wire.ChannelCounts(
            state.num_accepted,
            state.accepted_bytes,
            state.closed,
            state.num_lost,
            state.lost_bytes,
            totals.num_items,
            totals.queued_bytes,
            totals.num_dead,
        )

    def _explain(self, clients: Mapping[str, str]) -> control_wire.Explanation:
        now = self._messenger.now()
        self._samples.append(self._sample(now))
        puts_per_s, gets_per_s = self._rates(now)
        transports = self._messenger.transports()
        state = self._state
        return control_wire.Explanation(
            held_by=self._messenger.name,
            closed=state.closed,
            num_accepted=state.num_accepted,
            num_items=state.totals.num_items,
            held_bytes=state.total_held_bytes,
            num_lost=state.num_lost,
            elsewhere=self._remote.describe(),
            max_bytes=self._max_bytes,
            puts_per_s=puts_per_s,
            gets_per_s=gets_per_s,
            producers=self.producers,
            peers=[
                control_wire.UserNote(
                    name, transports.get(client, "not connected"), self._messenger.condition(client)
                )
                for client, name in clients.items()
            ],
        )

    @property
    def producers(self) -> str:
        """Name the producers that are not done; "" where producers are not counted."""
        return self._producers.describe() if self._counts_producers else ""

    def _sample(self, now: float) -> tuple[float, int, int]:
        return now, self._state.num_accepted, self.num_delivered

    def _rates(self, now: float) -> tuple[float, float]:
        while len(self._samples) > 1 and self._samples[0][0] < now - RATES_S:
            self._samples.popleft()
        (began, puts, gets), (_, puts_now, gets_now) = self._samples[0], self._samples[-1]
        span_s = max(now - began, 1.0)
        return max(0, puts_now - puts) / span_s, max(0, gets_now - gets) / span_s


class _List:
    """An answer about every queue, put together part by part.

    Args:
        request: what is answered.
        parts: each gives the next part.
        told: makes what is sent of each queue.
        head: makes the head, in the end.
        submit: has something done soon.
    """

    def __init__(
        self,
        request: Request,
        parts: Sequence[Callable[[], list[Any]]],
        told: Callable[[Any], msgspec.Struct],
        head: Callable[[], msgspec.Struct],
        submit: Callable[[Callable[[], None]], object],
    ) -> None:
        self._request = request
        self._parts = parts
        self._told = told
        self._head = head
        self._submit = submit
        self._frames: list[Buffer] = []

    def go_on(self) -> None:
        """Add a part, and let others have their turn before the next, or answer."""
        parts, frames = self._parts, self._frames
        if parts:
            part = parts[len(frames)]()
            frames.append(msgspec.msgpack.encode([self._told(each) for each in part]))
        if len(frames) == len(parts):
            self._request.reply(self._head(), frames)
        elif not self._request.is_cancelled:
            self._submit(self.go_on)


def _depth(depth: QueueDepth) -> control_wire.Depth:
    return control_wire.Depth(
        depth.name,
        depth.num_items,
        depth.weight,
        depth.size_bytes,
        depth.num_getters,
        depth.num_putters,
        depth.num_delivering,
        depth.num_leased,
        depth.num_dead,
        depth.num_lost,
        list(depth.groups),
        depth.num_dropped,
    )


def _queue(report: QueueSnapshot, clients: Mapping[str, str], now: float) -> control_wire.ExplainedQueue:
    def travelling(waiting: Unfinished) -> control_wire.WaitingNote:
        who = clients.get(waiting.client, "")
        return control_wire.WaitingNote(who, waiting.operation, max(0.0, now - waiting.since))

    return control_wire.ExplainedQueue(
        _depth(report.depth),
        None if report.oldest_since is None else max(0.0, now - report.oldest_since),
        [travelling(each) for each in report.waiting],
        [travelling(each) for each in report.held],
        report.limits,
        report.ended,
        report.shards,
        report.admission,
        _of_subscription(report, clients),
    )


def _of_subscription(report: QueueSnapshot, clients: Mapping[str, str]) -> str:
    if not report.terms:
        return ""
    members = sorted({clients.get(client, "") for client in report.members})
    return f"{report.terms}; read by {list_names(members) if members else 'nobody at present'}"
