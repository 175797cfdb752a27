"""Something that is looked up anew after a while, once for all who ask, and never while nobody does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from rlinf_scheduler.errors import SchedulerError


@dataclass(frozen=True, slots=True)
class Sighting:
    """What was found.

    Attributes:
        number: of this look, from 1.
        data: JSON; empty where nothing could be found.
        trouble: why not; "" where something was.
    """

    number: int
    data: bytes
    trouble: str = ""


class SharedLook:
    """Looks again, at most every so many seconds, when somebody asks; whoever asks then gets the same look.

    Args:
        take: looks, and gives plain data; what it waits for has a deadline. A `SchedulerError` of it is what was found.
        every_s: for how long a look will do, in seconds.
    """

    def __init__(self, take: Callable[[], object], every_s: float) -> None:
        self._take = take
        self._every_s = every_s
        # Held by who looks; the others wait for that look.
        self._looking = threading.Lock()
        self._closed = threading.Event()
        self._last = Sighting(0, b"")
        self._due_s = 0.0

    def newest(self, after: int = 0) -> Sighting | None:
        """The newest look; None once it is closed.

        Args:
            after: the number of a look that is known: wait until there is one after it.
        """
        while not self._closed.is_set():
            with self._looking:
                if time.monotonic() >= self._due_s:
                    self._look()
                if self._last.number > after:
                    return self._last
                remaining_s = self._due_s - time.monotonic()
            self._closed.wait(remaining_s)
        return None

    def close(self) -> None:
        """Let nobody wait any longer."""
        self._closed.set()

    def _look(self) -> None:
        begun_s = time.monotonic()
        number = self._last.number + 1
        try:
            self._last = Sighting(number, msgspec.json.encode(self._take()))
        except SchedulerError as error:
            self._last = Sighting(number, b"", str(error))
        # By when it began, so that looks come at even times.
        self._due_s = max(begun_s + self._every_s, time.monotonic())
