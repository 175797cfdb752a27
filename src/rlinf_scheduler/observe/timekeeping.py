"""Where this process's time goes: calls, the phases in them, and waits, each counted when it has ended.

There is one timekeeper a process. What is counted are sums, by what waited for what and where; what took a while is
kept as a span besides, the last ones, and all of it goes to a span file while the job is traced. What a wait was for is
kept as data, and put into words when somebody asks. It has no lock: a sum is a list that is changed in place by single
steps, and a thread that is interrupted in between has counted or has not.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, partial
from threading import get_ident
from typing import Any, NamedTuple, TypeVar
from weakref import ref

import msgspec

from rlinf_scheduler.checks import whole_number
from rlinf_scheduler.comm import waits
from rlinf_scheduler.comm.forking import on_fork_in_child
from rlinf_scheduler.comm.threads import OWN_THREADS
from rlinf_scheduler.comm.waits import CHANNEL, OTHER, Cause

K = TypeVar("K", bound=Hashable)

# Kinds of spans.
CALL, VALUE, PHASE, WAIT, PUT, GET, ACK, REPLY, SEND, PUBLISH, FETCH, EVENT, LINK = (
    "call",
    "value",
    "phase",
    "wait",
    "put",
    "get",
    "ack",
    "reply",
    "send",
    "publish",
    "fetch",
    "event",
    "link",
)
# Of these, what is given to others, and ends their waits.
GIVES = frozenset({PUT, REPLY, SEND, PUBLISH})
# Shorter ones are counted, and kept as spans only while the job is traced.
SHORT_S = 1e-4
# So many spans are kept.
NUM_RECENT = 4096
# So many sums of each kind; further ones are counted as others.
MAX_SUMS = 2000
OTHERS = "others"


class Site(NamedTuple):
    """Where a thread or task is: in which method, and in which phase of it; phases within phases by slashes."""

    method: str = ""
    phase: str = ""


class Span(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Something that took time in a thread.

    Attributes:
        kind: CALL, WAIT and so on.
        began: when, on the process's monotonic clock, in seconds.
        ended: likewise.
        name: the method, the phase, or what was done.
        thread: the thread's number.
        by: who called; who ended a wait; "" where that is not known.
        subject: the channel, or what weights are published as.
        items: which items went through a channel, each by its producer and that one's number of it.
        versions: how many of them were made with each version of the policy, where anybody said so.
        step: the training step that its thread or task worked at; None where nobody said.
        is_open: it had not ended then, when the trace did, or the process was last heard of.
    """

    kind: str
    began: float
    ended: float
    name: str
    thread: int
    by: str = ""
    subject: str = ""
    items: tuple[tuple[str, int], ...] = ()
    is_open: bool = False
    versions: tuple[tuple[int | None, int], ...] = ()
    step: int | None = None


class OpenWork(msgspec.Struct, frozen=True, weakref=True):
    """A call or a phase that has begun: see `Span`; its name is a phase's with those around it."""

    kind: str
    began: float
    name: str
    thread: int
    by: str


Sum = list[Any]  # how often, and how many seconds
NOWHERE = Site()
site: ContextVar[Site] = ContextVar("rlinf_site", default=NOWHERE)
_site_of_caller = site.get
# Which training step a thread or task works at; None where nobody said.
training_step: ContextVar[int | None] = ContextVar("rlinf_step", default=None)
current_step = training_step.get
_MAX_STEP = (1 << 63) - 1


def _noted(step: object) -> int | None:
    """Return a step as a span can have it: one that no file can have would take the spans beside it with it."""
    number = None if step is None else whole_number(step, lowest=-_MAX_STEP)
    return None if number is None or number > _MAX_STEP else number


@contextmanager
def at_step(number: int) -> Iterator[None]:
    """A block of this thread or task that belongs to a training step; see `Worker.at_step`."""
    token = training_step.set(number)
    try:
        yield
    finally:
        training_step.reset(token)


