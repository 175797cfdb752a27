"""How the clocks of two machines differ, found out by asking one of them several times. Pure.

As NTP does it: what was answered was read between the question and the answer, so halfway, give or take half of the
time in between. The quickest of several round trips says it best.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class RoundTrip(NamedTuple):
    """A question for the time.

    Attributes:
        asked_at: when it was asked, by the clock here, in seconds.
        said: the time that was answered, by the clock there.
        answered_at: when the answer came, by the clock here.
    """

    asked_at: float
    said: float
    answered_at: float


class Offset(NamedTuple):
    """What the clock here shows more than the one there, and by how much that may be wrong, in seconds."""

    seconds: float
    error_s: float


def offset_of(trips: Iterable[RoundTrip]) -> Offset:
    """How the clock here differs from the one that was asked.

    >>> offset_of([RoundTrip(100.0, 7.0, 100.5), RoundTrip(101.0, 8.25, 103.0)])
    Offset(seconds=93.25, error_s=0.25)
    """
    best = min(trips, key=lambda trip: trip.answered_at - trip.asked_at)
    halfway = (best.asked_at + best.answered_at) / 2
    return Offset(halfway - best.said, (best.answered_at - best.asked_at) / 2)
