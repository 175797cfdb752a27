"""Names of a directory: those that are there, in order, and for a while those whose process is gone.

Who looks one up that is gone is told at once. A worker below another is gone with that one; its note goes when
another process takes that name.
"""

from __future__ import annotations

import difflib
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from rlinf_scheduler.addresses import parent_name
from rlinf_scheduler.wording import natural_order

# Of the names before and after one, read from either end, so many are candidates for what was meant by it.
NEIGHBOURS = 8
# More than the ranks of a job, all of which may be gone, or launched again, at a time.
MAX_NAMES = 1 << 16
MAX_AGE_S = 600.0


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


class GoneNames:
    """The tombstones of a directory: its notes about names that it had.

    Args:
        now: the clock, in seconds.

    >>> gone = GoneNames(lambda: 0.0)
    >>> gone.note("rollout:3", "it left")
    >>> gone.reason("rollout:3")
    'it left'
    >>> gone.expect(["rollout:3"])
    >>> gone.note("rollout:3", "its process is gone")  # the old one, noticed late
    >>> gone.reason("rollout:3") is None
    True
    >>> gone.note("rollout:4", "it was killed")
    >>> gone.reason("rollout:4/0")
    "'rollout:4', below which it was, is gone: it was killed"
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._notes: OrderedDict[str, tuple[float, str]] = OrderedDict()
        # Of workers below one, by that one's name; a note goes with the notes above it.
        self._below: OrderedDict[str, set[str]] = OrderedDict()
        self._expected: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._notes)

    def note(self, name: str, reason: str) -> None:
        """Remember that whoever had `name` is gone, unless another is expected to take it."""
        if name in self._expected:
            return
        self._notes.pop(name, None)
        self._notes[name] = (self._now(), reason)
        if above := parent_name(name):
            self._below.setdefault(above, set()).add(name)
            _bound(self._below)
        _bound(self._notes)
        while self._is_old(next(iter(self._notes.values()))):
            self._notes.popitem(last=False)

    def reason(self, name: str) -> str | None:
        """Why the process of `name` is gone; None if that is not known (any more)."""
        above = name
        while above:
            note = self._notes.get(above)
            if note is not None and not self._is_old(note):
                return note[1] if above == name else gone_with(above, note[1])
            above = parent_name(above)
        return None

    def expect(self, names: Iterable[str]) -> None:
        """Forget what is noted of `names`, now and until somebody has taken them: others will come."""
        for name in names:
            self._forget(name)
            self._expected[name] = None
        _bound(self._expected)

    def expects(self, name: str) -> bool:
        """Whether others will come for `name`, and have not yet."""
        return name in self._expected

    def give_up(self, name: str, reason: str) -> None:
        """Nobody will take `name`, although that was expected."""
        self._expected.pop(name, None)
        self.note(name, reason)

    def taken(self, name: str) -> None:
        """Somebody has `name` now."""
        self._forget(name)
        self._expected.pop(name, None)

    def _forget(self, name: str) -> None:
        self._notes.pop(name, None)
        for below in self._below.pop(name, ()):
            self._forget(below)

    def _is_old(self, note: tuple[float, str]) -> bool:
        return self._now() - note[0] > MAX_AGE_S


def gone_with(above: str, reason: str) -> str:
    """Why a worker below another is gone when that one is."""
    return f"'{above}', below which it was, is gone: {reason}"


def _bound(names: OrderedDict[str, Any]) -> None:
    while len(names) > MAX_NAMES:
        names.popitem(last=False)
