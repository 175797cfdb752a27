"""Timers as RLinf has them: beside what travels with a result, a worker's seconds add up until they are popped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from rlinf_scheduler.hardware.profilers import CAPTURE
from rlinf_scheduler.host.timing import Stopwatch

F = TypeVar("F", bound=Callable[..., Any])


class WorkerTimer(Stopwatch):
    """A timer of a block; as a decorator, of each call of a method, which a profiler's report has, too.

    Args:
        tag: the name; None: the method's, as a decorator.
        totals: the worker's seconds, by name; None: they only travel with the result.
    """

    __slots__ = ("_totals",)

    def __init__(self, tag: str | None, totals: dict[str, float] | None) -> None:
        super().__init__(tag or "")
        self._totals = totals

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)
        if self._totals is not None:
            self._totals[self.name] = self._totals.get(self.name, 0.0) + self.elapsed_s

    def __call__(self, function: F) -> F:
        """Measure every call of a method, see `Stopwatch`."""
        named = self if self.name else WorkerTimer(function.__name__, self._totals)
        measured: F = super(WorkerTimer, named).__call__(function)  # type: ignore[assignment]  # of that signature
        return measured

    @contextmanager
    def _for_call(self, args: tuple[Any, ...]) -> Iterator[None]:
        # The worker whose method is called; None of a function that is no method.
        worker = args[0] if args else None
        with WorkerTimer(self.name, getattr(worker, "_timer_metrics", None)), CAPTURE.range(self.name):
            yield
