"""Where a worker's time goes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager


class PhaseClock:
    """Adds up the seconds that a worker spends in each named phase.

    >>> clock = PhaseClock()
    >>> with clock.phase("simulate"):
    ...     pass
    >>> sorted(clock.read())
    ['simulate']
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time inside the block as `name`."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - started

    def read(self) -> dict[str, float]:
        """Seconds by phase, so far."""
        return dict(self._seconds)


def mean_phases(ranks: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Mean seconds by phase over the ranks of a group, in the order in which the phases first appear."""
    readings = list(ranks)
    names = dict.fromkeys(name for reading in readings for name in reading)
    return {name: sum(reading.get(name, 0.0) for reading in readings) / len(readings) for name in names}
