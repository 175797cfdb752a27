"""Timers as RLinf has them: beside what travels with a result, a worker's seconds add up until they are popped."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from rlinf_scheduler.errors import ConfigError
from rlinf_scheduler.hardware.profilers import CAPTURE
from rlinf_scheduler.host.timing import Stopwatch

F = TypeVar("F", bound=Callable[..., Any])


class WorkerTimer(Stopwatch):
    """Measures a block; as a decorator, each call of a method.

    Args:
        tag: the name; None: the method's, as a decorator.
        totals: the worker's seconds, by name; None: they only travel with the result.
    """

    __slots__ = ("_tag", "_totals")

    def __init__(self, tag: str | None, totals: dict[str, float] | None) -> None:
        super().__init__(tag or "")
        self._tag = tag
        self._totals = totals

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)
        if self._totals is not None:
            self._totals[self.name] = self._totals.get(self.name, 0.0) + self.elapsed_s

    def __call__(self, function: F) -> F:
        """Measure every call of a method under this timer's name, which a profiler's report has, too.

        Raises:
            ConfigError: it is a generator: its time depends on who iterates over it.
        """
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            what = f"@Worker.timer on the generator '{function.__qualname__}' would measure who waits for its values"
            raise ConfigError(
                what, hint="write `with self.worker_timer(...)` around what is to be measured in it"
            )
        tag = self._tag or function.__name__
        wrapper = _timed_async if inspect.iscoroutinefunction(function) else _timed
        return wrapper(tag, function)  # type: ignore[no-any-return]


def _timed(tag: str, function: Any) -> Any:
    @functools.wraps(function)
    def timed(*args: Any, **kwargs: Any) -> Any:
        with WorkerTimer(tag, _totals_of(args)), CAPTURE.range(tag):
            return function(*args, **kwargs)

    return timed


def _timed_async(tag: str, function: Any) -> Any:
    @functools.wraps(function)
    async def timed(*args: Any, **kwargs: Any) -> Any:
        with WorkerTimer(tag, _totals_of(args)), CAPTURE.range(tag):
            return await function(*args, **kwargs)

    return timed


def _totals_of(args: tuple[Any, ...]) -> dict[str, float] | None:
    """Those of the worker whose method is called; None of a function that is none."""
    return getattr(args[0], "_timer_metrics", None) if args else None


def caller_name(depth: int) -> str:
    """The name of the function so many calls up."""
    return sys._getframe(depth + 1).f_code.co_name
