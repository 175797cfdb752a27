"""Who waits for whom, given what every process says of itself. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
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
from rlinf_scheduler.observe.stacks import CALL_THREADS, MAIN
from rlinf_scheduler.queueing.stats import ChannelStats, QueueDepth, QueueStats, QueueUser, Waiting
from rlinf_scheduler.wording import counted, name_list, nearest_name, size_text

# Of many names, so many are written out.
MAX_NAMES = 6
# What was delivered so long ago, in seconds, should have been taken.
ARRIVED_S = 1.0
# So much is said of what others have.
_MAX_HELD = 3
# How the leave to make an item is told of among what is held.
_SLOT = "slot "


def some_names(names: Iterable[str]) -> str:
    """Names in a sentence, the first of many.

    >>> some_names(["a:0", "a:1"]), some_names(f"a:{rank}" for rank in range(8))
    ('a:0 and a:1', 'a:0, a:1, a:2, a:3, a:4, a:5 and 2 more')
    """
    every = list(dict.fromkeys(names))
    more = [f"{len(every) - MAX_NAMES} more"] if len(every) > MAX_NAMES else []
    return name_list([*every[:MAX_NAMES], *more])


@dataclass(frozen=True, slots=True)
class Ends:
    """What could end a wait.

    Attributes:
        because: what there is to say of it, phrases.
        is_hopeless: nobody who is there will, as far as that shows.
        title: what those processes are to the wait, e.g. "its producers".
        gone: those of them that are gone.
    """

    processes: tuple[str, ...] = ()
    because: tuple[str, ...] = ()
    is_hopeless: bool = False
    title: str = ""
    gone: tuple[str, ...] = ()


def of_queue(channel: ChannelStats, process: str, wait: Wait, present: Collection[str]) -> Ends:
    """What could end a wait at a queue."""
    if (
        not wait.queue
    ):  # of an acknowledgement, say: its I/O thread answers, and has answered who asked for this
        return Ends((), (f"{channel.held_by}, which holds it, has not answered yet",))
    queue = next((each for each in channel.shown if repr(each.depth.name) == wait.queue), None)
    if queue is None and channel.num_untold:
        told = f"its queue is one of {channel.num_untold} more of which {channel.held_by} has not told"
        return Ends((), (f"{told}: `channel.explain()` lists all",))
    queue = queue or QueueStats(QueueDepth(wait.queue))
    if wait.detail in ("put", "ask", "admit"):
        return _of_put(queue, wait, present)
    return _of_get(channel, queue, process, wait, present)


def _of_put(queue: QueueStats, wait: Wait, present: Collection[str]) -> Ends:
    asked = wait.detail == "ask"
    if wait.detail == "put" and not _may_wait(queue):
        return Ends((), ("it is on its way: no put waits there",))
    because = [] if asked else [_how_full(queue) if wait.detail == "put" else "no slot is free"]
    holders = [held.who for held in queue.held if held.who in present]
    because += islice(_who_has(queue.held), _MAX_HELD)
    takers = _there(queue.getters, present)
    if not takers and not holders:
        word = "answered" if asked else "taken anything"
        because.append(
            f"nobody who is there has ever {word} there" if not queue.getters else _who_left(queue.getters)
        )
        return Ends((), tuple(because), is_hopeless=True)
    lost = _lost(queue.getters, present)
    return Ends((*holders, *takers), tuple(because), title="its consumers", gone=lost)


def _of_get(
    channel: ChannelStats, queue: QueueStats, process: str, wait: Wait, present: Collection[str]
) -> Ends:
    because = [_how_much(queue, wait)]
    if queue.ended:
        because.append("the queue has ended")
    held = [each for each in queue.held if not _arrives(each, process)]
    holders = [each for each in held if each.who in present]
    because += islice(_who_has(holders), _MAX_HELD)
    putters = _there(queue.putters, present)
    if putters:
        others = {each.who for each in holders}.difference(putters)
        title = "its producers and who has items of it" if others else "its producers"
        processes = (*putters, *sorted(others))
        because += _elsewhere(channel, queue)
        return Ends(processes, tuple(because), title=title, gone=_lost(queue.putters, present))
    if queue.putters:
        because.append(_who_left(queue.putters))
    else:
        because.append("nobody has ever put into it")
    because += _elsewhere(channel, queue)
    if channel.producers:
        because.append(channel.producers)
    return Ends(tuple(each.who for each in holders), tuple(because), is_hopeless=not holders)


def _may_wait(queue: QueueStats) -> bool:
    return bool(queue.limits) or any(each.operation.startswith("put") for each in queue.waiting)


def _who_has(held: Iterable[Waiting]) -> Iterator[str]:
    """The holders of a queue's items and slots, and since when; slots of a process together, by the oldest one."""
    slots: dict[str, list[float]] = {}
    for each in held:
        if each.operation.startswith(_SLOT):
            slots.setdefault(each.who, []).append(each.since_s)
        else:
            yield f"{each.who} has {each.operation} for {each.since_s:.0f} s"
    for process, ages in slots.items():
        several = f"{len(ages)} slots for items that it makes, the oldest"
        what = several if len(ages) > 1 else "a slot for an item that it makes,"
        yield f"{process} has {what} for {max(ages):.0f} s"


