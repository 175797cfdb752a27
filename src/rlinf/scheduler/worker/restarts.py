"""How often something that dies is started again. Pure."""

from __future__ import annotations

from collections import deque

MAX_RESTARTS = 5
WITHIN_S = 60.0


class Restarts:
    """Counts them: what dies again and again at once would never do any work.

    Args:
        most: so many
        within_s: in so many seconds.

    >>> restarts = Restarts(most=2, within_s=60)
    >>> restarts.may(0), restarts.may(1), restarts.may(2), restarts.may(61)
    (True, True, False, True)
    """

    def __init__(self, most: int = MAX_RESTARTS, within_s: float = WITHIN_S) -> None:
        self.most = most
        self.within_s = within_s
        self._last: deque[float] = deque()

    def may(self, now: float) -> bool:
        """Whether it is to be started now; then it counts."""
        while self._last and self._last[0] <= now - self.within_s:
            self._last.popleft()
        if len(self._last) >= self.most:
            return False
        self._last.append(now)
        return True
