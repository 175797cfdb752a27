"""Make a story that fails shorter, as long as it fails."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from simulator.machines import Machines
from simulator.run import Report, run_script
from simulator.script import Script, Step

MAX_RUNS = 600
LONG = 80
"""A history of more events is shown without those that have nothing to do with the violation."""


def shrink(report: Report, machines: Machines | None = None) -> Report:
    """Return the report of a shorter story that breaks a promise too: fewer calls, fewer faults.

    Args:
        report: of a story that broke one.
        machines: those that it was told with.
    """
    runs_left = MAX_RUNS
    size = max(1, len(report.script.steps) // 2)
    while size:
        shorter = None
        for script in _without_some(report.script, size):
            runs_left -= 1
            attempt = run_script(script, machines)
            if attempt.violation is not None:
                shorter = attempt
                break
            if not runs_left:
                return report
        if shorter is not None:
            report = shorter
            size = min(size, len(report.script.steps))
        else:
            size //= 2
    return report


def _without_some(script: Script, size: int) -> Iterator[Script]:
    steps: tuple[Step, ...] = script.steps
    for begin in range(0, len(steps), size):
        yield replace(script, steps=steps[:begin] + steps[begin + size :])


def tell(report: Report) -> list[str]:
    """Return a history in lines: time in seconds, who, what.

    A long one is told without what does not concern the violation.
    """
    events = report.history
    if len(events) > LONG and report.about:
        events = tuple(event for event in events if _concerns(event, report.about))
    return [f"{event[0] / 1e6:12.6f} s  {event[1]:10} {' '.join(map(str, event[2:]))}" for event in events]


def _concerns(event: tuple[Any, ...], about: frozenset[Any]) -> bool:
    return event[1] in ("network", "checker") or not about.isdisjoint(event[1:])
