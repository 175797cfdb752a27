"""How much a group is waited for, and has to spare, from where the time of all processes went. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from rlinf_scheduler.comm.waits import CHANNEL, RESULT
from rlinf_scheduler.observe.report import group_of
from rlinf_scheduler.observe.time_service import JobTimes
from rlinf_scheduler.planning.scaling import ScalingSample

# What a policy may go by: the kind of the waits that others have for the group.
MEASURES = {"queue_wait": CHANNEL, "result_wait": RESULT}


@dataclass(frozen=True, slots=True)
class TimesSoFar:
    """Where time went since the job began, as far as it matters to one group.

    Attributes:
        at: until when, in seconds of the home's clock.
        lived_s: of each group, the seconds of all its ranks.
        waited_s: how much of it each group has waited until this group ended its wait.
        running_s, own_waits_s: how long calls of the group ran, and waited.
    """

    at: float
    lived_s: Mapping[str, float] = field(default_factory=dict)
    waited_s: Mapping[str, float] = field(default_factory=dict)
    running_s: float = 0.0
    own_waits_s: float = 0.0


def times_so_far(times: JobTimes, group: str, by: str) -> TimesSoFar:
    """What all processes say, seen from one group.

    Args:
        by: the measure, one of `MEASURES`.
    """
    kind = MEASURES[by]
    lived: dict[str, float] = defaultdict(float)
    waited: dict[str, float] = defaultdict(float)
    running_s = own_waits_s = 0.0
    for sheet in times.sheets:
        name = group_of(sheet.process)
        lived[name] += sheet.lived_s
        if name == group:
            running_s += sum(call.seconds for call in sheet.calls)
            own_waits_s += sum(wait.seconds for wait in sheet.waits if wait.method)
            continue
        for wait in sheet.waits:
            if wait.kind == kind and group_of(wait.by) == group:
                waited[name] += wait.seconds
    return TimesSoFar(times.now, dict(lived), dict(waited), running_s, own_waits_s)


def sample_between(before: TimesSoFar, after: TimesSoFar, group: str) -> ScalingSample:
    """How the group did between two looks."""

    def lived_s(name: str) -> float:
        return max(after.lived_s.get(name, 0.0) - before.lived_s.get(name, 0.0), 1e-9)

    waited = [
        (seconds - before.waited_s.get(name, 0.0)) / lived_s(name) for name, seconds in after.waited_s.items()
    ]
    running = min(1.0, (after.running_s - before.running_s) / lived_s(group))
    busy = max(0.0, running - (after.own_waits_s - before.own_waits_s) / lived_s(group))
    return ScalingSample(after.at, max(waited, default=0.0), 1.0 - max(0.0, min(1.0, busy)))
