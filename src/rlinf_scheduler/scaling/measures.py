"""How much a group is waited for, and has to spare, from where the time of all processes went. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from rlinf_scheduler.comm.waits import CHANNEL, RESULT, Wait
from rlinf_scheduler.observe.graph import WaitGraph
from rlinf_scheduler.observe.report import group_of
from rlinf_scheduler.observe.time_service import JobTimes
from rlinf_scheduler.planning.scaling import ScalingSample

# What a policy may go by: the kind of the waits that others have for the group.
MEASURES = {"queue_wait": CHANNEL, "result_wait": RESULT}


class ProcessTimes(NamedTuple):
    """Where the time of the processes of one name went, those before the present one too, as far as it matters.

    Attributes:
        lived_s: for how long they are looked at, in seconds.
        waited_s: how much of it they waited until the group ended their wait, or do so until it does.
        busy_s: how long their calls ran, and did not wait.
    """

    lived_s: float = 0.0
    waited_s: float = 0.0
    busy_s: float = 0.0

    def plus(self, other: ProcessTimes) -> ProcessTimes:
        """Both together."""
        return ProcessTimes(*map(float.__add__, self, other))

    def since(self, before: ProcessTimes) -> ProcessTimes:
        """What has come since.

        One that was killed says nothing any more, and one is looked at anew from its first call on: then it has lived
        for less than before, and what it says is all new.
        """
        if self.lived_s < before.lived_s:
            return self
        return ProcessTimes(*(max(0.0, now - then) for now, then in zip(self, before, strict=True)))


@dataclass(frozen=True, slots=True)
class TimesSoFar:
    """Where time went since the job began, as far as it matters to one group.

    Attributes:
        at: until when, in seconds of the home's clock.
        processes: of each name.
    """

    at: float
    processes: Mapping[str, ProcessTimes] = field(default_factory=dict)


def has_open_waits(times: JobTimes, group: str, by: str) -> bool:
    """Whether somebody waits now who may wait for the group: a graph tells for whom."""
    others = (sheet for sheet in times.sheets if group_of(sheet.process) != group)
    return any(wait.kind == MEASURES[by] for sheet in others for wait in sheet.waiting)


def times_so_far(
    times: JobTimes,
    group: str,
    by: str,
    before: TimesSoFar | None = None,
    graph: WaitGraph | None = None,
) -> TimesSoFar:
    """What all processes say, seen from one group.

    Args:
        by: the measure, one of `MEASURES`.
        before: what they said before: who says nothing now has lived no longer.
        graph: says who could end the waits that go on: they count for all of these.
    """

    def is_awaited(process: str, wait: Wait) -> bool:
        ends = () if graph is None or wait.kind != kind else graph.ends_of(process, wait).processes
        return any(group_of(end) == group for end in ends)

    kind = MEASURES[by]
    found: defaultdict[str, ProcessTimes] = defaultdict(ProcessTimes)
    for sheet in times.sheets:
        waited_s = busy_s = 0.0
        if group_of(sheet.process) == group:
            busy_s = sum(call.seconds for call in sheet.calls)
            busy_s -= sum(wait.seconds for wait in sheet.waits if wait.method)
        else:
            ended = (wait for wait in sheet.waits if wait.kind == kind and group_of(wait.by) == group)
            waited_s = sum(wait.seconds for wait in ended)
            waited_s += sum(wait.since_s for wait in sheet.waiting if is_awaited(sheet.process, wait))
        found[sheet.process] = found[sheet.process].plus(
            ProcessTimes(float(sheet.lived_s), float(waited_s), float(busy_s))
        )
    return TimesSoFar(times.now, {**(before.processes if before is not None else {}), **found})


def sample_between(before: TimesSoFar, after: TimesSoFar, group: str) -> ScalingSample:
    """How the group did between two looks."""
    groups: defaultdict[str, ProcessTimes] = defaultdict(ProcessTimes)
    for process, times in after.processes.items():
        name = group_of(process)
        since = times.since(before.processes.get(process, ProcessTimes()))
        # What a wait took before the looks is of neither this process nor the others of its group.
        waited_s = min(since.waited_s, max(since.lived_s, after.at - before.at))
        groups[name] = groups[name].plus(since._replace(waited_s=waited_s))
    own = groups.pop(group, ProcessTimes())

    def share(seconds: float, lived_s: float) -> float:
        """Of who has just begun, of the time between the looks."""
        return min(1.0, seconds / max(lived_s, after.at - before.at, 1e-9))

    waited = [share(each.waited_s, each.lived_s) for each in groups.values()]
    # Of a group that says nothing nobody knows that it has anything to spare.
    spare = 1.0 - share(own.busy_s, own.lived_s) if own.lived_s else 0.0
    return ScalingSample(after.at, max(waited, default=0.0), spare)
