"""The processes that everybody else waits for in the end, the most probable culprit first, in words, too. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rlinf_scheduler.observe.graph import Blocked, WaitGraph, is_idle, runs_users_code, some_names
from rlinf_scheduler.observe.process_stats import Stack
from rlinf_scheduler.observe.stacks import MAIN

# Of the processes that could end a wait, so many are described.
MAX_ENDS = 6
# Who stands at one line for less is not said to stand there.
STANDS_S = 1.0


def wait_text(graph: WaitGraph, *waits: Blocked) -> str:
    """Waits in the same call, in words: who, for how long, in what, and what there is to say of it."""
    processes = dict.fromkeys(each.process for each in waits)
    since_s = max(each.wait.since_s for each in waits)
    since = f" {since_s:.0f} s" if since_s >= 1 else ""
    verb = "waits" if len(processes) == 1 else "wait"
    return f"{some_names(processes)} {verb}{since} {call_text(graph, waits[0])}"


def call_text(graph: WaitGraph, blocked: Blocked) -> str:
    """In what somebody waits, what there is to say of it, and what those are at who could end it."""
    ends = blocked.ends
    others = [f"{name} has ended" for name in ends.gone]
    waiting = [name for name in ends.processes if name in graph.blocked and not graph.is_at_work(name)]
    others += [at_text(graph, name)[2] for name in ends.processes if name not in waiting]
    if ends.title:  # of the others only who they are: what they wait for is told by themselves
        others += [f"{name} waits itself" for name in waiting]
    told = ", ".join(others[:MAX_ENDS])
    if len(others) > MAX_ENDS:
        told += f" and {len(others) - MAX_ENDS} more"
    title = f"{ends.title}: " if ends.title and told else ""
    because = "; ".join(filter(None, [*ends.because, f"{title}{told}"]))
    return f"in {blocked.wait.operation}" + (f": {because}" if because else "")


def state_text(graph: WaitGraph, name: str) -> str:
    """What a process waits for, or is at; both, of one that does several things."""
    if name in graph.blocked:
        waits = wait_text(graph, max(graph.blocked[name], key=lambda each: each.wait.since_s))
        return f"{at_text(graph, name)[2]}; {waits}" if graph.is_at_work(name) else waits
    if name in graph.doing or name in graph.silent:
        return at_text(graph, name)[2]
    return f"{name} is gone: {graph.gone.get(name, 'it is not part of the job')}"


def at_text(graph: WaitGraph, name: str) -> tuple[str, float, str]:
    """What a process is at, apart from what it waits for: that, since when in seconds, and all of it in words."""
    if name in graph.silent:
        return _silent_text(graph, name)
    doing = graph.doing[name]
    if is_idle(doing):
        return "idle", 0.0, f"{name} is idle: {'nothing' if doing.calls is None else 'no call'} runs there"
    running = [call for call in doing.calls or () if call.since_s is not None]
    # Of threads that wait for nothing here the main one, or those whose code is the user's, tell most.
    free = [each for each in doing.stacks if each.wait is None]
    telling = (each for each in free if each.name == MAIN or runs_users_code(each))
    stack = next(telling, free[0] if free else None)
    where = place_of(stack) if stack is not None else ""
    same_for_s, still_for_s = (stack.same_for_s, stack.still_for_s) if stack is not None else (0.0, 0.0)
    # Of several calls the one that this thread runs; what runs on an event loop may be any of its calls.
    own = [call for call in running if stack is not None and call.thread == stack.thread] or running
    call = f"{own[0].method}()" if own else ""
    since_s = own[0].since_s or 0.0 if own else 0.0
    if running:  # it cannot stand in a call for longer than that runs: an earlier one was at the same line
        longest_s = max(each.since_s or 0.0 for each in own)
        same_for_s, still_for_s = min(same_for_s, longest_s), min(still_for_s, longest_s)
    inside = f", in {call}" if call else ""
    if where and still_for_s >= STANDS_S:
        return where, still_for_s, f"{name} stands in {where} for {still_for_s:.0f} s{inside}"
    if where and same_for_s >= STANDS_S:  # it runs in between: a loop, or something that computes
        return where, same_for_s, f"{name} runs, at {where} in every look for {same_for_s:.0f} s{inside}"
    if call:
        now = f", now in {where}" if where else ""
        return where or call, since_s, f"{name} runs {call} for {since_s:.0f} s{now}"
    return where, same_for_s, f"{name} is in {where}" if where else f"{name} shows no stack"


def _silent_text(graph: WaitGraph, name: str) -> tuple[str, float, str]:
    silent = graph.silent[name]
    since = f" for {silent.silent_s:.0f} s" if silent.silent_s >= STANDS_S else ""
    if silent.state == "stopped":
        return "stopped", silent.silent_s, f"{name} is stopped{since}: {silent.detail}"
    where = place_of(silent.stacks[0]) if silent.stacks else ""
    text = f"{name} does not answer{since}: {silent.detail}" + (f"; it is in {where}" if where else "")
    return where or "does not answer", silent.silent_s, text


def place_of(stack: Stack) -> str:
    """The innermost line that is the user's, and what is called there: "reward.py:31 (time.sleep)"."""
    frame = next(
        (each for each in stack.frames if not each.is_library), stack.frames[0] if stack.frames else None
    )
    if frame is None:
        return ""
    calls = f" ({frame.calls})" if frame.calls else ""
    return f"{frame.file.rpartition('/')[2]}:{frame.line}{calls}"


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


