"""Warnings of unauthenticated peers: every kind from every host is told of, but not as fast as one can connect."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from rlinf_scheduler.comm.reports import Reporter

logger = Reporter(__name__)

INTERVAL_S = 10.0
# So many pairs of kind and host are kept apart; what comes beyond that is counted together.
MAX_REMEMBERED = 64
OTHERS = "many hosts"
# What a stranger chooses is no kind of its own.
_NUMBER = re.compile("[0-9]+")


class RefusalLog:
    """Logs at most one line each `INTERVAL_S` for a kind of refusal and a host; says how many it left out.

    Args:
        now: the clock, in seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._told: dict[tuple[str, str], _Told] = {}

    def warn(self, host: str, where: str, reason: str) -> None:
        """Tell of a connection that was refused.

        Args:
            host: from which machine; "" if it is not known.
            where: its full address, for people.
            reason: what was wrong with it; one of a few texts, apart from numbers.
        """
        now = self._now()
        told = self._entry(host, reason, now)
        if told.was_told and now - told.since < INTERVAL_S:
            told.left_out += 1
            return
        more = f" ({told.left_out} more like it were not logged)" if told.left_out else ""
        told.since, told.left_out, told.was_told = now, 0, True
        logger.warning("a connection from %s is refused: %s%s", where or "an unknown address", reason, more)

    def _entry(self, host: str, reason: str, now: float) -> _Told:
        kind = _NUMBER.sub("#", reason)
        told = self._told.get((host, kind))
        if told is not None:
            return told
        if len(self._told) >= MAX_REMEMBERED:
            self._forget_quiet(now)
        key = (host, kind) if len(self._told) < MAX_REMEMBERED else (OTHERS, kind)
        return self._told.setdefault(key, _Told(now))

    def _forget_quiet(self, now: float) -> None:
        self._told = {key: told for key, told in self._told.items() if now - told.since < INTERVAL_S}


@dataclass(slots=True)
class _Told:
    """What was said of one kind and host."""

    since: float
    left_out: int = 0
    was_told: bool = False
