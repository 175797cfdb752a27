"""A channel in a few numbers: what its process says of it when the job is looked at, every second perhaps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from rlinf_scheduler.channel.spec import ChannelSpec
from rlinf_scheduler.observe.status import MAX_QUEUES, ChannelStatus, QueueStatus, WaitingOperation
from rlinf_scheduler.observe.vitals import ChannelVitals
from rlinf_scheduler.queueing import ChannelState
from rlinf_scheduler.wording import counted, size_text


class ClientCounts(NamedTuple):
    """A client: its process's id and name, and how many items it has put and was given."""

    client: str
    name: str
    num_put: int
    num_got: int


def channel_vitals(
    spec: ChannelSpec,
    state: ChannelState,
    clients: Iterable[ClientCounts],
    *,
    num_got: int,
    max_bytes: int,
    now: float,
) -> ChannelVitals:
    """Count what is in a channel and what went through it.

    Args:
        spec: the channel.
        state: its queues.
        clients: who uses it.
        num_got: how many items were delivered.
        max_bytes: how many bytes it may hold; 0 is unbounded.
        now: the present moment, on the channel's clock.
    """
    found = state.overview(MAX_QUEUES)
    known = {each.client: each for each in clients}
    names = {client: each.name for client, each in known.items()}
    per_queue = f"{counted(spec.maxsize, 'item')} a queue" if spec.maxsize else ""
    status = ChannelStatus(
        spec.name,
        "",
        depth=found.totals.num_items,
        bytes=state.total_held_bytes,
        max=", ".join(filter(None, [per_queue, size_text(max_bytes) if max_bytes else ""])),
        num_put=state.num_accepted,
        num_got=num_got,
        bytes_put=state.accepted_bytes,
        oldest_age_s=_age(found.oldest_since, now),
        leased=found.totals.num_leased,
        waiting=tuple(
            WaitingOperation(
                names.get(each.client, ""), repr(queue), each.operation, max(0.0, now - each.since)
            )
            for queue, each in found.waiting
        ),
        queues=tuple(
            QueueStatus(repr(queue.name), queue.num_items, _age(queue.oldest_since, now))
            for queue in found.busiest
        ),
        num_queues=found.totals.num_queues,
    )
    putters = {each.name: each.num_put for each in known.values() if each.num_put}
    getters = {each.name: each.num_got for each in known.values() if each.num_got}
    return ChannelVitals(status, putters, getters)


def _age(since: float | None, now: float) -> float | None:
    return None if since is None else max(0.0, now - since)
