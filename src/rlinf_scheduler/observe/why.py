"""Why a job does not go on: who waits for whom, what ends no chain of waits, and where everybody is."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import msgspec

from rlinf_scheduler.comm.endpoint import local_machine_id
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.comm.threads import run_beside_in_time
from rlinf_scheduler.comm.waits import IDLE, Wait, awaited
from rlinf_scheduler.errors import ClusterError, CommError
from rlinf_scheduler.events import Stalled
from rlinf_scheduler.observe import culprits as certainty
from rlinf_scheduler.observe.culprits import (
    STANDS_S,
    Culprit,
    call_text,
    chain_of,
    culprits_of,
    state_text,
    wait_text,
)
from rlinf_scheduler.observe.graph import Blocked, WaitGraph, graph_of, some_names
from rlinf_scheduler.observe.levels import Levels
from rlinf_scheduler.observe.outside import STACK_SIGNAL, is_stopped, look_at
from rlinf_scheduler.observe.process_stats import Enlist, Frame, JobActivity, Stack
from rlinf_scheduler.observe.reasons import REASON, STALL, AskReason, Stall
from rlinf_scheduler.observe.stacks import MAIN, TASK
from rlinf_scheduler.observe.survey import JOB_ACTIVITY, AskActivity, Survey
from rlinf_scheduler.planning.caret import printable
from rlinf_scheduler.proc import birth_of
from rlinf_scheduler.session import Session
from rlinf_scheduler.session.job_file import RunningJob
from rlinf_scheduler.wording import seconds_text

# How long all processes together may take to answer, in seconds.
WITHIN_S = 1.5
# So often all are looked at, and with such a pause in between, in seconds, before anybody is named who moves.
MAX_LOOKS, PAUSE_S = 3, 0.15
DRIVER = "driver"
# So many waits and frames are written out, and of one who waits for another so many.
_MAX_WAITS, _MAX_FRAMES, _MAX_LINKS = 24, 12, 4


@dataclass(frozen=True, slots=True)
class Why:
    """Who waits for whom in a job, and why: `print(cluster.why())`.

    Attributes:
        graph: all waits.
        culprits: what the others wait for in the end, the most probable first.
        took_s: how long it took to ask all processes, in seconds.
    """

    graph: WaitGraph
    culprits: tuple[Culprit, ...]
    took_s: float = 0.0

    @property
    def culprit(self) -> Culprit | None:
        """The most probable culprit: its `address`, `operation` and `since_s`; None if nobody waits."""
        return self.culprits[0] if self.culprits else None

    @property
    def headline(self) -> str:
        """The most probable culprit in a line, and who waits for it."""
        if self.culprit is None:
            return "nobody waits for anybody"
        waiters = self.culprit.waiters
        wait = f"; {some_names(waiters)} wait{'s' if len(waiters) == 1 else ''} for it" if waiters else ""
        moves = "the job seems to move: " if self._is_on_the_way(self.culprit) else ""
        return f"{moves}{self.culprit.reason}{wait}"

    @staticmethod
    def _is_on_the_way(culprit: Culprit) -> bool:
        """Whether it is only what happens to be waited for now, in a job where items come and go."""
        return culprit.certainty == certainty.WAITS and culprit.since_s < STANDS_S

    @property
    def is_sure(self) -> bool:
        """Whether another look would name the same culprit: nothing moves there, or could."""
        if self.culprit is None:
            return False
        stands = self.culprit.certainty == certainty.HOPELESS and self.culprit.since_s >= STANDS_S
        return stands or self.culprit.certainty <= certainty.DEADLOCK

    def about(self, process: str, thread: int = 0, waited_s: float = 0.0) -> str:
        """In few lines: what a process waits for or is at, link by link, and what that comes to in the end.

        Args:
            process: which.
            thread: whose wait is meant, by its number in that process; of others, and without, the longest is.
            waited_s: for how long that one has waited, in seconds: this look may be older, and of the tasks of an event
                loop it says which one.
        """
        chain = chain_of(self.graph, self.culprits, process, thread, waited_s)
        lines = [wait_text(self.graph, each) for each in chain.links]
        if lines and chain.links[0].thread == thread:
            first = chain.links[0]
            wait = msgspec.structs.replace(first.wait, since_s=max(first.wait.since_s, waited_s))
            lines[0] = wait_text(self.graph, replace(first, wait=wait))
        if len(lines) > _MAX_LINKS:
            lines[_MAX_LINKS:] = [f"and so on, by {len(lines) - _MAX_LINKS} more"]
        lines = lines or [state_text(self.graph, process)]
        if chain.end is not None and chain.end.reason not in "\n".join(lines):
            lines.append(chain.end.reason)
        lines += self._failures([process])
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        data: dict[str, Any] = msgspec.to_builtins(
            {
                "culprits": [asdict(each) for each in self.culprits],
                "waits": [
                    {
                        "process": each.process,
                        "wait": msgspec.structs.asdict(each.wait),
                        **asdict(each.ends),
                    }
                    for waits in self.graph.blocked.values()
                    for each in waits
                ],
                "processes": [msgspec.structs.asdict(each) for each in self.graph.doing.values()],
                "silent": [msgspec.structs.asdict(each) for each in self.graph.silent.values()],
                "gone": self.graph.gone,
                "took_s": self.took_s,
            }
        )
        return data

    def __str__(self) -> str:
        found = list(self._failures(self.graph.doing))
        found += [*self._others(), *self._waits(), *self._stacks()] if self.culprit else [*self._at_work()]
        # Names of channels and files are the users' own.
        return "\n".join(map(printable, [self.headline, *found]))

    def _failures(self, processes: Iterable[str]) -> Iterator[str]:
        """What has failed in calls of these processes which have not taken that yet."""
        for name in processes:
            doing = self.graph.doing.get(name)
            for failure in () if doing is None else doing.failures:
                yield f"{failure}; {name} has not taken that result yet"

    def _at_work(self) -> Iterator[str]:
        """Where those are who wait for nobody: what they stand at may be a wait that is not this library's."""
        names = [
            name for name, each in self.graph.doing.items() if each.stacks and self.graph.is_at_work(name)
        ]
        if names:
            yield "at work:"
        for name in names[:_MAX_WAITS]:
            yield f"  {state_text(self.graph, name)}"
        if len(names) > _MAX_WAITS:
            yield f"  and {len(names) - _MAX_WAITS} more"

    def _others(self) -> Iterator[str]:
        for each in self.culprits[1:]:
            if each.certainty < certainty.IDLE:
                yield f"also: {each.reason}"

    def _waits(self) -> Iterator[str]:
        alike: dict[str, list[Blocked]] = {}
        for each in (wait for waits in self.graph.blocked.values() for wait in waits):
            alike.setdefault(call_text(self.graph, each), []).append(each)
        if alike:
            yield "waits:"
        for waits in list(alike.values())[:_MAX_WAITS]:
            yield f"  {wait_text(self.graph, *waits)}"
        if len(alike) > _MAX_WAITS:
            yield f"  and {len(alike) - _MAX_WAITS} more"

    def _stacks(self) -> Iterator[str]:
        shown = dict.fromkeys(
            name
            for each in self.culprits
            if each.certainty < certainty.WAITS
            for name in (each.address, *each.cycle)
        )
        for name in list(dict.fromkeys([*shown, *self.graph.blocked]))[:_MAX_WAITS]:
            stacks = self._stacks_of(name)
            if stacks:
                yield f"{name}:"
                yield from stack_lines(stacks)

    def _stacks_of(self, name: str) -> tuple[Stack, ...]:
        if name in self.graph.silent:
            return self.graph.silent[name].stacks
        doing = self.graph.doing.get(name)
        stacks = () if doing is None else doing.stacks
        return tuple(each for each in stacks if each.wait is not None or each.name in (MAIN, TASK))


