"""Virtual time: the next event is the earliest one, and a seed decides every delay, so that a run can be repeated."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from hashlib import blake2b
from random import Random
from typing import Any

from rlinf_scheduler.comm.loop import Timer

MAX_EVENTS = 50_000
"""A world that has not come to rest after so many events never will."""


class Violation(BaseException):
    """A promise was broken; no handler of the product's own mistakes may stand in its way.

    Attributes:
        about: the items, calls or processes that it concerns; the short history shows their events.
    """

    def __init__(self, text: str, about: Iterable[Any] = ()) -> None:
        super().__init__(text)
        self.about = frozenset(about)


class Killed(BaseException):
    """The process that this unwinds has died in a call of the kernel."""


class Process:
    """One process of the world, and its `Clock`. It may be paused (its events wait) and may die (they are dropped).

    Attributes:
        alive: it has not died.
        died_us: when it did.
    """

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self.died_us = -1
        self._paused_us = 0
        self._paused_at: int | None = None
        self._backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def __repr__(self) -> str:
        return self.name

    @property
    def now_us(self) -> int:
        """The time by its clock."""
        return self.world.now_us

    def now(self) -> float:
        """Return the time, in seconds since some moment."""
        return self.world.now_us / 1e6

    @property
    def paused_us(self) -> int:
        """How long it has been paused until now, all in all."""
        return self._paused_us + (0 if self._paused_at is None else self.world.now_us - self._paused_at)

    def later(self, delay_us: int, action: Callable[..., None], *args: Any) -> None:
        """Do something after a while, unless this process dies before."""
        world = self.world
        world.schedule(world.now_us + delay_us, self, action, args)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Call `callback` after so many seconds, unless what is returned is cancelled."""
        timer = Timer(callback)
        self.later(int(delay_s * 1e6), _ring, timer)
        return timer

    def pause(self) -> None:
        """Stop without dying, as by SIGSTOP."""
        if self._paused_at is None:
            self._paused_at = self.world.now_us
            self.world.note(self.name, "is paused")

    def resume(self) -> None:
        """Go on with everything that would have happened meanwhile, in its order."""
        if self._paused_at is None:
            return
        self._paused_us += self.world.now_us - self._paused_at
        self._paused_at = None
        self.world.note(self.name, "goes on")
        backlog, self._backlog = self._backlog, []
        for action, args in backlog:
            self.later(0, action, *args)

    def die(self) -> None:
        """End at once, as by SIGKILL."""
        self.alive = False
        self.died_us = self.world.now_us
        self._backlog.clear()
        self.world.note(self.name, "dies")

    def happen(self, action: Callable[..., None], args: tuple[Any, ...]) -> None:
        """Let an event happen now; for the world."""
        if not self.alive:
            return
        if self._paused_at is not None:
            self._backlog.append((action, args))
            return
        try:
            action(*args)
        except Killed:
            return


def _ring(timer: Timer) -> None:
    callback, timer.callback = timer.callback, None
    if callback is not None:
        callback()


class World:
    """The clock, what is to happen, and what has happened.

    Attributes:
        now_us: virtual time in microseconds.
        history: every noteworthy event as (time, who, what, details...).
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now_us = 0
        self.history: list[tuple[Any, ...]] = []
        self._events: list[tuple[int, int, Process | None, Callable[..., None], tuple[Any, ...]]] = []
        self._num_scheduled = 0
        self._looks: set[int] = set()

    @property
    def latest_us(self) -> int:
        """What the time may be by a clock that goes right."""
        return self.now_us

    def randomness(self, *purpose: object) -> Random:
        """Return a source of its own for one purpose: what others draw does not shift it."""
        return Random(f"{self.seed}/{purpose}")  # noqa: S311 - not for secrets

    def note(self, *what: Any) -> None:
        """Write into the history."""
        self.history.append((self.now_us, *what))

    def schedule(
        self, at_us: int, process: Process | None, action: Callable[..., None], args: tuple[Any, ...] = ()
    ) -> None:
        """Let something happen at a time, in a process or (None) in the world around them."""
        self._num_scheduled += 1
        heapq.heappush(self._events, (at_us, self._num_scheduled, process, action, args))

    def schedule_look(self, at_us: int, process: Process, action: Callable[..., None], *args: Any) -> int:
        """Let a process look at something again, as it does for ever: the world may rest before that; its number."""
        self.schedule(at_us, process, action, args)
        self._looks.add(self._num_scheduled)
        return self._num_scheduled

    def is_no_look(self, number: int) -> None:
        """What was to be a look does something else, too: the world does not rest before it."""
        self._looks.discard(number)

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Let everything happen that is to happen, or what happens until a condition holds.

        Raises:
            Violation: the world does not come to rest.
        """
        events, looks = self._events, self._looks
        while len(events) > len(looks) and (until is None or not until()):
            self.now_us, number, process, action, args = heapq.heappop(events)
            looks.discard(number)
            if number > MAX_EVENTS:
                message = f"the world does not come to rest: {MAX_EVENTS} events, and more to come"
                raise Violation(message)
            if process is None:
                action(*args)
            else:
                process.happen(action, args)

    def digest(self) -> str:
        """Return what identifies this history."""
        return blake2b("\n".join(map(repr, self.history)).encode(), digest_size=8).hexdigest()
