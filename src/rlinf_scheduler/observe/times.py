"""Where the time of worker groups went, given the sums of their ranks. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar

from rlinf_scheduler.addresses import worker_address
from rlinf_scheduler.observe.time_sheets import CallSum, PhaseSum, TimeSheet, WaitSum

K = TypeVar("K", bound=Hashable)


class _Sum(Protocol):
    @property
    def count(self) -> int: ...
    @property
    def seconds(self) -> float: ...


S = TypeVar("S", bound=_Sum)
# Sums, each with the process whose it is.
_Sums = Sequence[tuple[str, S]]


@dataclass(frozen=True, slots=True)
class Spent:
    """How the ranks of a group spent time on something.

    Attributes:
        count: how often, on all ranks together.
        mean_s: seconds of a rank, on average,
        max_s: and of the rank that spent most.
        share: of the ranks' time.
        longest: that rank's address; "" if none spent any.
    """

    count: int
    mean_s: float
    max_s: float
    share: float
    longest: str = ""


@dataclass(frozen=True, slots=True)
class PhaseTimes:
    """A phase of a method, over the ranks of a group.

    Attributes:
        phase: its name; of a phase in a phase, both, with a slash.
        spent: on it.
        waiting: what part of the ranks' time was waited in it.
    """

    phase: str
    spent: Spent
    waiting: float


@dataclass(frozen=True, slots=True)
class WaitTimes:
    """Waits for one thing in a method, over the ranks of a group.

    Attributes:
        kind: what ends such a wait: "channel", "result", "weights", "message" and so on.
        operation: what it was in, e.g. "get_batch('trajectories')".
        subject: the channel, or what weights are published as.
        spent: on waiting.
        ended_by: what part of the ranks' time was waited until which process ended it, as far as that is known.
    """

    kind: str
    operation: str
    subject: str
    spent: Spent
    ended_by: dict[str, float]


@dataclass(frozen=True, slots=True)
class MethodTimes:
    """A method, over the ranks of a group.

    Attributes:
        method: its name; "" for what was done outside of calls, as in a driver.
        spent: on its calls.
        phases: its phases, the largest first.
        waits: its waits, in phases or not, the largest first.
        values: spent on making the values that its calls stream.
    """

    method: str
    spent: Spent
    phases: tuple[PhaseTimes, ...]
    waits: tuple[WaitTimes, ...]
    values: Spent

    @property
    def num_steps(self) -> int:
        """How often it did what it does again and again: the values of a stream, else its calls."""
        return self.values.count or self.spent.count

    @property
    def waiting(self) -> float:
        """What part of the ranks' time was waited in it."""
        return sum(wait.spent.share for wait in self.waits)


@dataclass(frozen=True, slots=True)
class GroupTimes:
    """A worker group, or a process beside them, such as the driver.

    Attributes:
        name: the group's, or that process's.
        num_ranks: how many ranks it has had; one that came back counts once.
        lived_s: for how long a rank is looked at, in seconds, on average: since its first call.
        methods: what was called, the largest first.
        cores: how many processor cores a rank has kept busy, on average, in any of its threads.
        carried: how many items were delivered of each channel that they hold, the most first.
    """

    name: str
    num_ranks: int
    lived_s: float
    methods: tuple[MethodTimes, ...]
    cores: float = 0.0
    carried: dict[str, int] = field(default_factory=dict)

    @property
    def running(self) -> float:
        """What part of their time calls ran; more than 1 where several ran side by side."""
        return sum(method.spent.share for method in self.methods)

    @property
    def waiting(self) -> float:
        """What part of their time was waited: in calls, or where it is never called, at all."""
        return sum(method.waiting for method in self.methods if method.method or not self.is_called)

    @property
    def busy(self) -> float:
        """What part of their time they were at work: ran calls and did not wait in them."""
        return max(0.0, min(1.0, self.running) - self.waiting)

    @property
    def idle(self) -> float:
        """What part of their time nobody called them."""
        return max(0.0, 1.0 - self.running)

    @property
    def is_called(self) -> bool:
        """Whether it is a group whose methods are called."""
        return any(method.spent.count for method in self.methods)


def group_of(process: str) -> str:
    """The group of a rank; all that is below ranks of one is another; of any other process, its own name.

    >>> group_of("rollout:3"), group_of("rollout:3/0"), group_of("driver")
    ('rollout', 'rollout/*', 'driver')
    """
    address = worker_address(process)
    if address is None:
        return process
    return address.group if address.parent is None else f"{address.group}/*"


def group_times(sheets: Iterable[TimeSheet]) -> tuple[GroupTimes, ...]:
    """The times of each group of a job, by name, those of single processes last.

    Args:
        sheets: of all processes. Several of one name are of one rank, which came back.
    """
    groups: dict[str, list[TimeSheet]] = defaultdict(list)
    for sheet in sheets:
        if sheet.calls or sheet.waits or sheet.phases or sheet.carried:
            groups[group_of(sheet.process)].append(sheet)
    found = [_GroupSums(of_group).times(name) for name, of_group in groups.items()]
    return tuple(sorted(found, key=lambda group: (not group.is_called, group.name)))


