"""What a process says of where its time went."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

import msgspec
from msgspec.structs import replace

from rlinf_scheduler.comm.waits import Cause, Wait, cause_of
from rlinf_scheduler.observe.levels import Level, Levels
from rlinf_scheduler.observe.own_stats import OwnStats
from rlinf_scheduler.observe.process_stats import RunningCall
from rlinf_scheduler.observe.stacks import Threads
from rlinf_scheduler.observe.timekeeping import TIMES, Site, Span, Timekeeper
from rlinf_scheduler.session import Session

# A service of the job's home: what a process says when it leaves, with at most so many spans.
TIMES_LEFT = "job.times_left"
LEFT_SPANS = 256


class CallSum(msgspec.Struct, frozen=True, array_like=True):
    """How often a method was called, and for how many seconds it ran."""

    method: str
    count: int
    seconds: float


class PhaseSum(msgspec.Struct, frozen=True, array_like=True):
    """How often there was a phase, in which method, and for how many seconds."""

    method: str
    phase: str
    count: int
    seconds: float


class WaitSum(msgspec.Struct, frozen=True, array_like=True):
    """How often, and how many seconds, was waited.

    Attributes:
        method, phase: where.
        kind, operation, subject: what for, as of `Cause`.
        by: who ended these waits; "" where that is not known.
        count, seconds: how often, and how long together.
    """

    method: str
    phase: str
    kind: str
    operation: str
    subject: str
    by: str
    count: int
    seconds: float


class TimeSheet(msgspec.Struct, frozen=True, array_like=True):
    """Where a process's time went.

    Attributes:
        lived_s: for how long it is looked at: since its first call, or where none has come, since it takes part.
        calls, phases, waits: what has ended, added up; the calls that run, and the longest wait that goes on, are added
            to those that have ended.
        running: those.
        spans: the last ones that took a while, by the process's clock.
        now: when this was said, on that clock.
        offset_s: what its clock shows more than the home's, in seconds.
        is_full: whether there were more spans.
        values: of calls that stream them: how many were made by each method, and for how many seconds.
        cpu_s: processor time that it has used since it takes part, in seconds.
        carried: how many items were delivered of each channel that it holds.
        waiting: the waits that go on, of those that are added.
    """

    process: str
    lived_s: float
    calls: tuple[CallSum, ...] = ()
    phases: tuple[PhaseSum, ...] = ()
    waits: tuple[WaitSum, ...] = ()
    running: tuple[RunningCall, ...] = ()
    spans: tuple[Span, ...] = ()
    now: float = 0.0
    offset_s: float = 0.0
    is_full: bool = False
    values: tuple[CallSum, ...] = ()
    cpu_s: float = 0.0
    carried: dict[str, int] = {}
    waiting: tuple[Wait, ...] = ()


# A level of every process; asked with how many spans there may be.
TIME_SHEET = Level("times", TimeSheet, int)


def sheet_of(
    times: Timekeeper,
    process: str,
    began: float,
    now: float,
    *,
    running: Callable[[], Collection[RunningCall]] = tuple,
    waiting: Callable[[], Wait | None] = lambda: None,
    max_spans: int = 0,
) -> TimeSheet:
    """The sheet of a process.

    Args:
        times: what it has counted.
        process: its name.
        began: since when it takes part, on the monotonic clock.
        now: the present moment, on that clock.
        running: says which calls it runs, and what each waits for: that is added to what has ended, else who is stuck
            looks busy.
        waiting: says what it waits for where it runs none.
        max_spans: at most so many spans, the last ones, and as many of what was given to others.
    """
    # First what is over: what ends in between is left out, not counted twice.
    calls = {method: (count, seconds) for method, (count, seconds) in times.calls.copy().items()}
    waits = [_wait_sum(*key, *spent) for key, spent in times.waits.copy().items()]
    present = [call for call in running() if call.since_s is not None]
    for call in present:
        count, seconds = calls.get(call.method, (0, 0.0))
        calls[call.method] = count + 1, seconds + (call.since_s or 0.0)
    open_waits = [(call.method, call.wait) for call in present] if present else [("", waiting())]
    for method, wait in open_waits:
        if wait is not None:
            waits.append(_wait_sum(Site(method), cause_of(wait), "", 1, wait.since_s))
    recent, given = tuple(times.recent.copy()), tuple(times.given.copy()) if times.given else ()
    spans = (*recent[-max_spans:], *given[-max_spans:]) if max_spans else ()
    return TimeSheet(
        process,
        now - (began if times.since is None else max(began, times.since)),
        tuple(CallSum(method, *spent) for method, spent in calls.items()),
        tuple(PhaseSum(*where, *spent) for where, spent in times.phases.copy().items()),
        tuple(waits),
        tuple(present),
        spans,
        now,
        is_full=len(recent) == times.recent.maxlen or max_spans < len(recent),
        values=tuple(CallSum(method, *spent) for method, spent in times.values.copy().items()),
        waiting=tuple(wait for _, wait in open_waits if wait is not None),
    )


def _wait_sum(where: Site, cause: Cause, by: str, count: int, seconds: float) -> WaitSum:
    return WaitSum(*where, cause.kind, cause.operation, cause.subject, by, count, seconds)


class TimeSheets:
    """Says where this process's time went; a service of its session. What it knows goes to the home when it leaves.

    Attributes:
        running: says which calls run here, and what each waits for.
    """

    def __init__(self, session: Session) -> None:
        self.running: Callable[[], Collection[RunningCall]] = tuple
        self._session = session
        self._threads = session.service(Threads)
        self._began, self._cpu_began = time.monotonic(), time.process_time()
        session.service(Levels).add(TIME_SHEET, self.now)
        if session.home.process_id != session.messenger.endpoint.process_id:
            session.on_close(self._hand_over)

    def now(self, max_spans: int) -> TimeSheet:
        """The sheet of now; on the I/O thread."""
        held = self._session.service(OwnStats).now().channels
        carried = {channel.name: channel.num_delivered for channel in held if channel.num_delivered}
        return replace(self._without_channels(max_spans), carried=carried)

    def _without_channels(self, max_spans: int) -> TimeSheet:
        name, now = self._session.name, time.monotonic()
        sheet = sheet_of(
            TIMES,
            name,
            self._began,
            now,
            running=self.running,
            waiting=self._threads.longest_wait,
            max_spans=max_spans,
        )
        return replace(sheet, cpu_s=time.process_time() - self._cpu_began)

    def _hand_over(self) -> None:
        session = self._session
        if TIMES.calls and not session.failure:
            session.messenger.notify(session.home, TIMES_LEFT, self._without_channels(LEFT_SPANS))
