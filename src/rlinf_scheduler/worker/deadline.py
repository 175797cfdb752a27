"""A time until which threads wait, which may come nearer meanwhile: a node is given back sooner than was said."""

from __future__ import annotations

import time
from typing import Any

from rlinf_scheduler.comm.promise import Promise


class Deadline:
    """A moment that may come nearer. Any thread waits for it; one moves it.

    Args:
        limit_s: how long it is until then, in seconds.

    Attributes:
        limit_s: the same, as it was said last.
        nearer: done when it has come nearer than it was as this was read.

    >>> soon, step = Deadline(60.0), Promise()
    >>> soon.come_nearer(0.0), soon.come_nearer(60.0), soon.left_s, soon.wait(step)
    (True, False, 0.0, False)
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.nearer: Promise[None] = Promise()
        self._at = time.monotonic() + limit_s

    @property
    def left_s(self) -> float:
        """How many seconds are left."""
        return max(0.0, self._at - time.monotonic())

    def come_nearer(self, limit_s: float) -> bool:
        """Be in so many seconds from now; False, and as before, if it is sooner than that."""
        at = time.monotonic() + limit_s
        if at >= self._at:
            return False
        self.limit_s, self._at = limit_s, at
        before, self.nearer = self.nearer, Promise()
        before.set_result(None)
        return True

    def wait(self, *steps: Promise[Any]) -> bool:
        """Wait until one of these is done; whether one is, at the end."""
        while True:
            nearer = self.nearer
            _first_of(*steps, nearer).wait(self.left_s)
            if any(each.done() for each in steps):
                return True
            if not nearer.done():
                return False


def _first_of(*promises: Promise[Any]) -> Promise[None]:
    """Return what is done when one of these is."""
    first: Promise[None] = Promise()
    for each in promises:
        each.add_done_callback(lambda _: first.set_result(None))
    return first