def stack_lines(stacks: Iterable[Stack], *, whole: bool = False) -> Iterator[str]:
    """Stacks as lines, the innermost frame first; without `whole`, only the main parts of what is the user's."""
    for stack in stacks:
        frames = stack.frames if whole else _telling(stack.frames)
        if not frames:
            continue
        yield f"  {stack.name}"
        for frame in frames if whole else frames[:_MAX_FRAMES]:
            calls = f"  ({frame.calls})" if frame.calls else ""
            yield f"    {frame.file}:{frame.line} {frame.function}{calls}"


def _telling(frames: Sequence[Frame]) -> list[Frame]:
    """Those that are the user's; and the innermost one, unless it is this library's, or none is the user's."""
    found = [frame for frame in frames if not frame.is_library]
    is_beyond = bool(found) and frames[0].is_library and not frames[0].is_own
    return [frames[0], *found] if is_beyond else found


def why_of(look: JobActivity) -> Why:
    """What there is to say, given what all processes are at."""
    graph = graph_of(look)
    return Why(graph, tuple(culprits_of(graph)), look.took_s)


# From the question on, not only once its thread waits: this process may be looked at before that.
@awaited(lambda _local: Wait(IDLE, "what the job is at"))
def ask_job(
    session: Session, within_s: float = WITHIN_S, names: tuple[str, ...] = (), *, by_signal: bool = True
) -> JobActivity:
    """What all processes of a job are at, or these ones.

    Raises:
        ClusterError: the process that keeps the job's directory does not answer.
    """
    wanted = AskActivity(within_s, names=names, by_signal=by_signal)
    asked = JOB_ACTIVITY.ask(session.messenger, session.home, wanted, timeout_s=within_s + 1.0)
    look: JobActivity = JOB_ACTIVITY.answer_of_home(asked)
    return look