def _arrives(held: Waiting, process: str) -> bool:
    """Whether items are on their way, to the waiting process itself or to another one."""
    return held.operation.startswith("delivery") and (held.who == process or held.since_s < ARRIVED_S)


def _how_much(queue: QueueStats, wait: Wait) -> str:
    if wait.detail == "get_group" and queue.depth.num_items >= wait.needs:
        return f"there are {counted(queue.depth.num_items, 'item')}, but no group is complete"
    if wait.needs > 0:
        has = queue.depth.num_items if wait.counts_items else queue.depth.weight
        return f"{has:,g} of {wait.needs:,g} are there"
    there = "there is" if queue.depth.num_items == 1 else "there are"
    return f"{there} {counted(queue.depth.num_items, 'item')}" if queue.depth.num_items else "it is empty"


def _how_full(queue: QueueStats) -> str:
    full = f" ({' and '.join(queue.limits)})" if queue.limits else ""
    return f"the queue is full with {counted(queue.depth.num_items, 'item')}{full}"


def _who_left(users: tuple[QueueUser, ...]) -> str:
    names = sorted({user.process for user in users})
    return f"{some_names(names)}, who used it, {'has' if len(names) == 1 else 'have'} ended"


def _there(users: Collection[QueueUser], present: Collection[str]) -> list[str]:
    """Those who used a queue and are there, also where that is another process of the name by now."""
    return sorted({user.process for user in users if user.process in present})


def _lost(users: Collection[QueueUser], present: Collection[str]) -> tuple[str, ...]:
    """Those who used a queue and are gone."""
    return tuple(dict.fromkeys(user.process for user in users if user.process not in present))


def _elsewhere(channel: ChannelStats, queue: QueueStats) -> Iterator[str]:
    """Items that lie in other queues of the channel, which may be where they are missed."""
    for other in channel.shown:
        name, num_items = other.depth.name, other.depth.num_items
        if name != queue.depth.name and num_items and not other.getters:
            who = sorted({user.process for user in other.putters})
            by = f", put by {some_names(who)}" if who else ""
            verb = "lies" if num_items == 1 else "lie"
            there = f"{counted(num_items, 'item')} {verb} in queue {name!r}{by}, where nobody gets any"
            near = nearest_name(repr(name), [repr(queue.depth.name)])
            yield f"{there} (a misspelt {queue.depth.name!r}?)" if near else there


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
        ends: what could end it.
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
        doing: the processes that answered, by name.
        silent: those that did not.
        gone: why those are gone that were there, by name.
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

    def ends_of(self, process: str, wait: Wait) -> Ends:
        """What could end a wait of a process."""
        return _by_links(self, process, wait) or _ENDS[wait.kind](self, process, wait)

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
    # A process that was stopped before it could say its name is known to others by its id.
    wait = structs.replace(wait, peers=tuple(names.get(peer, peer) for peer in wait.peers))
    ends = graph.ends_of(process, wait)
    ends = replace(ends, processes=tuple(dict.fromkeys(ends.processes)))
    return Blocked(process, wait, ends, stack.thread)


# -- what ends each kind of wait ---------------------------------------------------------------------


def _by_links(graph: WaitGraph, process: str, wait: Wait) -> Ends | None:
    """What is on its way over emulated links, if that is what a wait is for."""
    own = graph.doing[process].links if process in graph.doing else ()
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
    versions = {
        name: each.weights[wait.subject] for name, each in graph.doing.items() if wait.subject in each.weights
    }
    if not versions:
        known = {name for each in graph.doing.values() for name in each.weights}
        near = nearest_name(wait.subject, known)
        hint = f"; did you mean '{near}'?" if near else ""
        return Ends((), (f"nobody publishes weights '{wait.subject}'{hint}",), is_hopeless=True)
    version, newest = min(versions.values()), max(versions.values())
    late = tuple(name for name, each in versions.items() if each == version)
    wanted = f", and {wait.needs:g} is wanted" if wait.needs > version else ""
    if version < newest:  # ranks have shards each
        last = f"{some_names(late)} published version {version} last, others {newest}{wanted}"
        return Ends(late, (last,))
    there = f"version {version} is there" if version >= 0 else "no version is there yet"
    if 0 <= version >= wait.needs:
        there = f"version {version} is on its way, or lacks what processes had that are gone"
    return Ends(
        late, (f"{some_names(late)} {'publish' if len(late) > 1 else 'publishes'} them: {there}{wanted}",)
    )


def _by_holder(graph: WaitGraph, process: str, wait: Wait) -> Ends:
    wanted = set(wait.subject.split(", "))
    turns = [turn for each in graph.doing.values() for turn in each.turns]
    for turn in turns:
        if turn.process == process and turn.missing:
            is_not = "is" if len(turn.missing) == 1 else "are"
            return Ends(
                turn.missing, (f"{some_names(turn.missing)} {is_not} not in device_lock(group=True)",)
            )
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
