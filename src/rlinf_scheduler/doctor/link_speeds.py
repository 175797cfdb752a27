"""Which pairs of nodes probe their link when, and which links are slow beside the others. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# So many times slower than the faster half is worth a word: noise of a busy machine is not.
SLOW_TIMES = 10.0

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class SlowLinks:
    """Links that share an end and a direction, and are slow beside the others.

    Attributes:
        node: the end that they share.
        peers: their other ends, ascending.
        is_outgoing: whether they are slow from `node` to these; else the other way.
        bytes_per_s: how fast they are; the median.
        usual_bytes_per_s: how fast the faster half of all links is; the median.
    """

    node: int
    peers: tuple[int, ...]
    is_outgoing: bool
    bytes_per_s: float
    usual_bytes_per_s: float


def rounds_of(nodes: Sequence[int], partners: int) -> list[list[Pair]]:
    """Pair each node with so many others, or with all, in rounds in which no node takes part twice.

    The circle method of round-robin tournaments: one stays, the others move on by one place.

    >>> rounds_of([0, 1, 2, 3], partners=2)
    [[(0, 3), (1, 2)], [(0, 2), (1, 3)]]
    """
    seats: list[int | None] = [*nodes, *([None] if len(nodes) % 2 else [])]
    rounds: list[list[Pair]] = []
    for _ in range(min(len(seats) - 1, partners)):
        half = len(seats) // 2
        across = zip(seats[:half], reversed(seats[half:]), strict=True)
        rounds.append(
            [
                (min(one, other), max(one, other))
                for one, other in across
                if one is not None and other is not None
            ]
        )
        seats[1:] = [seats[-1], *seats[1:-1]]
    return rounds


def slow_links(bytes_per_s: Mapping[Pair, float]) -> list[SlowLinks]:
    """The links that are `SLOW_TIMES` slower than the median of the faster half; those of one node together.

    Args:
        bytes_per_s: how fast each link is, by where it begins and where it ends.

    >>> fast = dict.fromkeys([(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)], 1e9)
    >>> slow_links(fast)
    []
    >>> slow_links(fast | {(2, 0): 1e7, (2, 1): 3e7})
    [SlowLinks(node=2, peers=(0, 1), is_outgoing=True, bytes_per_s=20000000.0, \
usual_bytes_per_s=1000000000.0)]
    """
    ordered = sorted(bytes_per_s.values())
    if len(ordered) < 2:
        return []
    usual = statistics.median(ordered[len(ordered) // 2 :])
    slow = {link for link, speed in bytes_per_s.items() if speed * SLOW_TIMES < usual}
    found = []
    while slow:
        # The end that most of them share is the likeliest culprit.
        ends = Counter((link[side], side) for link in slow for side in (0, 1))
        node, side = max(ends, key=lambda end: (ends[end], -end[1], -end[0]))
        links = sorted(link for link in slow if link[side] == node)
        slow.difference_update(links)
        peers = tuple(link[1 - side] for link in links)
        speed = statistics.median(bytes_per_s[link] for link in links)
        found.append(SlowLinks(node, peers, side == 0, speed, usual))
    return found
