"""Who could end a wait at a channel's queue, and what there is to say of the queue. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from rlinf_scheduler.comm.waits import Wait
from rlinf_scheduler.queueing import ChannelStats, QueueDepth, QueueStats, QueueUser, Waiting
from rlinf_scheduler.wording import counted, name_list, nearest_name

# Of many names, so many are written out.
MAX_NAMES = 6
# What was delivered so long ago, in seconds, should have been taken.
ARRIVED_S = 1.0
# So much is said of what others have.
_MAX_HELD = 3
# How the leave to make an item is told of among what is held.
_SLOT = "slot "


def some_names(names: Iterable[str]) -> str:
    """Names in a sentence, the first of many.

    >>> some_names(["a:0", "a:1"]), some_names(f"a:{rank}" for rank in range(8))
    ('a:0 and a:1', 'a:0, a:1, a:2, a:3, a:4, a:5 and 2 more')
    """
    every = list(dict.fromkeys(names))
    more = [f"{len(every) - MAX_NAMES} more"] if len(every) > MAX_NAMES else []
    return name_list([*every[:MAX_NAMES], *more])


@dataclass(frozen=True, slots=True)
class Ends:
    """What could end a wait.

    Attributes:
        processes: which could.
        because: what there is to say of it, phrases.
        is_hopeless: nobody who is there will, as far as that shows.
        title: what those processes are to the wait, e.g. "its producers".
        gone: those of them that are gone.
    """

    processes: tuple[str, ...] = ()
    because: tuple[str, ...] = ()
    is_hopeless: bool = False
    title: str = ""
    gone: tuple[str, ...] = ()


def of_queue(channel: ChannelStats, process: str, wait: Wait, present: Collection[str]) -> Ends:
    """What could end a wait at a queue.

    Args:
        channel: its channel.
        process: who waits.
        wait: which.
        present: the processes that are there, answering or not.
    """
    if (
        not wait.queue
    ):  # of an acknowledgement, say: its I/O thread answers, and has answered who asked for this
        return Ends((), (f"{channel.held_by}, which holds it, has not answered yet",))
    queue = next((each for each in channel.shown if repr(each.depth.name) == wait.queue), None)
    if queue is None and channel.num_untold:
        told = f"its queue is one of {channel.num_untold} more of which {channel.held_by} has not told"
        return Ends((), (f"{told}: `channel.explain()` lists all",))
    queue = queue or QueueStats(QueueDepth(wait.queue))
    if wait.detail in ("put", "ask", "admit"):
        return _of_put(queue, wait, present)
    return _of_get(channel, queue, process, wait, present)


def _of_put(queue: QueueStats, wait: Wait, present: Collection[str]) -> Ends:
    asked = wait.detail == "ask"
    if wait.detail == "put" and not _may_wait(queue):
        return Ends((), ("it is on its way: no put waits there",))
    because = [] if asked else [_how_full(queue) if wait.detail == "put" else "no slot is free"]
    holders = [held.who for held in queue.held if held.who in present]
    because += islice(_who_has(queue.held), _MAX_HELD)
    takers = [user.process for user in queue.getters if user.process in present and not user.is_gone]
    if not takers and not holders:
        word = "answered" if asked else "taken anything"
        because.append(
            f"nobody who is there has ever {word} there" if not queue.getters else _who_left(queue.getters)
        )
        return Ends((), tuple(because), is_hopeless=True)
    lost = _lost(queue.getters, present)
    return Ends((*holders, *sorted(takers)), tuple(because), title="its consumers", gone=lost)


def _of_get(
    channel: ChannelStats, queue: QueueStats, process: str, wait: Wait, present: Collection[str]
) -> Ends:
    because = [_how_much(queue, wait)]
    if queue.ended:
        because.append("the queue has ended")
    held = [each for each in queue.held if not _arrives(each, process)]
    holders = [each for each in held if each.who in present]
    because += islice(_who_has(holders), _MAX_HELD)
    putters = [user.process for user in queue.putters if user.process in present and not user.is_gone]
    if putters:
        others = {each.who for each in holders}.difference(putters)
        title = "its producers and who has items of it" if others else "its producers"
        processes = (*sorted(putters), *sorted(others))
        because += _elsewhere(channel, queue)
        return Ends(processes, tuple(because), title=title, gone=_lost(queue.putters, present))
    if queue.putters:
        because.append(_who_left(queue.putters))
    else:
        because.append("nobody has ever put into it")
    because += _elsewhere(channel, queue)
    if channel.producers:
        because.append(channel.producers)
    return Ends(tuple(each.who for each in holders), tuple(because), is_hopeless=not holders)


def _may_wait(queue: QueueStats) -> bool:
    return bool(queue.limits) or any(each.operation.startswith("put") for each in queue.waiting)


def _who_has(held: Iterable[Waiting]) -> Iterator[str]:
    """Who has what of a queue and since when; slots of a process together, the oldest of whom is told."""
    slots: dict[str, list[float]] = {}
    for each in held:
        if each.operation.startswith(_SLOT):
            slots.setdefault(each.who, []).append(each.since_s)
        else:
            yield f"{each.who} has {each.operation} for {each.since_s:.0f} s"
    for process, ages in slots.items():
        several = f"{len(ages)} slots for items that it makes, the oldest"
        what = several if len(ages) > 1 else "a slot for an item that it makes,"
        yield f"{process} has {what} for {max(ages):.0f} s"


def _arrives(held: Waiting, process: str) -> bool:
    """Whether items are on their way: to who waits itself, or to another one who has them in a moment."""
    return held.operation.startswith("delivery") and (held.who == process or held.since_s < ARRIVED_S)


def _how_much(queue: QueueStats, wait: Wait) -> str:
    if wait.detail == "get_group" and queue.depth.num_items >= wait.needs:
        return f"there are {counted(queue.depth.num_items, 'item')}, but no group is complete"
    if wait.needs > 0:
        has = queue.depth.num_items if wait.counts_items else queue.depth.weight
        return f"{has:,g} of {wait.needs:,g} are there"
    there = "there is" if queue.depth.num_items == 1 else "there are"
    return f"{there} {counted(queue.depth.num_items, 'item')}" if queue.depth.num_items else "it is empty"


def _how_full(queue: QueueStats) -> str:
    full = f" ({' and '.join(queue.limits)})" if queue.limits else ""
    return f"the queue is full with {counted(queue.depth.num_items, 'item')}{full}"


def _who_left(users: tuple[QueueUser, ...]) -> str:
    names = sorted({user.process for user in users})
    return f"{some_names(names)}, who used it, {'has' if len(names) == 1 else 'have'} ended"


def _lost(users: Collection[QueueUser], present: Collection[str]) -> tuple[str, ...]:
    """Those who used a queue and are gone."""
    gone = (user.process for user in users if user.is_gone or user.process not in present)
    return tuple(dict.fromkeys(gone))


def _elsewhere(channel: ChannelStats, queue: QueueStats) -> Iterator[str]:
    """Items that lie in other queues of the channel, which may be where they are missed."""
    for other in channel.shown:
        name, num_items = other.depth.name, other.depth.num_items
        if name != queue.depth.name and num_items and not other.getters:
            who = sorted({user.process for user in other.putters})
            by = f", put by {some_names(who)}" if who else ""
            verb = "lies" if num_items == 1 else "lie"
            there = f"{counted(num_items, 'item')} {verb} in queue {name!r}{by}, where nobody gets any"
            near = nearest_name(repr(name), [repr(queue.depth.name)])
            yield f"{there} (a misspelt {queue.depth.name!r}?)" if near else there