def waits_of(group: str, sheets: Iterable[TimeSheet]) -> tuple[WaitTimes, ...]:
    """What the ranks of a group waited for in all of their calls, the largest first; shares are of their time."""
    return _GroupSums([sheet for sheet in sheets if group_of(sheet.process) == group]).waits_in_calls()


class _Ranks(NamedTuple):
    """How many there are, and for how many seconds they are looked at, together."""

    number: int
    lived_s: float

    def spent(self, sums: _Sums[S]) -> Spent:
        seconds: dict[str, float] = defaultdict(float)
        for process, each in sums:
            seconds[process] += each.seconds
        total_s = sum(seconds.values())
        share = total_s / self.lived_s if self.lived_s > 0 else 0.0
        longest = max(seconds, key=lambda process: seconds[process], default="")
        longest_s = seconds.get(longest, 0.0)
        return Spent(sum(each.count for _, each in sums), total_s / self.number, longest_s, share, longest)


class _GroupSums:
    """The sums of the ranks of a group."""

    def __init__(self, sheets: Sequence[TimeSheet]) -> None:
        self._ranks = _Ranks(len({sheet.process for sheet in sheets}), sum(s.lived_s for s in sheets))
        self._cpu_s = sum(sheet.cpu_s for sheet in sheets)
        carried: dict[str, int] = defaultdict(int)
        for sheet in sheets:
            for channel, count in sheet.carried.items():
                carried[channel] += count
        self._carried = dict(sorted(carried.items(), key=lambda each: -each[1]))
        self._calls: _Sums[CallSum] = [(sheet.process, call) for sheet in sheets for call in sheet.calls]
        self._values: _Sums[CallSum] = [(sheet.process, made) for sheet in sheets for made in sheet.values]
        self._phases: _Sums[PhaseSum] = [(s.process, phase) for s in sheets for phase in s.phases]
        self._waits: _Sums[WaitSum] = [(sheet.process, wait) for sheet in sheets for wait in sheet.waits]

    def times(self, name: str) -> GroupTimes:
        names = [call.method for _, call in self._calls]
        names += [phase.method for _, phase in self._phases]
        names += [wait.method for _, wait in self._waits]
        methods = map(self._method, dict.fromkeys(names))
        number, lived_s = self._ranks
        sorted_methods = tuple(sorted(methods, key=lambda m: -m.spent.mean_s))
        cores = self._cpu_s / lived_s if lived_s > 0 else 0.0
        return GroupTimes(name, number, lived_s / number, sorted_methods, cores, self._carried)

    def _method(self, method: str) -> MethodTimes:
        calls = [each for each in self._calls if each[1].method == method]
        phases = [each for each in self._phases if each[1].method == method]
        waits = [each for each in self._waits if each[1].method == method]
        found = [self._phase(name, of, waits) for name, of in _by(phases, lambda each: each.phase).items()]
        phases_found = tuple(sorted(found, key=lambda each: -each.spent.mean_s))
        made = self._ranks.spent([each for each in self._values if each[1].method == method])
        return MethodTimes(method, self._ranks.spent(calls), phases_found, self._by_cause(waits), made)

    def waits_in_calls(self) -> tuple[WaitTimes, ...]:
        return self._by_cause([each for each in self._waits if each[1].method])

    def _by_cause(self, waits: _Sums[WaitSum]) -> tuple[WaitTimes, ...]:
        causes = _by(waits, lambda each: (each.kind, each.operation, each.subject))
        return tuple(sorted((self._wait(*of) for of in causes.items()), key=lambda each: -each.spent.mean_s))

    def _phase(self, name: str, phases: _Sums[PhaseSum], waits: _Sums[WaitSum]) -> PhaseTimes:
        inside = [each for each in waits if each[1].phase == name or each[1].phase.startswith(f"{name}/")]
        return PhaseTimes(name, self._ranks.spent(phases), self._ranks.spent(inside).share)

    def _wait(self, cause: tuple[str, str, str], waits: _Sums[WaitSum]) -> WaitTimes:
        peers = _by(waits, lambda each: each.by)
        ended_by = {by: self._ranks.spent(of).share for by, of in peers.items() if by}
        largest = dict(sorted(ended_by.items(), key=lambda each: -each[1]))
        return WaitTimes(*cause, self._ranks.spent(waits), largest)


def _by(sums: _Sums[S], key: Callable[[S], K]) -> dict[K, list[tuple[str, S]]]:
    found: dict[K, list[tuple[str, S]]] = {}
    for process, each in sums:
        found.setdefault(key(each), []).append((process, each))
    return found
