"""The critical path of a step: who was at what, while the step waited for exactly that. Pure.

From the step's end back in time: a process that was at work is on the path; one that waited is left, at the moment at
which its wait ended, for the process that ended it. So each moment of the step is of one process and one activity.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from rlinf.scheduler.observe.tracks import Track

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


def critical_path(tracks: Mapping[str, Track], process: str, began: float, ended: float) -> list[Piece]:
    """The parts of a step, the last one first; together they are all of it.

    Args:
        tracks: what each process was at, by name, all on one clock.
        process: whose step it is; one of these.
        began: when it began,
        ended: and ended, in seconds.

    >>> from rlinf.scheduler.comm.timekeeping import CALL, WAIT, Span
    >>> actor = Track([Span(CALL, 0, 10, "train", 1), Span(WAIT, 1, 7, "get('tasks')", 1, "env:0")])
    >>> env = Track([Span(CALL, 0, 9, "collect", 1)])
    >>> pieces = critical_path({"actor:0": actor, "env:0": env}, "actor:0", 0, 10)
    >>> [(piece.process, piece.what, piece.ended - piece.began) for piece in pieces]
    [('actor:0', 'train', 3), ('env:0', 'collect', 7)]
    """
    pieces: list[Piece] = []
    moment, at = ended, process
    # Those that were left at this moment: who waits for each other there ends nobody's wait.
    left: set[str] = set()
    while moment > began and len(pieces) < MAX_PIECES:
        activity = tracks[at].before(moment)
        if activity.is_wait and moment >= activity.ended and _can_go(tracks, at, activity.by, left):
            left.add(at)
            at = activity.by
            continue
        # It waits for something that comes later: what it gave away here, it gave before that.
        since = max(began, activity.began)
        pieces.append(Piece(at, activity.what, since, moment))
        moment = since
        left.clear()
    if moment > began:
        pieces.append(Piece(at, "not followed", began, moment))
    return pieces


def _can_go(tracks: Mapping[str, Track], at: str, to: str, left: set[str]) -> bool:
    return to in tracks and to != at and to not in left and tracks[to].begins < math.inf
