"""What a process was at, at any moment, and the critical path of a step. Pure.

The path goes from the step's end back in time: a thread that was at work is on it; one that waited is left, at the
moment at which its wait ended, for the thread that ended it. So each moment of the step is of one process and activity.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rlinf_scheduler.observe.timekeeping import CALL, GIVES, PHASE, SEND, VALUE, WAIT, Span

KINDS = (CALL, PHASE, WAIT)
# By so much the clocks of two machines may differ, in seconds.
CLOCKS_S = 1e-3
# Of what was given next to a moment, so many are looked at on either side.
_NEAR = 8


@dataclass(frozen=True, slots=True)
class TrackActivity:
    """What a process was at for a while.

    Attributes:
        began, ended: when, in seconds; nothing else was told of in between.
        what: in words, e.g. "update: learn", "idle" or "waits for get('tasks')".
        is_wait: whether somebody else ended it.
        by: who did; "" where that is not known.
        subject: the channel or weights that were waited for.
    """

    began: float
    ended: float
    what: str
    is_wait: bool = False
    by: str = ""
    subject: str = ""


class Track:
    """What a process was at, as far as its spans tell: each of its threads by itself.

    Args:
        spans: of one process: calls, phases and waits, and what it gave to others.
        is_cut: whether there were more spans before these.

    Attributes:
        main: the number of the thread with most calls; without calls, with most of whatever it does.
        begins: when the first span began; infinity without any.
    """

    def __init__(self, spans: Iterable[Span], *, is_cut: bool = False) -> None:
        every = list(spans)
        threads: dict[int, list[Span]] = defaultdict(list)
        for span in every:
            if span.kind in KINDS and span.ended > span.began:
                threads[span.thread].append(span)
        self.is_cut = is_cut
        self.begins = min((span.began for each in threads.values() for span in each), default=math.inf)
        self.main = max(threads, key=lambda thread: _weight(threads[thread]), default=0)
        takes_calls = any(span.kind == CALL for span in every)
        self._threads = {
            thread: _ThreadTrack(each, is_cut=is_cut, takes_calls=takes_calls)
            for thread, each in threads.items()
        }
        self._nothing = _ThreadTrack((), is_cut=is_cut, takes_calls=takes_calls)
        self._gifts = _gifts(every)

    def before(self, moment: float, thread: int | None = None) -> TrackActivity:
        """What a thread was at just before a moment, by default the main one; between what is told of, too."""
        return self._threads.get(self.main if thread is None else thread, self._nothing).before(moment)

    def thread_behind(self, wait: TrackActivity, moment: float, waiter: str) -> int:
        """Return the thread of this process that ended a wait, of another process or of its own.

        Args:
            wait: that.
            moment: when it ended, in seconds.
            waiter: the process that waited.
        """
        near = (
            (abs(gift.ended - moment), gift.thread)
            for key in _keys_of_wait(wait, waiter)
            for gift in _around(self._gifts.get(key, ()), moment)
            if gift.began <= moment + CLOCKS_S
        )
        found = min(near, default=None)
        if found is not None:
            return found[1]
        at_work = [thread for thread, track in self._threads.items() if track.is_at_work_before(moment)]
        return self.main if self.main in at_work or not at_work else at_work[0]


class _ThreadTrack:
    """What one thread was at.

    Where spans nest, it is at the innermost one. Where they overlap otherwise, as those of tasks on an event loop do,
    it goes on whenever one of its waits ends, until the next one does.

    Args:
        spans: of the thread.
        is_cut: whether there were more before these.
        takes_calls: whether its process is called by others.
    """

    def __init__(self, spans: Sequence[Span], *, is_cut: bool, takes_calls: bool) -> None:
        self._callers = {span.began: span.by for span in spans if span.kind == CALL}
        self._is_cut = is_cut
        self._is_idle_between = takes_calls and (bool(self._callers) or not spans)
        self._activities = list(_waits_only(spans) if _overlap(spans) else _innermost(spans))
        self._begins = [activity.began for activity in self._activities]

    def before(self, moment: float) -> TrackActivity:
        """What it was at just before a moment; what it was at between what is told of, too."""
        place = bisect.bisect_left(self._begins, moment) - 1
        if place >= 0 and moment <= self._activities[place].ended:
            return self._activities[place]
        began = self._activities[place].ended if place >= 0 else -math.inf
        following = self._activities[place + 1] if place + 1 < len(self._activities) else None
        ended = math.inf if following is None else following.began
        if place < 0 and self._is_cut:
            return TrackActivity(began, ended, "not recorded any more")
        if not self._is_idle_between:  # a driver's, which calls others
            return TrackActivity(began, ended, "its own program")
        return TrackActivity(began, ended, "idle", True, self._callers.get(ended, ""))

    def is_at_work_before(self, moment: float) -> bool:
        """Return whether it was at something that is told of, and waited for nobody."""
        place = bisect.bisect_left(self._begins, moment) - 1
        return place >= 0 and moment <= self._activities[place].ended and not self._activities[place].is_wait


def _weight(spans: Iterable[Span]) -> float:
    return sum((span.ended - span.began) * (1e6 if span.kind == CALL else 1) for span in spans)


def _gifts(spans: Iterable[Span]) -> dict[str, list[Span]]:
    """Sort what ended waits of others by what these waited for, each in the order of the ends."""
    found: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        if span.kind in (CALL, VALUE):
            found[f"{span.name}()"].append(span)
        elif span.kind == SEND:
            found[f"send to {span.subject}"].append(span)
        elif span.kind in GIVES:
            found[span.subject].append(span)
    for gifts in found.values():
        gifts.sort(key=_end)
    return found


def _keys_of_wait(wait: TrackActivity, waiter: str) -> list[str]:
    """Return under which keys of `_gifts` the end of a wait stands: its channel or weights, a message, calls."""
    if wait.subject:
        return [wait.subject]
    calls = (call.rpartition(".")[2] for call in wait.what.split(" and "))
    return [f"send to {waiter}", *calls]


def _around(gifts: Sequence[Span], moment: float) -> Sequence[Span]:
    """Return those that ended next to a moment."""
    place = bisect.bisect_left(gifts, moment, key=_end)
    return gifts[max(0, place - _NEAR) : place + _NEAR]


def _end(span: Span) -> float:
    return span.ended


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


def _innermost(spans: Sequence[Span]) -> Iterator[TrackActivity]:
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


def _activity(stack: Sequence[Span], began: float, ended: float) -> Iterator[TrackActivity]:
    if stack and ended > began:
        span = stack[-1]
        is_wait = span.kind == WAIT
        by, subject = (span.by, span.subject) if is_wait else ("", "")
        yield TrackActivity(began, ended, _words(stack), is_wait, by, subject)


def _words(stack: Sequence[Span]) -> str:
    if stack[-1].kind == WAIT:
        return f"waits for {stack[-1].name}"
    method = next((span.name for span in stack if span.kind == CALL), "")
    phase = "/".join(span.name for span in stack if span.kind == PHASE)
    return ": ".join(filter(None, [method, phase]))


def _waits_only(spans: Iterable[Span]) -> Iterator[TrackActivity]:
    """Of what overlaps: a process is woken by the end of a wait, and is at work until the next one ends."""
    ends = sorted((span for span in spans if span.kind == WAIT), key=lambda span: span.ended)
    for before, wait in itertools.pairwise(ends):
        # It is not known when it went back to wait: all of it is one wait, which the later one's end ends.
        if wait.ended > before.ended:
            began = max(before.ended, wait.began)
            yield TrackActivity(began, wait.ended, f"waits for {wait.name}", True, wait.by, wait.subject)


# Of a step with more pieces, what lies before them is told as one.
MAX_PIECES = 100_000


class Piece(NamedTuple):
    """A part of a step.

    Attributes:
        process: who was at it.
        what: at what.
        began, ended: when, in seconds.
    """

    process: str
    what: str
    began: float
    ended: float


def critical_path(
    tracks: Mapping[str, Track], process: str, began: float, ended: float, thread: int | None = None
) -> list[Piece]:
    """The parts of a step, the last one first; together they are all of it.

    Args:
        tracks: what each process was at, by name, all on one clock.
        process: whose step it is; one of these.
        began: when it began,
        ended: and ended, in seconds.
        thread: the number of the thread that ended it; None: the process's main one.

    >>> from rlinf_scheduler.observe.timekeeping import CALL, WAIT, Span
    >>> actor = Track([Span(CALL, 0, 10, "train", 1), Span(WAIT, 1, 7, "get('tasks')", 1, "env:0")])
    >>> env = Track([Span(CALL, 0, 9, "collect", 1)])
    >>> pieces = critical_path({"actor:0": actor, "env:0": env}, "actor:0", 0, 10)
    >>> [(piece.process, piece.what, piece.ended - piece.began) for piece in pieces]
    [('actor:0', 'train', 3), ('env:0', 'collect', 7)]
    """
    pieces: list[Piece] = []
    moment, at = ended, (process, tracks[process].main if thread is None else thread)
    # Those that were left at this moment: who waits for each other there ends nobody's wait.
    left: set[tuple[str, int]] = set()
    while moment > began and len(pieces) < MAX_PIECES:
        activity = tracks[at[0]].before(moment, at[1])
        if activity.is_wait and moment >= activity.ended:
            left.add(at)
            by = _thread_behind(tracks, activity, at[0], moment)
            if by is not None and by not in left:
                at = by
                continue
        # It waits for something that comes later: what it gave away here, it gave before that.
        since = max(began, activity.began)
        pieces.append(Piece(at[0], activity.what, since, moment))
        moment = since
        left.clear()
    if moment > began:
        pieces.append(Piece(at[0], "not followed", began, moment))
    return pieces


def _thread_behind(
    tracks: Mapping[str, Track], wait: TrackActivity, waiter: str, moment: float
) -> tuple[str, int] | None:
    """Return the process and thread that ended a wait; None where that is not known."""
    track = tracks.get(wait.by)
    if track is None or track.begins == math.inf:
        return None
    return wait.by, track.thread_behind(wait, moment, waiter)
