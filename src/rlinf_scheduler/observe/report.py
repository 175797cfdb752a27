"""Where the time of a job went: phases and waits by group, and what its steps waited for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice, pairwise
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from rlinf_scheduler.addresses import worker_address
from rlinf_scheduler.comm.waits import CHANNEL, WEIGHTS, cause_of
from rlinf_scheduler.errors import ConfigError
from rlinf_scheduler.observe.time_service import JobTimes, ask_times
from rlinf_scheduler.observe.time_sheets import CallSum, PhaseSum, TimeSheet, WaitSum
from rlinf_scheduler.observe.timekeeping import CALL, VALUE, WAIT, Span
from rlinf_scheduler.observe.tracks import Track, critical_path
from rlinf_scheduler.session import Session
from rlinf_scheduler.session.job_file import RunningJob
from rlinf_scheduler.wording import counted, did_you_mean, list_names, printable

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


# How long all processes together may take to answer, in seconds.
WITHIN_S = 5.0
# Of steps the last ones are followed, as far as all processes remember them. What is smaller than such a part is not
# written out.
MAX_STEPS, MIN_STEPS, MIN_SHARE = 32, 4, 0.005
_MAX_LINES = 8


@dataclass(frozen=True, slots=True)
class PathPart:
    """What a group was at while a step waited for exactly that.

    Attributes:
        group: which.
        what: its method and phase, or what it waited for.
        share: of the steps' time.
        mean_s: of a step, in seconds.
    """

    group: str
    what: str
    share: float
    mean_s: float


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The steps of a job: each lasts from the end of one call of a method to the end of the next.

    Of a method that streams values, from one value to the next.

    Attributes:
        group, method: which method.
        count: how many there were, of a rank.
        mean_s: how long one took, in seconds.
        waits: what the group waited for in them, the largest first; shares are of the steps' time.
        num_followed: so many of them, the last ones, were followed through all processes.
        path: their critical path: what they would be shorter by, the largest first.
        of_values: they last from one value of a stream to the next.
    """

    group: str
    method: str
    count: int
    mean_s: float
    waits: tuple[WaitTimes, ...]
    num_followed: int
    path: tuple[PathPart, ...]
    of_values: bool = False

    @property
    def headline(self) -> str:
        """What the steps waited for most, in words; "" if for nothing that matters."""
        wait = self.waits[0] if self.waits else None
        if wait is None or wait.spent.share < MIN_SHARE:
            return ""
        return f"{wait.spent.share:.0%} of the step {self.group} waits for {thing_text(wait)}"


@dataclass(frozen=True, slots=True)
class Report:
    """Where the time of a job went: `print(cluster.report())`.

    Attributes:
        groups: the worker groups by name, then processes beside them, such as the driver.
        step: the steps of the job; None if no method was called twice, and none has streamed several values.
        missing: of which processes it is not known, and why, by name.
        took_s: how long it took to ask all processes, in seconds.
    """

    groups: tuple[GroupTimes, ...]
    step: StepTimes | None
    missing: dict[str, str]
    took_s: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        data: dict[str, Any] = msgspec.to_builtins(asdict(self))
        for group, each in zip(self.groups, data["groups"], strict=True):
            each |= {name: getattr(group, name) for name in ("busy", "waiting", "idle")}
        return data

    def __str__(self) -> str:
        called = [group for group in self.groups if group.is_called]
        lines = [line for group in called for line in _group_lines(group)]
        if not called:
            lines = ["no rank was called yet"]
        lines += [_carrier_line(group) for group in self.groups if group.carried]
        lines += _step_lines(self.step)
        lines += [f"missing: {name}: {why}" for name, why in islice(self.missing.items(), _MAX_LINES)]
        if len(self.missing) > _MAX_LINES:
            lines.append(f"missing: {len(self.missing) - _MAX_LINES} more processes")
        # Methods, phases, channels and processes may have any name.
        return "\n".join(map(printable, lines))


def thing_text(wait: WaitTimes) -> str:
    """What was waited for, and of whom, in words."""
    thing = wait.operation
    if wait.kind == CHANNEL and not wait.operation.startswith(("put(", "ask(")):
        thing = wait.subject
    elif wait.kind == WEIGHTS:
        thing = f"weights '{wait.subject}'"
    ended_by = [name for name, share in wait.ended_by.items() if share >= wait.spent.share / 20]
    if not ended_by:
        return thing
    groups = dict.fromkeys(map(group_of, ended_by))
    return f"{thing} of {ended_by[0] if len(ended_by) == 1 else ' and '.join(groups)}"