def why(session: Session, within_s: float = WITHIN_S) -> Why:
    """Ask all processes of a job what they are at, and say who waits for whom and why.

    Raises:
        ClusterError: the process that keeps the job's directory does not answer.
    """
    return why_of_several(lambda: ask_job(session, within_s), within_s)


# Between two looks, too: others may look.
@awaited(lambda _local: Wait(IDLE, "what the job is at"))
def why_of_several(look: Callable[[], JobActivity], within_s: float) -> Why:
    """Look until it is sure what is wrong, at most `MAX_LOOKS` times, and name who was found most often.

    One look may meet a moment in which everybody is between two steps, or another than the slowest one is at work.

    Args:
        look: asks what all are at.
        within_s: no further look begins that would end later than after so long, as far as the last one tells.
    """
    began = time.monotonic()
    found = [why_of(look())]
    while len(found) < MAX_LOOKS and not found[-1].is_sure:
        if time.monotonic() - began + PAUSE_S + found[-1].took_s > within_s:
            break
        time.sleep(PAUSE_S)
        with suppress(ClusterError, CommError):  # then what is known is told
            found.append(why_of(look()))
            continue
        break
    return most_probable(found)


def most_probable(found: Sequence[Why]) -> Why:
    """Return the look that is sure, or whose culprit was the most probable one most often.

    Of several such culprits it is the one that was told of most often at all.

    Args:
        found: what was found by several looks, the last one last.
    """
    if found[-1].is_sure:
        return found[-1]
    first = Counter(each.culprit and each.culprit.address for each in found)
    told = Counter(address for each in found for address in {culprit.address for culprit in each.culprits})
    return max(
        reversed(found),
        key=lambda each: (
            first[each.culprit and each.culprit.address],
            told[each.culprit.address if each.culprit else ""],
        ),
    )


def why_of_job(job: RunningJob, name: str) -> Why:
    """The same of a job whose driver runs on this machine, asked as a process called `name` that only looks.

    A driver that does not answer is looked at from outside: then there is nothing to say of the others.

    Raises:
        CommError: it cannot be reached.
        ClusterError: it does not answer, and its process is not to be seen from here.
    """
    if job.home.machine_id != local_machine_id():
        # Of a container, say, whose files are seen here: its number means another process, or none.
        with job.attach(name) as session:
            return why(session, WITHIN_S)
    if not is_stopped(job.pid):
        with job.attach(name) as session, suppress(ClusterError):
            return why(session, WITHIN_S)
    known = Enlist(job.home, job.pid, birth_of(job.pid), int(STACK_SIGNAL))
    return why_of(JobActivity(silent=(look_at(DRIVER, known),)))


