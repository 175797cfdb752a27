"""What the parts of a process add to what the process says of itself."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Generic, TypeVar

from rlinf_scheduler.comm.reports import Reporter

T = TypeVar("T")
_log = Reporter(__name__)


class Additions(Generic[T]):
    """Functions that each return a record with something added; one that fails costs its own part only.

    >>> additions = Additions[int]()
    >>> forget = additions.add(lambda number: number + 1)
    >>> _ = additions.add(lambda number: 10 * number)
    >>> additions.applied(1), forget(), additions.applied(1)
    (20, None, 10)
    """

    def __init__(self) -> None:
        self._additions: dict[int, Callable[[T], T]] = {}
        self._numbers = itertools.count()

    def add(self, addition: Callable[[T], T]) -> Callable[[], None]:
        """Let a part add to it; returns what undoes that, once or again."""
        self._additions[number := next(self._numbers)] = addition

        def forget() -> None:
            self._additions.pop(number, None)

        return forget

    def applied(self, record: T) -> T:
        """The record with everything that is added."""
        for addition in tuple(self._additions.values()):
            try:
                record = addition(record)
            except Exception:  # noqa: BLE001 - of one part: the others have something to say
                _log.exception("what a part of this process is at could not be told")
        return record
