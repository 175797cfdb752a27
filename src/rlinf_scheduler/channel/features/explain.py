"""Questions about a channel: how much is in its queues, who waits for what, and since when."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from rlinf_scheduler.channel import control_wire, wire
from rlinf_scheduler.channel.server import RATES_S, ChannelServer
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.peer import Request
from rlinf_scheduler.queueing import QueueDepth, QueueSnapshot, Tapped, Unfinished
from rlinf_scheduler.wording import list_names

# So many queues are told of in one step: what they hold; and all that there is to say.
NUM_DEPTHS, NUM_REPORTS = 256, 64


class Explain:
    """The handlers of questions about the channel at one server.

    What is said of every queue is put together part by part: between two parts others have their turn.
    """

    def __init__(self, server: ChannelServer) -> None:
        self._server = server
        self._state = server.state
        self._submit = server.beside.submit
        server.handlers |= {
            control_wire.Query: self._query,
            control_wire.Stats: self._list_depths,
            control_wire.Explain: self._explain,
        }

    def _list_depths(self, request: Request) -> None:
        parts = self._state.depths_in_parts(NUM_DEPTHS)
        _List(request, parts, _depth, self._counts, self._submit).go_on()

    def _explain(self, request: Request) -> None:
        clients = self._server.names
        told = partial(_queue, clients=clients, now=self._server.runtime.now())
        parts, head = self._state.report_in_parts(NUM_REPORTS), partial(self._explanation, clients)
        _List(request, parts, told, head, self._submit).go_on()

    def _query(self, request: Request) -> None:
        name = wire.as_name(request.head.queue)
        num_dropped = self._state.num_dropped(name.subscription) if isinstance(name, Tapped) else 0
        request.reply(
            control_wire.QueueState(self._state.num_items(name), self._state.is_full(name), num_dropped)
        )

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

    def _explanation(self, clients: Mapping[str, str]) -> control_wire.Explanation:
        server, state, runtime = self._server, self._state, self._server.runtime
        now = runtime.now()
        server.samples.append(server.sample(now))
        puts_per_s, gets_per_s = _rates(server.samples, now)
        transports = runtime.transports()
        return control_wire.Explanation(
            held_by=runtime.name,
            closed=state.closed,
            num_accepted=state.num_accepted,
            num_items=state.totals.num_items,
            held_bytes=state.total_held_bytes,
            num_lost=state.num_lost,
            elsewhere=[] if server.remote is None else server.remote.describe(),
            max_bytes=server.max_bytes,
            puts_per_s=puts_per_s,
            gets_per_s=gets_per_s,
            producers=server.describe_producers(),
            peers=[
                control_wire.UserNote(
                    name, transports.get(client, "not connected"), runtime.condition(client)
                )
                for client, name in clients.items()
            ],
        )


def _rates(samples: deque[tuple[float, int, int]], now: float) -> tuple[float, float]:
    while len(samples) > 1 and samples[0][0] < now - RATES_S:
        samples.popleft()
    (began, puts, gets), (_, puts_now, gets_now) = samples[0], samples[-1]
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