@dataclass(frozen=True, slots=True)
class RankStack:
    """Where a rank is: `print(stack)`.

    Attributes:
        address: its name, `group:rank`.
        at: that in a line: the innermost line of the user's, or that it is idle, stopped, or gone.
        threads: its stacks, its main thread's first; none of a process that is stopped, or idle.
    """

    address: str
    at: str
    threads: tuple[Stack, ...]

    def __str__(self) -> str:
        return "\n".join([self.at, *stack_lines(self.threads, whole=True)])


def stacks_of(session: Session, names: Sequence[str], within_s: float) -> list[RankStack]:
    """The stacks of the processes of these names, in their order.

    Raises:
        ClusterError: the process that keeps the job's directory does not answer.
    """
    return rank_stacks(ask_job(session, within_s, tuple(names)), names)


def rank_stacks(look: JobActivity, names: Sequence[str]) -> list[RankStack]:
    """The same, given what was found."""
    graph = graph_of(look)
    threads = {each.process: each.stacks for each in look.silent}
    threads.update((each.process, each.stacks) for each in look.doing)
    return [RankStack(name, state_text(graph, name), threads.get(name, ())) for name in names]


# What another one was told so long ago will do, in seconds: who stalls together is explained by one look.
MAX_AGE_S = 1.0
# Of the ranks of a call, so many are told of one by one.
MAX_TOLD = 4
_log = Reporter(__name__)


class WhyService:
    """Says why a process waits, and tells of stalls as events; a service of the job's home.

    Args:
        session: the home's.
    """

    def __init__(self, session: Session) -> None:
        self._bus = session.bus
        self._call_later = session.messenger.call_later
        self._survey = session.service(Survey)
        # The last look, and what there is to say of it: that is found out once, however many ask.
        self._lock = threading.Lock()
        self._last: tuple[JobActivity, Why] | None = None
        levels = session.service(Levels)
        levels.add(REASON, self._reason)
        levels.add(STALL, self._tell_stall)

    def _reason(self, asked: AskReason) -> Promise[str]:
        # What is asked has to be back before the one who asked gives up.
        return self._look(
            0.8 * asked.within_s, lambda why: why.about(asked.process, asked.thread, asked.waited_s)
        )

    def _tell_stall(self, stall: Stall) -> None:
        told = self._look(WITHIN_S, partial(self._emit, stall))
        told.add_done_callback(lambda done: done.result(0))  # what fails is logged

    def _emit(self, stall: Stall, found: Why) -> None:
        short = "\n".join(found.about(process) for process in stall.processes[:MAX_TOLD])
        what, since = stall.channel or stall.group, seconds_text(stall.waited_s)
        _log.warning("'%s': %s takes %s already: %s", what, stall.operation, since, short)
        told = stall.group, stall.channel, stall.operation, stall.processes, stall.waited_s
        self._bus.emit(Stalled(*told, f"{short}\n{found}"))

    def _look(self, within_s: float, say: Callable[[Why], Any]) -> Promise[Any]:
        """Look at all processes, which disturbs none, and promise what is to be said of it."""
        said: Promise[Any] = Promise()

        def conclude(looked: Promise[JobActivity]) -> None:
            # On a thread of its own: of a thousand ranks it takes a while.
            look = looked.result(0)
            run_beside_in_time(self._call_later, said.set_from, lambda: say(self._why_of(look)))

        self._survey.activity(AskActivity(within_s, MAX_AGE_S, by_signal=False)).add_done_callback(conclude)
        return said

    def _why_of(self, look: JobActivity) -> Why:
        with self._lock:
            if self._last is None or self._last[0] is not look:
                self._last = look, why_of(look)
            return self._last[1]
