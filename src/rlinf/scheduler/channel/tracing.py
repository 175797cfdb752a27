"""What an item was made of: what its producer says, or has taken for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rlinf.scheduler.channel import wire
from rlinf.scheduler.channel.batch import Delivery
from rlinf.scheduler.errors import ChannelArgumentError
from rlinf.scheduler.tape.work import current_step, current_work

# An item says so many sources itself, and of more, how many.
MAX_NAMED = 4096


def note_taken(items: Iterable[Any]) -> None:
    """This thread or task has taken what was delivered: what it puts next is made of that."""
    if isinstance(items, Delivery) and items.told.ids:
        current_work().take(items.told.ids)


def own_trace() -> wire.Trace | None:
    """What an item that this thread or task puts now is made of; None if it has taken nothing that is recorded."""
    work = current_work()
    if not work.sources and work.step is None:
        return None
    work.put()
    return wire.Trace(list(work.sources), work.num_left_out, work.step)


def trace_of(channel: str, sources: Any) -> wire.Trace:
    """What an item is made of whose producer says it.

    Args:
        channel: into which it is put, for messages.
        sources: ids of items, and what has `ids`, such as batches; or one of these alone.

    Raises:
        ChannelArgumentError: something in it is neither.
    """
    ids = _ids(channel, sources)
    return wire.Trace(ids[:MAX_NAMED], max(0, len(ids) - MAX_NAMED), current_step())


def _ids(channel: str, sources: Any) -> list[wire.ItemId]:
    if isinstance(sources, wire.ItemId):
        return [sources]
    ids = getattr(sources, "ids", None)
    if ids is None and isinstance(sources, list | tuple):
        return [one for source in sources for one in _ids(channel, source)]
    if ids is None:
        problem = f"sources are batches, leases, or ids of their items (`batch.ids`), not {sources!r}"
        raise ChannelArgumentError(channel, problem)
    return list(ids)
