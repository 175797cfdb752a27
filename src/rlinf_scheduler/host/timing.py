"""How long parts of a call take: measured where they run, and sent along with the result."""

from __future__ import annotations

import functools
import inspect
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Literal, ParamSpec, TypeVar, cast

from rlinf_scheduler.errors import ConfigError
from rlinf_scheduler.observe.timekeeping import CALL, PHASE, TIMES, OpenWork, Site, site, training_step
from rlinf_scheduler.wording import plain_text

P = ParamSpec("P")
R = TypeVar("R")
Reduce = Literal["max", "min", "mean", "sum"]


class _Call:
    """A call that runs.

    Attributes:
        durations: what its timers have measured.
        phases: those of it that are open. With the call they are gone, also those that an interruption has cut short.
    """

    __slots__ = ("durations", "phases")

    def __init__(self, durations: dict[str, float]) -> None:
        self.durations = durations
        self.phases: list[OpenWork] = []


# That this thread or task works at.
_call: ContextVar[_Call | None] = ContextVar("rlinf_call", default=None)


class Stopwatch:
    """Measures a block of code; blocks of one name in one call add up.

    Attributes:
        name: what is measured.
        elapsed_s: how long the last block took, in seconds.
    """

    __slots__ = ("_entered", "elapsed_s", "name")

    def __init__(self, name: str) -> None:
        self.name = name if type(name) is str and name.isascii() else plain_text(name)
        self.elapsed_s = 0.0
        # A list, for one timer may be entered again in a method that calls itself.
        # The phase, itself only outside of calls; since when; from where to where.
        self._entered: list[tuple[weakref.ref[OpenWork], OpenWork | None, float, Site, Site]] = []

    def __enter__(self) -> Stopwatch:
        while self._entered and self._entered[-1][0]() is None:  # an interruption came before it was left
            self._entered.pop()
        outside, call = site.get(), _call.get()
        inside = _inside(outside, self.name)
        # Not the token of this: what is entered in a generator may be left in another context.
        site.set(inside)
        began = time.monotonic()
        opened = TIMES.begin(PHASE, began, inside.phase)
        if call is not None:
            call.phases.append(opened)
        own = opened if call is None else None
        self._entered.append((weakref.ref(opened), own, began, outside, inside))
        return self

    def __exit__(self, *_: object) -> None:
        ended = time.monotonic()
        opened_ref, _own, began, outside, inside = self._entered.pop()
        opened = opened_ref()
        if opened is not None:
            TIMES.end(opened)
            _forget(opened)
        self.elapsed_s = ended - began
        TIMES.note_phase(inside, began, ended)
        site.set(outside)
        note_duration(self.name, self.elapsed_s)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Measure every call of `function` under this timer's name.

        Raises:
            ConfigError: it is a generator: its time depends on who iterates over it.
        """
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigError(
                f"@Worker.timer on the generator '{function.__qualname__}' would measure who waits for its values",
                hint="write `with self.timer(...)` around what is to be measured in it",
            )
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def timed_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                with self._for_call(args):
                    return await function(*args, **kwargs)

            return cast(Callable[P, R], timed_async)

        @functools.wraps(function)
        def timed(*args: P.args, **kwargs: P.kwargs) -> R:
            with self._for_call(args):
                return function(*args, **kwargs)

        return timed

    def _for_call(self, args: tuple[Any, ...]) -> AbstractContextManager[Any]:
        """Return what measures one call of a function that this timer decorates."""
        return Stopwatch(self.name)


def _forget(opened: OpenWork) -> None:
    call = _call.get()
    phases = [] if call is None else call.phases
    if phases and phases[-1] is opened:
        phases.pop()
    elif opened in phases:
        phases.remove(opened)


@functools.lru_cache(maxsize=1024)
def _inside(outside: Site, name: str) -> Site:
    """A phase in another one; of what calls itself, the outermost."""
    if not outside.phase:
        return Site(outside.method, name)
    if name in outside.phase.split("/"):
        return outside
    return Site(outside.method, f"{outside.phase}/{name}")


def timer(what: Any) -> Any:
    """A timer of that name; or a function, measured under its own: see `Worker.timer`."""
    return Stopwatch(what) if isinstance(what, str) else Stopwatch(what.__name__)(what)


class recording:  # noqa: N801 - used as a function is
    """A block that is a call of a method: the timers of this thread or task, and of its tasks, write to `durations`.

    Args:
        durations: see above.
        method: what is called.
        caller: by whom.
        counted: called once its time is counted.
    """

    __slots__ = ("_before", "_caller", "_counted", "_durations", "_method", "_opened", "_step", "_token")

    def __init__(
        self,
        durations: dict[str, float],
        method: str,
        caller: str,
        counted: Callable[[], object] = lambda: None,
    ) -> None:
        self._durations = durations
        self._method = method
        self._caller = caller
        self._counted = counted

    def __enter__(self) -> None:
        self._token, self._before = _call.set(_Call(self._durations)), site.set(Site(self._method))
        self._step = training_step.set(None)
        began = time.monotonic()
        if TIMES.since is None:
            TIMES.since = began
        self._opened = TIMES.begin(CALL, began, self._method, self._caller)

    def __exit__(self, *_: object) -> None:
        opened = self._opened
        TIMES.end(opened)
        TIMES.note_call(self._method, opened.began, self._caller)
        self._counted()
        training_step.reset(self._step)  # also where an interruption has left its block open
        site.reset(self._before)
        _call.reset(self._token)


def note_duration(name: str, duration_s: float) -> None:
    """Add to what was measured under a name in this call."""
    call = _call.get()
    if call is not None:
        call.durations[name] = call.durations.get(name, 0.0) + duration_s


def reduce_durations(
    each: Sequence[Mapping[str, float]], reduce: Reduce | None
) -> dict[str, float] | dict[str, list[float]]:
    """What the ranks measured, by name.

    Args:
        each: what every rank measured; one that did not measure a name is left out of it.
        reduce: what to make of the ranks' durations; None: the list of them.

    >>> reduce_durations([{"generate": 2.0}, {"generate": 3.0}], "max")
    {'generate': 3.0}
    """
    gathered: dict[str, list[float]] = {}
    for durations in each:
        for name, duration_s in durations.items():
            gathered.setdefault(name, []).append(duration_s)
    if reduce is None:
        return gathered
    functions: dict[str, Callable[[list[float]], float]] = {"max": max, "min": min, "sum": sum, "mean": _mean}
    if reduce not in functions:
        raise ConfigError(f"durations(reduce={reduce!r}): it is one of {', '.join(functions)}, or None")
    return {name: functions[reduce](values) for name, values in gathered.items()}


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
