"""The places of a channel's producers as they must be."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.world import Violation


@dataclass(slots=True, eq=False)
class _Place:
    """One place: `free`, `taken`, `vacant` since somebody failed, or `done`."""

    state: str = "free"
    holder: tuple[str, int] | None = None
    name: str = ""
    since_us: int = 0


class ProducerOracle:
    """Who has something to put, and whether the channel may end, or has to.

    Args:
        num_places: how many producers there are; 0: they are not counted.
        successor_us: how long a vacant place waits for a successor.
    """

    def __init__(self, num_places: int, successor_us: int) -> None:
        self._places = [_Place() for _ in range(num_places)]
        self._successor_us = successor_us

    def join(self, client: str, number: int, name: str, now_us: int, *, admitted: bool) -> None:
        """Somebody asks for a place, and is told whether there is one."""
        place = self._place_for(name)
        if not admitted and place is not None and self._is_overdue(place, now_us):
            return  # it counts as done by now
        if admitted != (place is not None):
            raise Violation(f"{client} asks for a place, and is told {admitted}: {self._places}", (number,))
        if place is not None:
            place.state, place.holder, place.name = "taken", (client, number), name

    def leave(self, client: str, number: int, now_us: int, *, failed: bool) -> None:
        """Somebody leaves a place, if it has one."""
        for place in self._places:
            if place.holder == (client, number):
                place.state, place.holder, place.since_us = "vacant" if failed else "done", None, now_us

    def lose(self, client: str, now_us: int) -> None:
        """A client has gone."""
        for place in self._places:
            if place.holder is not None and place.holder[0] == client:
                self.leave(*place.holder, now_us, failed=True)

    def ends(self, now_us: int) -> None:
        """The channel ends."""
        if not self._is_over(now_us):
            raise Violation(f"the channel ends, and there are producers: {self._places}")

    def check_rest(self, now_us: int, *, ended: bool) -> None:
        """Check, when the world is at rest, that a channel without producers has ended."""
        if self._places and self._is_over(now_us) and not ended:
            raise Violation("all producers are done, and the channel has not ended")

    def given_up(self, now_us: int) -> None:
        """Nobody waits any more for successors that should have come by now."""
        for place in self._places:
            if place.state == "vacant" and self._is_overdue(place, now_us):
                place.state = "done"

    def _place_for(self, name: str) -> _Place | None:
        """The one that somebody of this name left, else a free one, else any vacant one."""
        vacant = sorted((each for each in self._places if each.state == "vacant"), key=_since)
        free = [place for place in self._places if place.state == "free"]
        own = [place for place in vacant if place.name == name]
        return next(iter([*own, *free, *vacant]), None)

    def _is_over(self, now_us: int) -> bool:
        return all(
            place.state == "done" or (place.state == "vacant" and self._is_overdue(place, now_us))
            for place in self._places
        )

    def _is_overdue(self, place: _Place, now_us: int) -> bool:
        return now_us >= place.since_us + self._successor_us


def _since(place: _Place) -> int:
    return place.since_us
