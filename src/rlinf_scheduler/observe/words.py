"""Waits, and what processes are at, in words. Pure."""

from __future__ import annotations

from rlinf_scheduler.observe.graph import Blocked, WaitGraph, is_idle, runs_users_code
from rlinf_scheduler.observe.process_stats import Stack
from rlinf_scheduler.observe.queue_waits import some_names
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
