"""Who waits for whom, given what every process says of itself. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from msgspec import structs

from rlinf_scheduler.addresses import process_order, siblings_name
from rlinf_scheduler.comm.waits import (
    CHANNEL,
    COLLECTIVE,
    DEVICE,
    IDLE,
    LAUNCH,
    MESSAGE,
    NAME,
    OTHER,
    RESULT,
    WEIGHTS,
    Wait,
)
from rlinf_scheduler.observe.process_stats import Activity, JobActivity, LinkNote, Silent, Stack
from rlinf_scheduler.observe.queue_waits import Ends, of_queue, some_names
from rlinf_scheduler.observe.stacks import CALL_THREADS, MAIN
from rlinf_scheduler.queueing import ChannelStats
from rlinf_scheduler.wording import name_list, nearest_name, size_text

# How the names of processes begin that only look at the job: the commands' (`rlinf why`, `rlinf channels`, ...).
LOOKERS = ("rlinf-why", "rlinf-channels", "rlinf-top", "rlinf-metrics", "rlinf-report", "rlinf-web")

# So much is told of what is on its way to one process.
_MAX_LINKS = 3
# Where Python's own waits stand: of a thread for another one, a queue, or a socket.
_STANDS_BY = ("/threading.py", "/queue.py", "/selectors.py", "/subprocess.py")


@dataclass(frozen=True, slots=True)
class Blocked:
    """A thread of a process waits in this library, or in a collective.

    Attributes:
        process: which.
        wait: for what.
        ends: what could end it.
        thread: the thread's number.
    """

    process: str
    wait: Wait
    ends: Ends = field(default_factory=Ends)
    thread: int = 0


class CollectiveMembers(NamedTuple):
    """The ranks of a group, by whether they are in a collective.

    Attributes:
        inside: in which each is that is in one.
        outside: those that are in none.
        gone: those that are gone.
    """

    inside: dict[str, str]
    outside: list[str]
    gone: list[str]


@dataclass(frozen=True)
class WaitGraph:
    """Who waits for whom.

    Attributes:
        blocked: all waits, by process.
        doing: the processes that answered, by name.
        silent: those that did not.
        gone: why those are gone that were there, by name.
        channels: by name.
    """

    blocked: dict[str, tuple[Blocked, ...]] = field(default_factory=dict)
    doing: dict[str, Activity] = field(default_factory=dict)
    silent: dict[str, Silent] = field(default_factory=dict)
    gone: dict[str, str] = field(default_factory=dict)
    channels: dict[str, ChannelStats] = field(default_factory=dict)

    @cached_property
    def present(self) -> frozenset[str]:
        """The processes that are there, answering or not."""
        return frozenset((*self.doing, *self.silent))

    @cached_property
    def ends(self) -> dict[str, tuple[str, ...]]:
        """The processes that each waits for, by any of its threads."""
        return {
            process: tuple(dict.fromkeys(end for each in waits for end in each.ends.processes))
            for process, waits in self.blocked.items()
        }

    @cached_property
    def _waiters(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for process, ends in self.ends.items():
            for end in ends:
                found.setdefault(end, []).append(process)
        return found

    def waiting_for(self, process: str) -> list[str]:
        """Who waits for it."""
        return self._waiters.get(process, [])

    def waiters_of(self, process: str) -> tuple[str, ...]:
        """Who waits for it, and who waits for those, the nearest first."""
        found: dict[str, None] = {}
        front = [process]
        while front:
            waiters = (waiter for each in front for waiter in self.waiting_for(each))
            front = [waiter for waiter in dict.fromkeys(waiters) if waiter not in found]
            found.update(dict.fromkeys(front))
        found.pop(process, None)
        return tuple(found)

    def is_at_work(self, process: str) -> bool:
        """Whether it answers, and runs something that waits for nobody, whatever other threads of it wait for."""
        if process not in self.doing or is_idle(self.doing[process]):
            return False
        return process not in self.blocked or any(map(_runs, self.doing[process].stacks))

    @cached_property
    def members(self) -> dict[str, CollectiveMembers]:
        """The ranks of each group, and the workers below each one, by whether they are in a collective."""
        found: dict[str, CollectiveMembers] = {}
        for name in (*self.present, *self.gone):
            group = found.setdefault(siblings_name(name), CollectiveMembers({}, [], []))
            inside = _collective_of(self.doing[name]) if name in self.doing else ""
            if inside:
                group.inside[name] = inside
            else:
                (group.outside if name in self.present else group.gone).append(name)
        for group in found.values():
            group.outside.sort(key=process_order)
        return found


def is_idle(doing: Activity) -> bool:
    """Whether a process has nothing to run: its main thread waits for a call, or only looks, and is not told of.

    Of one that takes no calls no other thread runs the user's code, either.
    """
    if any(call.since_s is not None for call in doing.calls or ()):
        return False
    if doing.calls is None and any(map(runs_users_code, doing.stacks)):
        return False
    return all(stack.name != MAIN for stack in doing.stacks)


def runs_users_code(stack: Stack) -> bool:
    """Whether a function that is neither Python's nor an installed package's is in a stack."""
    return any(not frame.is_library for frame in stack.frames)


def _runs(stack: Stack) -> bool:
    """Whether it is of a thread that runs calls, or the program, and neither waits nor stands by for another thread."""
    is_parked = bool(stack.frames) and stack.frames[0].file.endswith(_STANDS_BY)
    return stack.name.startswith((MAIN, CALL_THREADS)) and stack.wait is None and not is_parked


def graph_of(look: JobActivity) -> WaitGraph:
    """The graph of what was found out by asking a job's processes."""
    found = sorted(look.doing, key=lambda each: process_order(each.process))
    doing = {each.process: each for each in found if not only_looks(each.process)}
    silent = {
        each.process: each for each in look.silent if each.state != "gone" and not only_looks(each.process)
    }
    ended = {each.process: each.detail for each in look.silent if each.state == "gone"}
    gone = {**{each.address: each.reason for each in look.gone if each.address not in doing}, **ended}
    channels = {channel.name: channel for each in doing.values() for channel in each.channels}
    bare = WaitGraph({}, doing, silent, gone, channels)
    blocked: dict[str, tuple[Blocked, ...]] = {}
    names = {each.process_id: each.process for each in silent.values()}
    for process, each in doing.items():
        waits = tuple(_blocked(bare, process, stack, names) for stack in each.stacks if _is_wait(stack.wait))
        if waits:
            blocked[process] = waits
    return WaitGraph(blocked, doing, silent, gone, channels)


