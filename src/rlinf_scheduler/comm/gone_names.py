"""Tombstones: names whose process is gone, remembered for a while, so that who looks one up is told at once.

A worker below another is gone with that one; its note goes when another process takes that name.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

from rlinf_scheduler.addresses import parent_name

# More than the ranks of a job, all of which may be gone, or launched again, at a time.
MAX_NAMES = 1 << 16
MAX_AGE_S = 600.0


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