def _group_lines(group: GroupTimes) -> Iterator[str]:
    ranks = counted(group.num_ranks, "rank")
    yield (
        f"{group.name} ({ranks}, {group.lived_s:.1f} s): busy {group.busy:.0%}, waits {group.waiting:.0%}, "
        f"idle {group.idle:.0%}"
    )
    for method in group.methods:
        if method.method:
            yield from _method_lines(group, method)


def _method_lines(group: GroupTimes, method: MethodTimes) -> Iterator[str]:
    times = counted(method.spent.count, "call")
    if method.values.count:
        times = f"{times}, {counted(method.values.count, 'value')}"
    spent = method.values if method.values.count else method.spent
    each_s = spent.mean_s * group.num_ranks / max(1, spent.count)
    yield f"  {method.method + '()':30} {method.spent.share:4.0%}  {times}, {_time(each_s)} each"
    rows: list[tuple[float, str, str]] = []
    for phase in method.phases:
        uneven = f", the longest {_longest(phase.spent)}" if group.num_ranks > 1 else ""
        waited = f", {phase.waiting:.0%} waiting" if phase.waiting >= MIN_SHARE else ""
        rows.append((phase.spent.share, phase.phase, f"{_time(phase.spent.mean_s)} a rank{uneven}{waited}"))
    for wait in method.waits:
        by = [f"{name} {share:.0%}" for name, share in islice(wait.ended_by.items(), 4) if share >= MIN_SHARE]
        ended_by = f", until {', '.join(by)}" if by else ""
        uneven = f", the longest {_longest(wait.spent)}" if group.num_ranks > 1 else ""
        about = f"{_time(wait.spent.mean_s)} a rank{uneven}{ended_by}"
        rows.append((wait.spent.share, f"waits in {wait.operation}", about))
    for share, what, about in rows:
        if share >= MIN_SHARE:
            yield f"    {what:40} {share:4.0%}  {about}"


def _longest(spent: Spent) -> str:
    return f"{_time(spent.max_s)} of {spent.longest}"


def _carrier_line(group: GroupTimes) -> str:
    """What processes that hold channels did for them."""
    items = [f"{count:,} of '{channel}'" for channel, count in islice(group.carried.items(), _MAX_LINES)]
    if len(group.carried) > _MAX_LINES:
        items.append(f"those of {counted(len(group.carried) - _MAX_LINES, 'more channel')}")
    per_s = sum(group.carried.values()) / max(group.lived_s, 1e-9)
    processes = counted(group.num_ranks, "process", "es")
    return (
        f"{group.name} ({processes}, {group.lived_s:.1f} s): {group.cores:.0%} of a core, "
        f"{per_s:,.0f} items/s delivered: {', '.join(items)}"
    )


def _step_lines(step: StepTimes | None) -> Iterator[str]:
    if step is None:
        return
    what = f"{'value of ' if step.of_values else ''}{step.group}.{step.method}()"
    yield f"a step, from one {what} to the next, takes {_time(step.mean_s)}; there were {step.count}"
    if step.headline:
        yield f"  {step.headline}"
    if step.path:
        yield f"  the critical path of the last {step.num_followed}:"
    for part in step.path[:_MAX_LINES]:
        if part.share >= MIN_SHARE:
            yield f"    {part.group + '  ' + part.what:40} {part.share:4.0%}  {_time(part.mean_s)} a step"


def _time(seconds: float) -> str:
    """How long something takes, in seconds or milliseconds."""
    return f"{seconds:.2f} s" if seconds >= 0.9995 else f"{1e3 * seconds:.3g} ms"


# -- made of what all processes say ------------------------------------------------------------------


def report_of(times: JobTimes, step: str | None = None) -> Report:
    """What there is to say, given where the time of all processes went.

    Args:
        step: the method whose calls are the job's steps, as "group.method"; None: the one that takes most of a
            group's time, of those that were called more than once.

    Raises:
        ConfigError: no such method was called.
    """
    groups = group_times(times.sheets)
    chosen = _chosen(groups, step)
    return Report(
        groups, None if chosen is None else _step(times, *chosen), dict(times.missing), times.took_s
    )


