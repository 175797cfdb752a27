"""Names in order, so that none is looked for among all of them: which begin alike, and which are the nearest to one."""

from __future__ import annotations

import difflib
from bisect import bisect_left, insort
from collections.abc import Iterator

from rlinf_scheduler.wording import natural_order

# Of the names before and after one, read from either end, so many are candidates for what was meant by it.
NEIGHBOURS = 8


class Names:
    """A set of names. What each step takes grows with what it gives, not with how many names there are.

    >>> names = Names()
    >>> for name in ("rollout:0", "actor:0", "weights/policy"):
    ...     names.add(name)
    >>> names.nearest("rolout:0", 2)
    ['rollout:0', 'actor:0']
    >>> list(names.beginning_with("rollout"))
    ['rollout:0']
    """

    def __init__(self) -> None:
        self._sorted: list[str] = []
        # By kind, which is what stands before the last slash: the names, and the same read backwards.
        self._kinds: dict[str, tuple[list[str], list[str]]] = {}

    def add(self, name: str) -> None:
        """Add a name that is not there."""
        insort(self._sorted, name)
        forwards, backwards = self._kinds.setdefault(_kind(name), ([], []))
        insort(forwards, name)
        insort(backwards, name[::-1])

    def discard(self, name: str) -> None:
        """Remove a name that is there."""
        kind = _kind(name)
        forwards, backwards = self._kinds[kind]
        _remove(self._sorted, name)
        _remove(forwards, name)
        _remove(backwards, name[::-1])
        if not forwards:
            del self._kinds[kind]

    def beginning_with(self, prefix: str, after: str = "") -> Iterator[str]:
        """The names that begin so, in order, from the one after that name on."""
        names = self._sorted
        place = bisect_left(names, max(prefix, after))
        while place < len(names) and names[place].startswith(prefix):
            if names[place] != after:
                yield names[place]
            place += 1

    def nearest(self, name: str, count: int) -> list[str]:
        """Up to so many names of its kind: first those that it may be a misspelling of, then others from around it."""
        forwards, backwards = self._kinds.get(_kind(name), ([], []))
        around = [*_around(forwards, name), *(each[::-1] for each in _around(backwards, name[::-1]))]
        names = sorted(dict.fromkeys(around), key=natural_order)
        nearest = difflib.get_close_matches(name, names, n=count, cutoff=0.5)
        others = (other for other in names if other not in nearest)
        return [*sorted(nearest, key=natural_order), *others][:count]


def _kind(name: str) -> str:
    # Names with a slash are of kinds of their own: weights, or the library's notes, such as which groups there are.
    return name.rpartition("/")[0]


def _around(names: list[str], name: str) -> list[str]:
    """The names that stand around the place of one."""
    place = bisect_left(names, name)
    first = min(max(0, place - NEIGHBOURS), max(0, len(names) - 2 * NEIGHBOURS))
    return names[first : first + 2 * NEIGHBOURS]


def _remove(names: list[str], name: str) -> None:
    del names[bisect_left(names, name)]
