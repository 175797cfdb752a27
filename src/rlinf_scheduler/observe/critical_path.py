"""The critical path of a step: who was at what, while the step waited for exactly that. Pure.

From the step's end back in time: a thread that was at work is on the path; one that waited is left, at the moment at
which its wait ended, for the thread that ended it. So each moment of the step is of one process and one activity.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from rlinf_scheduler.observe.tracks import Track, TrackActivity

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
