"""Tombstones: names whose process is gone, remembered for a while, so that who looks one up is told at once."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

# More than the ranks of a job, all of which may be gone, or launched again, at a time.
MAX_NAMES = 1 << 16
MAX_AGE_S = 600.0


class GoneNames:
    """The tombstones of a directory: its notes about names that it had.

    Args:
        now: the clock, in seconds.

    >>> gone = GoneNames()
    >>> gone.note("rollout:3", "it left")
    >>> gone.reason("rollout:3")
    'it left'
    >>> gone.expect(["rollout:3"])
    >>> gone.note("rollout:3", "its process is gone")  # the old one, noticed late
    >>> gone.reason("rollout:3") is None
    True
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._notes: OrderedDict[str, tuple[float, str]] = OrderedDict()
        self._expected: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._notes)

    def note(self, name: str, reason: str) -> None:
        """Remember that whoever had `name` is gone, unless another is expected to take it."""
        if name in self._expected:
            return
        self._notes.pop(name, None)
        self._notes[name] = (self._now(), reason)
        _bound(self._notes)
        while self._is_old(next(iter(self._notes.values()))):
            self._notes.popitem(last=False)

    def reason(self, name: str) -> str | None:
        """Why the process of `name` is gone; None if that is not known (any more)."""
        note = self._notes.get(name)
        return None if note is None or self._is_old(note) else note[1]

    def expect(self, names: Iterable[str]) -> None:
        """Forget what is noted of `names`, now and until somebody has taken them: others will come."""
        for name in names:
            self._notes.pop(name, None)
            self._expected[name] = None
        _bound(self._expected)

    def give_up(self, name: str, reason: str) -> None:
        """Nobody will take `name`, although that was expected."""
        self._expected.pop(name, None)
        self.note(name, reason)

    def taken(self, name: str) -> None:
        """Somebody has `name` now."""
        self._notes.pop(name, None)
        self._expected.pop(name, None)

    def _is_old(self, note: tuple[float, str]) -> bool:
        return self._now() - note[0] > MAX_AGE_S


def _bound(names: OrderedDict[str, Any]) -> None:
    while len(names) > MAX_NAMES:
        names.popitem(last=False)