class Timekeeper:
    """What took how long in this process.

    Attributes:
        now: the clock that spans begin and end by, in seconds.
        calls: by method.
        values: of calls that stream them, by method.
        phases: by where.
        waits: by where, what for, and who ended them.
        recent: the last spans that took a while.
        since: when the first call began, on the monotonic clock; None before.
        open: calls and phases that have not ended, each by the number of its record in memory, which its caller
            holds: what an interruption has cut short is dropped, and goes by itself.
        short_s: of what takes less no span is made, in seconds.
        span_file: takes every span while the job is traced.
        given: what was given to others, the last of it, where several threads run calls: whose wait one of them has
            ended is known only by that. None elsewhere.
        notes_moves: whether `note_moved` is to be told of what is moved.
        wants_origins: channels that are held here name the producer of each item, also while the job is not traced.
    """

    def __init__(self) -> None:
        self.now: Callable[[], float] = waits.now
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.calls: dict[str, Sum] = {}
        self.values: dict[str, Sum] = {}
        self.phases: dict[Site, Sum] = {}
        self.waits: dict[tuple[Site, Cause, str], Sum] = {}
        self.recent: deque[Span] = deque(maxlen=NUM_RECENT)
        self.since: float | None = None
        self.open: dict[int, ref[OpenWork]] = {}
        self.short_s = SHORT_S
        self.span_file: Callable[[Span], object] | None = None
        self.given: deque[Span] | None = None
        self.notes_moves = False
        self.wants_origins = False

    def keep_given(self) -> None:
        """Keep what is given to others: several threads run calls here from now on."""
        if self.given is None:
            self.given = deque(maxlen=NUM_RECENT)
        self.notes_moves = True

    def trace(self, span_file: Callable[[Span], object] | None) -> None:
        """Let every span go to `span_file` from now on; None: not any more."""
        self.span_file = span_file
        self.short_s = SHORT_S if span_file is None else -1.0
        self.notes_moves = span_file is not None or self.given is not None

    def begin(self, kind: str, began: float, name: str, by: str = "") -> OpenWork:
        """A call or a phase of this thread begins; `end` ends what is given."""
        opened = OpenWork(kind, began, name, get_ident(), by)
        key = id(opened)
        self.open[key] = ref(opened, partial(self.open.pop, key))
        return opened

    def end(self, opened: OpenWork) -> None:
        """It is over."""
        self.open.pop(id(opened), None)

    def open_works(self) -> list[OpenWork]:
        """Calls and phases that have not ended; from any thread."""
        return [work for each in self.open.copy().values() if (work := each()) is not None]

    def note_wait(self, began: float, cause: Cause | None, by: str) -> None:
        """A wait of this thread that began then is over, and `by` has ended it.

        Without a cause it is read off the stack what the function was for that called the one which waited. A thread of
        this library's own waits for nothing.
        """
        ended, thread = self.now(), get_ident()
        if thread in OWN_THREADS:
            return
        if cause is None:
            cause, peer = waits.cause_on_stack(sys._getframe(2))
            if cause is None:
                return
            by = by or peer
        key = _site_of_caller(), cause, by
        spent = self.waits.get(key)
        if spent is None:
            spent = _new_sum(self.waits, key, (NOWHERE, Cause(OTHER, OTHERS), ""))
        spent[0] += 1
        spent[1] += ended - began
        if ended - began >= self.short_s:
            self._keep(Span(WAIT, began, ended, _words(cause), thread, by, cause.subject))

    def count_as_others(self, channel: str) -> None:
        """Sums of a channel that is no more make room, where there are many: channels may come and go.

        Where there are not, they keep its name: it is gone, too, when this process leaves and tells what it counted.
        """
        if len(self.waits) < MAX_SUMS // 2:
            return
        for key in list(self.waits):
            where, cause, by = key
            if (cause.kind, cause.subject) != (CHANNEL, channel):
                continue
            spent = self.waits.pop(key, None)
            if spent is not None:
                others = self.waits.setdefault((where, Cause(cause.kind, OTHERS), by), [0, 0.0])
                others[0] += spent[0]
                others[1] += spent[1]

    def note_phase(self, where: Site, began: float, ended: float) -> None:
        """A phase is over."""
        spent = self.phases.get(where) or _new_sum(self.phases, where, Site("", OTHERS))
        spent[0] += 1
        spent[1] += ended - began
        if ended - began >= self.short_s:
            self._keep(Span(PHASE, began, ended, where.phase.rpartition("/")[2], get_ident()))

    def note_call(self, method: str, began: float, caller: str) -> None:
        """A call that began then has ended, in the thread that ran it."""
        self._note(CALL, self.calls, method, began, caller)

    def note_value(self, began: float, caller: str) -> None:
        """The present call has made a further value, which its caller has asked for."""
        self._note(VALUE, self.values, _site_of_caller().method, began, caller)

    def _note(self, kind: str, sums: dict[str, Sum], method: str, began: float, caller: str) -> None:
        ended = self.now()
        spent = sums.get(method) or _new_sum(sums, method, OTHERS)
        spent[0] += 1
        spent[1] += ended - began
        if ended - began >= self.short_s:
            self._keep(Span(kind, began, ended, method, get_ident(), caller))

    def note_moved(
        self,
        kind: str,
        began: float,
        name: str,
        subject: str,
        items: tuple[tuple[str, int], ...] = (),
        versions: tuple[tuple[int | None, int], ...] = (),
    ) -> None:
        """Items, messages or weights were moved; on hot paths it is asked only where `notes_moves` says so."""
        if not self.notes_moves:
            return
        span = Span(
            kind,
            began,
            self.now(),
            name,
            get_ident(),
            subject=subject,
            items=items,
            versions=versions,
            step=_noted(current_step()),
        )
        if self.given is not None and kind in GIVES:
            self.given.append(span)
        if self.span_file is not None:
            self.span_file(span)

    def note_link(self, began: float, name: str, source: str) -> None:
        """What came over an emulated link since then is there."""
        self._keep(Span(LINK, began, self.now(), name, get_ident(), source))

    def _keep(self, span: Span) -> None:
        if span.ended - span.began >= SHORT_S:  # a trace wants the others, too
            self.recent.append(span)
        if self.span_file is not None:
            self.span_file(span)


@lru_cache(maxsize=MAX_SUMS)
def _words(cause: Cause) -> str:
    """A cause in words, which are put together once: many waits have the same."""
    return cause.operation


def _new_sum(sums: dict[K, Sum], key: K, others: K) -> Sum:
    return sums.setdefault(key if len(sums) < MAX_SUMS else others, [0, 0.0])


TIMES = Timekeeper()
on_fork_in_child(TIMES.clear)


waits.account = TIMES.note_wait