def _chosen(groups: Sequence[GroupTimes], step: str | None) -> tuple[GroupTimes, MethodTimes] | None:
    known = {f"{group.name}.{method.method}": (group, method) for group in groups for method in group.methods}
    called = {name: each for name, each in known.items() if each[1].num_steps}
    if step is None:
        often = [each for each in called.values() if each[1].num_steps > each[0].num_ranks]
        return max(often, key=lambda each: (min(1.0, each[1].spent.share), each[1].waiting), default=None)
    if step not in called:
        there = f"called were {list_names(called)}" if called else "nothing was called yet"
        raise ConfigError(
            f"report(step={step!r}): no rank was called so; {there}", hint=did_you_mean(step, called)
        )
    return called[step]


def _step(times: JobTimes, group: GroupTimes, method: MethodTimes) -> StepTimes:
    tracks = tracks_of(times.sheets)
    steps = [
        (sheet.process, span)
        for sheet in times.sheets
        if group_of(sheet.process) == group.name
        for span in _steps_in(sheet, method.method)
    ]
    steps.sort(key=lambda each: each[1].ended)
    cut = (track.begins for track in tracks.values() if track.is_cut)
    known = [each for each in steps if each[1].began >= max(cut, default=0.0)]
    last = known[-MAX_STEPS:] if len(known) >= MIN_STEPS else steps[-MIN_STEPS:]
    count = max(1, round(method.num_steps / group.num_ranks))
    about = group.name, method.method, count, group.lived_s / count
    waits = waits_of(group.name, times.sheets)
    return StepTimes(*about, waits, len(last), _path(tracks, last), of_values=method.values.count > 0)


def _steps_in(sheet: TimeSheet, method: str) -> Iterator[Span]:
    """The steps of a rank, of which the first is its first call, or value, alone."""
    kind = VALUE if any(made.method == method for made in sheet.values) else CALL
    ends = [span for span in _on_home_clock(sheet) if span.kind == kind and span.name == method]
    ends.sort(key=lambda span: span.ended)
    for before, end in pairwise([None, *ends]):
        if end is not None:
            yield end if before is None else replace(end, began=min(end.began, before.ended))


def tracks_of(sheets: Iterable[TimeSheet]) -> dict[str, Track]:
    """What each process was at, on the home's clock; of a rank that came back, all its processes."""
    spans: dict[str, list[Span]] = defaultdict(list)
    cut: set[str] = set()
    for sheet in sheets:
        spans[sheet.process] += [*_on_home_clock(sheet), *_running(sheet)]
        if sheet.is_full:
            cut.add(sheet.process)
    return {process: Track(each, is_cut=process in cut) for process, each in spans.items()}


def _on_home_clock(sheet: TimeSheet) -> Iterator[Span]:
    off = sheet.offset_s
    for span in sheet.spans:
        yield replace(span, began=span.began - off, ended=span.ended - off) if off else span


def _running(sheet: TimeSheet) -> Iterator[Span]:
    """The calls that have not ended, and what they wait for, as far as they have come."""
    now = sheet.now - sheet.offset_s
    for call in sheet.running:
        yield Span(CALL, now - (call.since_s or 0.0), now, call.method, call.thread, call.caller)
        if call.wait is not None and call.wait.since_s:
            cause = cause_of(call.wait)
            began = now - call.wait.since_s
            yield Span(WAIT, began, now, cause.operation, call.thread, "", cause.subject)


def _path(tracks: Mapping[str, Track], steps: Sequence[tuple[str, Span]]) -> tuple[PathPart, ...]:
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    for process, step in steps:
        for piece in critical_path(tracks, process, step.began, step.ended, step.thread):
            seconds[group_of(piece.process), piece.what] += piece.ended - piece.began
    total_s = sum(seconds.values())
    largest = sorted(seconds.items(), key=lambda each: -each[1])
    return tuple(PathPart(*where, each_s / total_s, each_s / len(steps)) for where, each_s in largest)


# -- asked of a job ----------------------------------------------------------------------------------


def ask_report(session: Session, step: str | None = None, within_s: float = WITHIN_S) -> Report:
    """Ask all processes of a job where their time went.

    Raises:
        ConfigError: no method was called that `step` names.
        ClusterError: the process that keeps the job's directory does not answer.
    """
    return report_of(ask_times(session, within_s), step)


def report_of_job(job: RunningJob, name: str, step: str | None = None) -> Report:
    """The same of a job whose driver runs on this machine, asked as a process called `name` that only looks.

    Raises:
        CommError: it cannot be reached.
        ClusterError: it does not answer.
        ConfigError: no method was called that `step` names.
    """
    with job.attach(name) as session:
        return ask_report(session, step)
