"""Which processes everybody else waits for in the end, the most probable culprit first. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from rlinf_scheduler.observe.graph import Blocked, WaitGraph, is_idle
from rlinf_scheduler.observe.words import at_text, wait_text

# How sure it is that this is what is wrong: the first ones are.
STOPPED, STUCK, DEADLOCK, HOPELESS, AT_WORK, IDLE, WAITS = range(7)
# Processes that wait for each other for less are no deadlock yet, in seconds: not all of them were asked at one moment,
# and where items move, somebody has always just put one and waits for another.
RING_S = 0.5


@dataclass(frozen=True, slots=True)
class Culprit:
    """What others wait for in the end.

    Attributes:
        address: the process, e.g. "rollout:1".
        operation: what it is at: the call in which it waits, the line at which it stands, "stopped", "idle".
        since_s: for how long, in seconds; 0 where that is not known.
        reason: all of it in words.
        waiters: who waits for it, and for those, the nearest first.
        certainty: one of the numbers above.
        cycle: the processes that wait for each other, where it is one of them.
    """

    address: str
    operation: str
    since_s: float
    reason: str
    waiters: tuple[str, ...]
    certainty: int
    cycle: tuple[str, ...] = ()

    @property
    def since(self) -> float:
        """Another name of `since_s`."""
        return self.since_s


def culprits_of(graph: WaitGraph) -> list[Culprit]:
    """The ends of all chains of waits, the most probable culprit first."""
    found = [*_cycles(graph), *_roots(graph)]
    return sorted(found, key=lambda each: (_weight(each), -len(each.waiters), -each.since_s))


def _weight(culprit: Culprit) -> tuple[bool, int]:
    is_alone = not culprit.waiters and culprit.certainty not in (DEADLOCK, HOPELESS)
    return is_alone, culprit.certainty


# -- chains that end ---------------------------------------------------------------------------------


def _roots(graph: WaitGraph) -> list[Culprit]:
    awaited = {end for ends in graph.ends.values() for end in ends}
    found = [_silent(graph, name) for name in graph.silent]
    for name in graph.doing:
        hopeless = [
            each for each in graph.blocked.get(name, ()) if each.ends.is_hopeless or not each.ends.processes
        ]
        if hopeless:
            found.append(_waiting(graph, max(hopeless, key=lambda each: each.wait.since_s)))
        if name in awaited and (name not in graph.blocked or graph.is_at_work(name)):
            found.append(_at(graph, name))
    return found


def _silent(graph: WaitGraph, name: str) -> Culprit:
    silent = graph.silent[name]
    operation, since_s, reason = at_text(graph, name)
    certainty = STOPPED if silent.state == "stopped" else STUCK
    return Culprit(name, operation, since_s, reason, graph.waiters_of(name), certainty)


def _waiting(graph: WaitGraph, blocked: Blocked) -> Culprit:
    certainty = HOPELESS if blocked.ends.is_hopeless and not _may_come(graph, blocked) else WAITS
    waiters = graph.waiters_of(blocked.process)
    return Culprit(
        blocked.process,
        blocked.wait.operation,
        blocked.wait.since_s,
        wait_text(graph, blocked),
        waiters,
        certainty,
    )


def _may_come(graph: WaitGraph, blocked: Blocked) -> bool:
    """Whether somebody is at work who may end a wait although that does not show."""
    return any(
        graph.is_at_work(name) for name in graph.doing if name != blocked.process and not _is_driver(name)
    )


def _is_driver(name: str) -> bool:
    """Whether a process is the job's driver, or one of several: "driver@host.4711"."""
    return name.partition("@")[0] == "driver"


def _at(graph: WaitGraph, name: str) -> Culprit:
    doing = graph.doing[name]
    waiters = graph.waiters_of(name)
    operation, since_s, text = at_text(graph, name)
    return Culprit(name, operation, since_s, text, waiters, IDLE if is_idle(doing) else AT_WORK)


# -- cycles ------------------------------------------------------------------------------------------


def _cycles(graph: WaitGraph) -> list[Culprit]:
    """A culprit for each set of processes that wait for each other, and for nobody else who is at work."""
    found, seen = [], set[str]()
    for process in _in_rings(graph):
        if process in seen:
            continue
        cycle = _cycle_from(graph, process)
        if cycle and not seen.intersection(cycle):
            seen.update(cycle)
            found.append(_ring(graph, cycle))
    return found


def _in_rings(graph: WaitGraph) -> list[str]:
    """The processes that may be part of a cycle: each waits for one of them, and one of them waits for each."""
    left = dict.fromkeys(graph.blocked)
    before = len(left) + 1
    while len(left) < before:
        before = len(left)
        front = [process for process in left if not any(end in left for end in graph.ends[process])]
        while front:  # and those who wait for nobody but these
            for process in front:
                del left[process]
            waiters = dict.fromkeys(waiter for process in front for waiter in graph.waiting_for(process))
            front = [w for w in waiters if w in left and not any(end in left for end in graph.ends[w])]
        awaited = {end for process in left for end in graph.ends[process]}
        left = {process: None for process in left if process in awaited}
    return list(left)


def _cycle_from(graph: WaitGraph, process: str) -> tuple[str, ...]:
    """The shortest way from a process back to itself; nothing if there is none, or if somebody else may end a wait."""
    ways: list[tuple[str, ...]] = [(process,)]
    seen: set[str] = set()
    while ways:
        way = ways.pop(0)
        for end in graph.ends[way[-1]]:
            if end == process:
                return way if _is_closed(graph, way) else ()
            if end not in seen and end in graph.blocked:
                seen.add(end)
                ways.append((*way, end))
    return ()


def _is_closed(graph: WaitGraph, cycle: tuple[str, ...]) -> bool:
    """Whether nobody goes on for whom one of a cycle waits, directly or by others."""
    reach = dict.fromkeys(cycle)
    front = list(cycle)
    while front:
        front = [end for end in _ends_of(graph, front) if end not in reach]
        reach.update(dict.fromkeys(front))
    return not any(_goes_on(graph, name) for name in reach)


def _ends_of(graph: WaitGraph, processes: list[str]) -> dict[str, None]:
    return dict.fromkeys(end for process in processes for end in graph.ends.get(process, ()))


def _goes_on(graph: WaitGraph, name: str) -> bool:
    """Whether a process is at work, or may be: or waits for what nobody has to bring."""
    if name in graph.silent or graph.is_at_work(name):
        return True
    return any(not each.ends.processes and not each.ends.is_hopeless for each in graph.blocked.get(name, ()))


def _ring(graph: WaitGraph, cycle: tuple[str, ...]) -> Culprit:
    waits = [_towards(graph, process, cycle[(place + 1) % len(cycle)]) for place, process in enumerate(cycle)]
    first = max(waits, key=lambda each: each.wait.since_s)
    if any(0 < each.wait.since_s < RING_S for each in waits):  # 0: nobody knows
        return _waiting(graph, first)
    ring = " → ".join((*cycle, cycle[0]))
    each = "; ".join(wait_text(graph, wait) for wait in waits)
    waiters = tuple(dict.fromkeys(name for name in graph.waiters_of(first.process) if name not in cycle))
    reason = f"deadlock {ring}: {each}"
    return Culprit(first.process, first.wait.operation, first.wait.since_s, reason, waiters, DEADLOCK, cycle)


def _towards(graph: WaitGraph, process: str, end: str) -> Blocked:
    return next(each for each in graph.blocked[process] if end in each.ends.processes)
