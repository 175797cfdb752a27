"""Numbers of training steps: as ranks log them, and reduced over those of a group."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, get_args

import msgspec

from rlinf_scheduler.checks import is_encodable, whole_number
from rlinf_scheduler.config.metrics import Reduction
from rlinf_scheduler.errors import ConfigError
from rlinf_scheduler.observe.levels import Level
from rlinf_scheduler.session.membership import GroupMembers

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
        world_size: how many ranks the group has, as that process knows.
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


# -- reduced -----------------------------------------------------------------------------------------


# So many steps of a group may be incomplete; the one that was begun first makes room.
MAX_OPEN = 64
# A step to which values come all the time is written after so many times the wait.
MAX_WAITS = 10


class _Reduced:
    """The values of one name, as one number."""

    def __init__(self, reduction: Reduction) -> None:
        self._reduction = reduction
        self._count = 0
        self._so_far = 0.0

    def add(self, value: float) -> None:
        so_far, self._count = self._so_far, self._count + 1
        if self._reduction in ("mean", "sum"):
            self._so_far = so_far + value
        elif self._count == 1 or so_far != so_far or (value > so_far) == (self._reduction == "max"):
            self._so_far = value

    @property
    def value(self) -> float:
        return self._so_far / self._count if self._reduction == "mean" else self._so_far


class MetricsRow(NamedTuple):
    """What is written of a step.

    Attributes:
        values: by name, which begins with the group's.
        num_ranks: from how many processes they come.
    """

    step: int
    values: dict[str, float]
    num_ranks: int
    time_s: float


class _OpenStep:
    """A step of which values may still come."""

    def __init__(self, now: float) -> None:
        self.members: set[str] = set()
        self.values: dict[str, _Reduced] = {}
        self.began_s = self.last_s = now
        self.world_size = 0

    def add(self, sample: Sample, now: float) -> None:
        self.members.add(sample.member)
        self.world_size = sample.world_size  # the group may have been resized
        self.last_s = now
        for name, value, reduction in sample.values:
            if name not in self.values:
                self.values[name] = _Reduced(reduction)
            self.values[name].add(value)


class _GroupSteps:
    """The open steps of a group.

    Attributes:
        open: steps by number, the one that was begun first at the beginning.
        at: at which step each member is.
        expected: the members that log every step; None while that is not known.
    """

    def __init__(self, sample: Sample) -> None:
        self.prefix = f"{sample.group}/" if sample.group else ""
        self.open: dict[int, _OpenStep] = {}
        self.at: dict[str, int] = {}
        self.expected: set[str] | None = None
        self._written: deque[int] = deque(maxlen=MAX_OPEN)

    def add(self, sample: Sample, now: float) -> bool:
        """Add what a member has logged; return whether its step was written already."""
        self.at[sample.member] = sample.step
        if self.expected is not None:
            self.expected.add(sample.member)
        is_late = sample.step in self._written and sample.step not in self.open
        self.open.setdefault(sample.step, _OpenStep(now)).add(sample, now)
        return is_late

    def resize(self, members: GroupMembers) -> None:
        """Wait for the ranks that there are now."""
        names = {f"{members.group}:{rank}" for rank in members.ranks}
        self.at = {member: step for member, step in self.at.items() if member in names}
        self.expected = None if self.expected is None else self.expected & names
        for each in self.open.values():
            each.world_size = min(each.world_size, members.world_size)

    def whole(self, step: int) -> bool:
        """Say whether all members have logged a step and gone on to another one."""
        members = self.open[step].members
        if any(self.at.get(member) == step for member in members):
            return False
        if self.expected is None:
            return len(members) >= self.open[step].world_size
        return members >= self.expected

    def take(self, step: int, time_s: float) -> MetricsRow:
        """Return a step as it is, which is not open any more."""
        taken = self.open.pop(step)
        self._written.append(step)
        values = {f"{self.prefix}{name}": each.value for name, each in taken.values.items()}
        return MetricsRow(step, values, len(taken.members), time_s)


class OpenSteps:
    """The steps of all groups, each reduced to a row once it is whole.

    A step of a group is whole when every rank has logged it and gone on to another one. A rank that does not, or has
    died, holds a step for `wait_s` after its last value, and is not expected from then on until it logs again. What
    comes after a step was written is a row of its own.

    Args:
        wait_s: see above, in seconds.

    Attributes:
        late: the last member that logged a step which was written already, and the step; None if there is none.
    """

    def __init__(self, wait_s: float, wall: Callable[[], float]) -> None:
        self._wait_s = wait_s
        self._wall = wall
        self._groups: dict[str, _GroupSteps] = {}
        self.late: tuple[str, int] | None = None

    def add(self, sample: Sample, now: float) -> list[MetricsRow]:
        """Add what was logged; return the rows that are whole by that."""
        group = self._groups.setdefault(sample.group, _GroupSteps(sample))
        if group.add(sample, now):
            self.late = (sample.member, sample.step)
        rows = self._whole_of(group)
        while len(group.open) > MAX_OPEN:
            rows.append(group.take(next(iter(group.open)), self._wall()))
        return rows

    def resize(self, members: GroupMembers) -> list[MetricsRow]:
        """A group has other ranks: those that have left are not waited for; return the rows that are whole by that."""
        group = self._groups.get(members.group)
        if group is None:
            return []
        group.resize(members)
        return self._whole_of(group)

    def due(self, now: float) -> list[MetricsRow]:
        """Return the rows of steps that have waited long enough."""
        return [row for group in self._groups.values() for row in self._due_of(group, now)]

    def close(self) -> list[MetricsRow]:
        """Return all that is left."""
        return [
            group.take(step, self._wall()) for group in self._groups.values() for step in list(group.open)
        ]

    def _due_of(self, group: _GroupSteps, now: float) -> Iterator[MetricsRow]:
        for step, each in list(group.open.items()):
            is_due = now - each.last_s >= self._wait_s or now - each.began_s >= MAX_WAITS * self._wait_s
            if step in group.open and is_due:
                group.expected = set(each.members)
                yield group.take(step, self._wall())
                yield from self._whole_of(group)

    def _whole_of(self, group: _GroupSteps) -> list[MetricsRow]:
        return [group.take(step, self._wall()) for step in list(group.open) if group.whole(step)]
