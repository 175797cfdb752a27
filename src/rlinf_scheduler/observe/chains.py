"""From one wait to what it comes to: who waits for whom in between. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from rlinf_scheduler.observe.culprits import Culprit
from rlinf_scheduler.observe.graph import Blocked, WaitGraph


class Chain(NamedTuple):
    """A wait, and what that comes to.

    Attributes:
        links: the wait, the wait of who could end it, and so on; none where the process does not wait.
        end: what all of them wait for in the end; None where that is not known.
    """

    links: tuple[Blocked, ...] = ()
    end: Culprit | None = None


def chain_of(
    graph: WaitGraph, culprits: Sequence[Culprit], process: str, thread: int = 0, waited_s: float = 0.0
) -> Chain:
    """The shortest way from a process's wait to the most probable culprit that it leads to.

    Args:
        graph: who waits for whom.
        culprits: the most probable first.
        process: who waits.
        thread: in which of its threads; if none of that number waits, in the one that waits for longest.
        waited_s: for how long, in seconds: an event loop's thread has a wait for each of its tasks.
    """
    waits = graph.blocked.get(process, ())
    there = [each for each in waits if each.thread == thread]
    if there and waited_s:
        first: Blocked | None = min(there, key=lambda each: abs(each.wait.since_s - waited_s))
    else:
        first = _longest(there or waits)
    if first is None:
        return Chain((), next((each for each in culprits if process in (each.address, *each.cycle)), None))
    ways = _ways(graph, first)
    for culprit in culprits:
        ends = [name for name in (culprit.address, *culprit.cycle) if name in ways]
        if ends and process in culprit.cycle:
            return Chain((first,), culprit)
        if ends:
            return Chain((first, *_links(graph, min((ways[end] for end in ends), key=len))), culprit)
    return Chain((first,))


def _longest(waits: Sequence[Blocked]) -> Blocked | None:
    return max(waits, key=lambda each: each.wait.since_s, default=None)


def _ways(graph: WaitGraph, first: Blocked) -> dict[str, tuple[str, ...]]:
    """By whom a wait leads to each process that it leads to, that one included; the shortest ways."""
    ways: dict[str, tuple[str, ...]] = {end: (end,) for end in first.ends.processes}
    front = list(ways)
    while front:
        following = []
        for name in front:
            for end in graph.ends.get(name, ()):
                if end not in ways:
                    ways[end] = (*ways[name], end)
                    following.append(end)
        front = following
    return ways


def _links(graph: WaitGraph, way: Sequence[str]) -> list[Blocked]:
    """The wait of each of them that the next one could end; the longest, of several."""
    links = []
    for name, end in itertools.pairwise(way):
        found = _longest([each for each in graph.blocked[name] if end in each.ends.processes])
        if found is not None:
            links.append(found)
    return links