def only_looks(process: str) -> bool:
    """Whether a process of that name only looks at the job: a command's."""
    return process.startswith(LOOKERS)


def _is_wait(wait: Wait | None) -> bool:
    return wait is not None and wait.kind != IDLE


def _blocked(graph: WaitGraph, process: str, stack: Stack, names: Mapping[str, str]) -> Blocked:
    wait = stack.wait or Wait(OTHER, "")
    # Who has been stopped before it could say its name is known to others by its id.
    wait = structs.replace(wait, peers=tuple(names.get(peer, peer) for peer in wait.peers))
    ends = _by_links(graph, process, wait) or _ENDS[wait.kind](graph, process, wait)
    ends = replace(ends, processes=tuple(dict.fromkeys(ends.processes)))
    return Blocked(process, wait, ends, stack.thread)


# -- what ends each kind of wait ---------------------------------------------------------------------


def _by_links(graph: WaitGraph, process: str, wait: Wait) -> Ends | None:
    """What is on its way over emulated links, if that is what a wait is for."""
    own = graph.doing[process].links
    # Of a message both ends wait: it was sent when it is there.
    there = ((peer, graph.doing[peer].links) for peer in wait.peers if peer in graph.doing)
    found = [
        *((process, each) for each in own if _ends_wait(each, wait)),
        *((peer, each) for peer, links in there for each in links if each.source == process),
    ]
    if not found:
        return None
    return Ends((), tuple(_link_text(each.source, target, each) for target, each in found[:_MAX_LINKS]))


def _ends_wait(link: LinkNote, wait: Wait) -> bool:
    return link.kind == wait.kind and (not wait.peers or wait.kind != MESSAGE or link.source in wait.peers)


def _link_text(source: str, target: str, link: LinkNote) -> str:
    """An emulated link and what is on it, in words."""
    rate = f" at {link.bytes_per_s * 8e-6:.4g} Mbit/s" if link.bytes_per_s else ""
    left = "waits for its turn" if link.left_s is None else f"{max(0.0, link.left_s):.1f} s to go"
    return f"the emulated link {source} -> {target}: {size_text(link.size_bytes)}{rate}, {left}"


def _by_peers(graph: WaitGraph, process: str, wait: Wait) -> Ends:
    del process
    there = [peer for peer in wait.peers if peer in graph.present]
    gone = [f"{peer} has ended" for peer in wait.peers if peer in graph.gone and peer not in there]
    known = graph.present | graph.gone.keys()
    strange = [f"nobody is called {peer!r}{_near(peer, graph)}" for peer in wait.peers if peer not in known]
    return Ends(tuple(there), (*gone, *strange), is_hopeless=not there and bool(wait.peers))


