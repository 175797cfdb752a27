"""What a rank logs of a step, on its way to the job's home."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, get_args

import msgspec

from rlinf_scheduler.checks import is_encodable, whole_number
from rlinf_scheduler.config.metrics import Reduction
from rlinf_scheduler.errors import ConfigError
from rlinf_scheduler.observe.levels import Level

_BY_LAST_WORD: dict[str, Reduction] = {
    "max": "max",
    "min": "min",
    "sum": "sum",
    "total": "sum",
    "count": "sum",
}
_WORDS = re.compile(r"[/._\s]+")


class Logged(NamedTuple):
    """One value of one rank."""

    name: str
    value: float
    reduction: Reduction


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """What a process has logged at a time.

    Attributes:
        group: the group of the rank; "" for the driver.
        member: the process's name.
        world_size: how many ranks the group has.
        step: the training step.
        values: what was logged.
        num_dropped: how many values before these were given up, since the home did not take them.
    """

    group: str
    member: str
    world_size: int
    step: int
    values: tuple[Logged, ...]
    num_dropped: int = 0


# A level of the job's home, where metrics are written; elsewhere nothing is answered at it.
METRICS = Level("job.metrics", None, Sample, "whether metrics are written")


def reduction_of(name: str) -> Reduction:
    """Return how the ranks' values of a name become one: by its last word, else the mean.

    >>> reduction_of("return_max"), reduction_of("tokens/total"), reduction_of("loss")
    ('max', 'sum', 'mean')
    """
    return _BY_LAST_WORD.get(_WORDS.split(name)[-1].lower(), "mean")


def checked_step(step: object) -> int:
    """Return a training step.

    Raises:
        ConfigError: it is none.
    """
    number = whole_number(step)
    if number is None or number >= 1 << 63:
        hint = "give step=..., or log in the block of `at_step`" if step is None else ""
        raise ConfigError(f"log_metrics(step={step!r}): it is a whole number from 0", hint=hint)
    return number


def checked_values(metrics: object, reduce: str | None) -> tuple[Logged, ...]:
    """Return values by name as they travel.

    Raises:
        ConfigError: a name is no text, a value no number, or the reduction is unknown.
    """
    if reduce is not None and reduce not in get_args(Reduction):
        known = ", ".join(get_args(Reduction))
        raise ConfigError(f"log_metrics(reduce={reduce!r}): it is one of {known}, or None")
    if not isinstance(metrics, Mapping):
        raise ConfigError(f"log_metrics() takes numbers by name, not a {type(metrics).__name__}")
    return tuple(
        Logged(_checked_name(name), _number(name, value), reduce or reduction_of(name))  # type: ignore[arg-type]
        for name, value in metrics.items()
    )


def _checked_name(name: Any) -> str:
    if not isinstance(name, str) or not name or not is_encodable(name):
        raise ConfigError(f"log_metrics(): {name!r} is no name of a metric: it is text")
    return name


def _number(name: str, value: Any) -> float:
    try:
        if not isinstance(value, str | bytes | bytearray):
            return float(value)  # of a tensor or an array: that of its one element
    except (TypeError, ValueError, RuntimeError, OverflowError):
        pass
    raise ConfigError(f"log_metrics(): {name!r} is a {type(value).__name__}, not one number")
