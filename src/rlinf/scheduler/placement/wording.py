"""Numbers and names in sentences for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

_SHOWN_RANGES = 6


def rank_range(first: int, last: int) -> str:
    """Two ranks and what lies between them: "3", "0-7"."""
    return str(first) if first == last else f"{first}-{last}"


def rank_ranges(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending numbers as first and last of neighbours.

    >>> rank_ranges((0, 1, 2, 5))
    [(0, 2), (5, 5)]
    """
    if not numbers:
        return []
    breaks = [index for index, (a, b) in enumerate(pairwise(numbers), start=1) if b != a + 1]
    starts, ends = [0, *breaks], [*breaks, len(numbers)]
    return [(numbers[a], numbers[b - 1]) for a, b in zip(starts, ends, strict=True)]


def ranges_text(numbers: Sequence[int]) -> str:
    """Ascending numbers, neighbours joined: (0, 1, 2, 5) is "0-2,5"."""
    return ",".join(rank_range(first, last) for first, last in rank_ranges(numbers))


def node_list(node_ranks: Iterable[int]) -> str:
    """Nodes in a sentence, the first of very many.

    >>> node_list([2, 0, 1, 5]), node_list([3]), node_list(range(0, 40, 2))
    ('nodes 0-2, 5', 'node 3', 'nodes 0, 2, 4, 6, 8, 10 and 14 more')
    """
    ordered = sorted(node_ranks)
    ranges = rank_ranges(ordered)
    text = ", ".join(rank_range(first, last) for first, last in ranges[:_SHOWN_RANGES])
    rest = sum(last - first + 1 for first, last in ranges[_SHOWN_RANGES:])
    return f"node{'s' if len(ordered) > 1 else ''} {text}" + (f" and {rest} more" if rest else "")


def name_list(names: Sequence[str]) -> str:
    """Names in a sentence.

    >>> name_list(["actor", "critic", "env"])
    'actor, critic and env'
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def printable(text: str) -> str:
    r"""The text without what would break a line or steer a terminal: a name may hold anything.

    >>> printable("actor\n")
    'actor\ufffd'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def counted(number: int, noun: str, plural: str = "s") -> str:
    """A number with its noun: "1 node", "2 nodes"."""
    return f"{number} {noun}{'' if number == 1 else plural}"