class Chain(NamedTuple):
    """A wait, and what that comes to.

    Attributes:
        links: the wait, the wait of who could end it, and so on; none where the process does not wait.
        end: what all of them wait for in the end; None where that is not known.
    """

    links: tuple[Blocked, ...] = ()
    end: Culprit | None = None


def chain_of(
    graph: WaitGraph, culprits: Sequence[Culprit], process: str, thread: int = 0, waited_s: float = 0.0
) -> Chain:
    """The shortest way from a process's wait to the most probable culprit that it leads to.

    Args:
        culprits: the most probable first.
        thread: in which of its threads; if none of that number waits, in the one that waits for longest.
        waited_s: for how long, in seconds: an event loop's thread has a wait for each of its tasks.
    """
    waits = graph.blocked.get(process, ())
    there = [each for each in waits if each.thread == thread]
    if there and waited_s:
        first: Blocked | None = min(there, key=lambda each: abs(each.wait.since_s - waited_s))
    else:
        first = _longest(there or waits)
    if first is None:
        return Chain((), next((each for each in culprits if process in (each.address, *each.cycle)), None))
    ways = _ways(graph, first)
    for culprit in culprits:
        ends = [name for name in (culprit.address, *culprit.cycle) if name in ways]
        if ends and process in culprit.cycle:
            return Chain((first,), culprit)
        if ends:
            return Chain((first, *_links(graph, min((ways[end] for end in ends), key=len))), culprit)
    return Chain((first,))


def _longest(waits: Sequence[Blocked]) -> Blocked | None:
    return max(waits, key=lambda each: each.wait.since_s, default=None)


def _ways(graph: WaitGraph, first: Blocked) -> dict[str, tuple[str, ...]]:
    """By whom a wait leads to each process that it leads to, that one included; the shortest ways."""
    ways: dict[str, tuple[str, ...]] = {end: (end,) for end in first.ends.processes}
    front = list(ways)
    while front:
        following = []
        for name in front:
            for end in graph.ends.get(name, ()):
                if end not in ways:
                    ways[end] = (*ways[name], end)
                    following.append(end)
        front = following
    return ways


def _links(graph: WaitGraph, way: Sequence[str]) -> list[Blocked]:
    """The wait of each of them that the next one could end; the longest, of several."""
    links = []
    for name, end in itertools.pairwise(way):
        found = _longest([each for each in graph.blocked[name] if end in each.ends.processes])
        if found is not None:
            links.append(found)
    return links
