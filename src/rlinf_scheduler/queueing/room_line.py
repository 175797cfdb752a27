"""Queues whose first put waits for room in their channel, in order of arrival, found by the room that it needs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

# An empty line keeps so many places.
NUM_KEPT = 256


class RoomLine:
    """Queues in line for room that they share; each names a size, and the first that fits is found in logarithmic time.

    A tree of minima over the places of the line: a node says how little somebody below it needs.

    Attributes:
        places: of the queues that wait; the same dictionary always.
    """

    __slots__ = ("_end", "_minima", "_queues", "_width", "places")

    def __init__(self) -> None:
        self.places: dict[Any, int] = {}
        self._lay_out([])

    def __iter__(self) -> Iterator[Any]:
        return (queue for queue in self._queues[: self._end] if queue is not None)

    def set(self, queue: Any, size_bytes: float) -> None:
        """Let a queue wait for so much room: at its place if it has one, else as the last."""
        place = self.places.get(queue)
        if place is None:
            if self._end == self._width:
                self._lay_out([(each, self._minima[self._width + self.places[each]]) for each in self])
            place = self.places[queue] = self._end
            self._queues[place] = queue
            self._end += 1
        self._write(place, size_bytes)

    def discard(self, queue: Any) -> None:
        """Let a queue wait no more."""
        place = self.places.pop(queue, None)
        if place is None:
            return
        self._queues[place] = None
        self._write(place, math.inf)
        if not self.places:
            self.clear()

    def first(self, free_bytes: float) -> Any | None:
        """Return the first queue that needs no more room than this; None without one."""
        minima = self._minima
        if not self.places or minima[1] > free_bytes:
            return None
        node = 1
        while node < self._width:
            node *= 2
            if minima[node] > free_bytes:
                node += 1
        return self._queues[node - self._width]

    def clear(self) -> None:
        """Let nobody wait."""
        self.places.clear()
        self._end = 0
        if self._width > NUM_KEPT:
            self._lay_out([])

    def _lay_out(self, waiting: list[tuple[Any, float]]) -> None:
        """Give those who wait the first places, with as many free ones behind them."""
        self._width = width = 1 << max(3, (2 * len(waiting)).bit_length())
        self._end = len(waiting)
        self._queues = [queue for queue, _ in waiting] + [None] * (width - len(waiting))
        self.places.update((queue, place) for place, (queue, _) in enumerate(waiting))
        sizes = [size for _, size in waiting]
        self._minima = [math.inf] * width + sizes + [math.inf] * (width - len(sizes))
        for node in range(width - 1, 0, -1):
            self._minima[node] = min(self._minima[2 * node], self._minima[2 * node + 1])

    def _write(self, place: int, size_bytes: float) -> None:
        minima, node = self._minima, self._width + place
        minima[node] = size_bytes
        while node > 1:
            node //= 2
            least = min(minima[2 * node], minima[2 * node + 1])
            if minima[node] == least:
                return
            minima[node] = least