def _by_ranks(graph: WaitGraph, process: str, wait: Wait) -> Ends:
    ends = _by_peers(graph, process, wait)
    has = "has" if len(wait.peers) == 1 else "have"
    missing = f"{some_names(wait.peers)} {has} not answered" if wait.peers else ""
    return Ends(ends.processes, tuple(filter(None, [missing, *ends.because])), ends.is_hopeless)


def _by_launch(graph: WaitGraph, process: str, wait: Wait) -> Ends:
    ends = _by_peers(graph, process, wait)
    return Ends(ends.processes, tuple(filter(None, [wait.detail])), is_hopeless=False)


def _by_channel(graph: WaitGraph, process: str, wait: Wait) -> Ends:
    channel = graph.channels.get(wait.subject)
    if channel is not None:
        return of_queue(channel, process, wait, graph.present)
    held_by = name_list(wait.peers) if wait.peers else "no process that is known"
    because = (f"channel '{wait.subject}' is held by {held_by}",)
    return Ends(tuple(peer for peer in wait.peers if peer in graph.silent), because, is_hopeless=True)


def _by_publisher(graph: WaitGraph, process: str, wait: Wait) -> Ends:
    del process
    publishers = [name for name, each in graph.doing.items() if wait.subject in each.weights]
    if not publishers:
        known = {name for each in graph.doing.values() for name in each.weights}
        near = nearest_name(wait.subject, known)
        hint = f"; did you mean '{near}'?" if near else ""
        return Ends((), (f"nobody publishes weights '{wait.subject}'{hint}",), is_hopeless=True)
    version = graph.doing[publishers[0]].weights[wait.subject]
    wanted = f", and {wait.needs:g} is wanted" if wait.needs > version else ""
    there = f"version {version} is there" if version >= 0 else "no version is there yet"
    return Ends(tuple(publishers), (f"{publishers[0]} publishes them: {there}{wanted}",))


def _by_holder(graph: WaitGraph, process: str, wait: Wait) -> Ends:
    wanted = set(wait.subject.split(", "))
    turns = [turn for each in graph.doing.values() for turn in each.turns]
    holders = [
        turn
        for turn in turns
        if turn.granted and turn.process != process and wanted.intersection(turn.devices)
    ]
    because = (f"{turn.process} has {', '.join(turn.devices)} for {turn.since_s:.0f} s" for turn in holders)
    return Ends(tuple(turn.process for turn in holders), tuple(because))


def _by_name(graph: WaitGraph, process: str, wait: Wait) -> Ends:
    del process
    return Ends(
        (), (f"nobody has the name '{wait.subject}' yet{_near(wait.subject, graph)}",), is_hopeless=True
    )


def _by_members(graph: WaitGraph, process: str, wait: Wait) -> Ends:
    """The other ranks of a group, of which one may not be in its collective."""
    inside, outside, gone = graph.members[siblings_name(process)]
    because = []
    if outside:
        because = [f"{some_names(outside)} {'is' if len(outside) == 1 else 'are'} not in a collective"]
    because += [f"{name} has ended" for name in gone]
    if outside or gone:
        return Ends(tuple(outside), tuple(because), is_hopeless=bool(gone))
    elsewhere = [name for name, what in inside.items() if what != wait.operation]
    because = [f"{name} is in {inside[name]}" for name in elsewhere[:3]]
    return Ends(tuple(elsewhere), tuple(because), is_hopeless=bool(elsewhere))


def _collective_of(doing: Activity) -> str:
    waits = (stack.wait for stack in doing.stacks)
    return next((wait.operation for wait in waits if wait is not None and wait.kind == COLLECTIVE), "")


def _near(name: str, graph: WaitGraph) -> str:
    channels = (f"{channel}:0" for channel in graph.channels)
    near = nearest_name(name, _known(graph.doing, channels))
    return f"; did you mean '{near}'?" if near else ""


def _known(*names: Iterable[str]) -> list[str]:
    return [name for each in names for name in each]


_ENDS: dict[str, Callable[[WaitGraph, str, Wait], Ends]] = {
    RESULT: _by_ranks,
    CHANNEL: _by_channel,
    MESSAGE: _by_peers,
    WEIGHTS: _by_publisher,
    DEVICE: _by_holder,
    LAUNCH: _by_launch,
    NAME: _by_name,
    COLLECTIVE: _by_members,
    OTHER: _by_peers,
}
