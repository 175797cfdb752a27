"""What an item was made of: what its producer says, or has taken for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlinf_scheduler.channel import wire
from rlinf_scheduler.channel.arguments import MAX_INTEGER
from rlinf_scheduler.errors import ChannelArgumentError
from rlinf_scheduler.tape.work import current_step, current_work

# An item says so many sources itself, and of more, how many; with so many bytes of names.
MAX_NAMED = 4096
MAX_NAMES_BYTES = 4 << 20


def own_trace() -> wire.Trace | None:
    """Return the origins of an item that this thread or task puts now; None if it has taken nothing recorded."""
    work = current_work()
    if not work.sources and work.step is None:
        return None
    work.put()
    return wire.Trace(list(work.sources), work.num_left_out, work.step)


def trace_of(channel: str, sources: Any) -> wire.Trace:
    """Return the origins of an item as its producer names them.

    Args:
        channel: into which it is put, for messages.
        sources: ids of items, and what has `ids`, such as batches; or one of these alone.

    Raises:
        ChannelArgumentError: something in it is neither.
    """
    ids = _ids(channel, sources)
    _check_ids(channel, ids[:MAX_NAMED])
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


def _check_ids(channel: str, ids: Sequence[Any]) -> None:
    """Raise unless a message can carry them."""
    if not all(type(each) is wire.ItemId for each in ids):
        strange = next(each for each in ids if type(each) is not wire.ItemId)
        raise ChannelArgumentError(channel, f"sources are ids of items (`batch.ids`), not {strange!r}")
    texts = [text for each in ids for text in each[:2]]
    numbers = [each.number for each in ids]
    if not all(type(text) is str for text in texts) or not all(_is_number(number) for number in numbers):
        raise ChannelArgumentError(channel, "sources are ids of items as a batch has them (`batch.ids`)")
    try:
        size_bytes = len("".join(texts).encode())
    except UnicodeEncodeError as error:
        raise ChannelArgumentError(channel, f"sources: the name of a producer is no text: {error}") from error
    if size_bytes > MAX_NAMES_BYTES:
        limit = f"{MAX_NAMES_BYTES >> 20} MiB"
        raise ChannelArgumentError(
            channel, f"sources have {size_bytes} bytes of names; they may have {limit}"
        )


def _is_number(number: Any) -> bool:
    return type(number) is int and 0 <= number <= MAX_INTEGER
