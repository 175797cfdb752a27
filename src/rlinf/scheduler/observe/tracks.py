"""What a process was at, at any moment: its spans as one track of activities. Pure."""

from __future__ import annotations

import bisect
import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rlinf.scheduler.comm.timekeeping import CALL, PHASE, WAIT, Span

KINDS = (CALL, PHASE, WAIT)


@dataclass(frozen=True, slots=True)
class Activity:
    """What a process was at for a while.

    Attributes:
        began, ended: when, in seconds; nothing else was told of in between.
        what: in words, e.g. "update: learn", "idle" or "waits for get('tasks')".
        is_wait: whether somebody else ended it.
        by: who did; "" where that is not known.
    """

    began: float
    ended: float
    what: str
    is_wait: bool = False
    by: str = ""


class Track:
    """What a process was at, as far as its spans tell.

    Where spans of a thread nest, it is at the innermost one. Where they overlap otherwise, as those of tasks on an
    event loop do, it goes on whenever one of its waits ends, until the next one does.

    Args:
        spans: of one process, calls, phases and waits; of several threads, those of the one with most calls count.
        is_cut: whether there were more spans before these.

    Attributes:
        calls: those of that thread, in the order of their ends.
        begins: when the first span began; infinity without any.
        is_cut: see above.
    """

    def __init__(self, spans: Iterable[Span], *, is_cut: bool = False) -> None:
        every = _of_main_thread([span for span in spans if span.kind in KINDS and span.ended > span.began])
        self.calls = sorted((span for span in every if span.kind == CALL), key=lambda span: span.ended)
        self._callers = {call.began: call.by for call in self.calls}
        self.is_cut = is_cut
        self._activities = list(_waits_only(every) if _overlap(every) else _innermost(every))
        self._begins = [activity.began for activity in self._activities]
        self.begins = min((span.began for span in every), default=math.inf)

    def before(self, moment: float) -> Activity:
        """What it was at just before a moment; what it was at between what is told of, too."""
        place = bisect.bisect_left(self._begins, moment) - 1
        if place >= 0 and moment <= self._activities[place].ended:
            return self._activities[place]
        began = self._activities[place].ended if place >= 0 else -math.inf
        following = self._activities[place + 1] if place + 1 < len(self._activities) else None
        ended = math.inf if following is None else following.began
        if place < 0 and self.is_cut:
            return Activity(began, ended, "not recorded any more")
        if not self.calls:  # a driver's, which calls others
            return Activity(began, ended, "its own program")
        return Activity(began, ended, "idle", True, self._callers.get(ended, ""))


def _of_main_thread(spans: Sequence[Span]) -> list[Span]:
    seconds: dict[int, float] = defaultdict(float)
    for span in spans:
        # Without calls, of whatever it does.
        seconds[span.thread] += (span.ended - span.began) * (1e6 if span.kind == CALL else 1)
    if not seconds:
        return []
    main = max(seconds, key=lambda thread: seconds[thread])
    return [span for span in spans if span.thread == main]


def _overlap(spans: Iterable[Span]) -> bool:
    """Whether some of them overlap that do not nest."""
    open_until: list[float] = []
    for span in sorted(spans, key=_outer_first):
        while open_until and open_until[-1] <= span.began:
            open_until.pop()
        if open_until and span.ended > open_until[-1]:
            return True
        open_until.append(span.ended)
    return False


def _outer_first(span: Span) -> tuple[float, float]:
    return span.began, -span.ended


def _innermost(spans: Sequence[Span]) -> Iterator[Activity]:
    """The innermost span of each moment, of spans that nest.

    >>> spans = Span(CALL, 0, 9, "train", 1), Span(WAIT, 2, 5, "get('tasks')", 1, "env:0")
    >>> [(activity.began, activity.what) for activity in _innermost(spans)]
    [(0, 'train'), (2, "waits for get('tasks')"), (5, 'train')]
    """
    stack: list[Span] = []
    at = -math.inf
    for span in sorted(spans, key=_outer_first):
        while stack and stack[-1].ended <= span.began:
            yield from _activity(stack, at, stack[-1].ended)
            at = stack.pop().ended
        yield from _activity(stack, at, span.began)
        stack.append(span)
        at = span.began
    while stack:
        yield from _activity(stack, at, stack[-1].ended)
        at = stack.pop().ended


def _activity(stack: Sequence[Span], began: float, ended: float) -> Iterator[Activity]:
    if stack and ended > began:
        span = stack[-1]
        is_wait = span.kind == WAIT
        yield Activity(began, ended, _words(stack), is_wait, span.by if is_wait else "")


def _words(stack: Sequence[Span]) -> str:
    if stack[-1].kind == WAIT:
        return f"waits for {stack[-1].name}"
    method = next((span.name for span in stack if span.kind == CALL), "")
    phase = "/".join(span.name for span in stack if span.kind == PHASE)
    return ": ".join(filter(None, [method, phase]))


def _waits_only(spans: Iterable[Span]) -> Iterator[Activity]:
    """Of what overlaps: a process is woken by the end of a wait, and is at work until the next one ends."""
    ends = sorted((span for span in spans if span.kind == WAIT), key=lambda span: span.ended)
    for before, wait in itertools.pairwise(ends):
        # It is not known when it went back to wait: all of it is one wait, which the later one's end ends.
        if wait.ended > before.ended:
            began = max(before.ended, wait.began)
            yield Activity(began, wait.ended, f"waits for {wait.name}", True, wait.by)
