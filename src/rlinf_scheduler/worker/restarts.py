"""How often something that dies is started again, and after how long. Pure."""

from __future__ import annotations

from collections import deque

MAX_RESTARTS = 5
WITHIN_S = 60.0
# The first start is at once; the second in a row waits so long, each further one twice as long, up to the last.
FIRST_DELAY_S, LONGEST_DELAY_S = 0.5, 30.0


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

    @property
    def delay_s(self) -> float:
        """How long the start that was counted last is to wait, in seconds.

        >>> restarts = Restarts(most=9, within_s=60)
        >>> [restarts.delay_s for second in range(9) if restarts.may(second)]
        [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
        """
        num_before = len(self._last) - 1
        return min(LONGEST_DELAY_S, FIRST_DELAY_S * 2 ** (num_before - 1)) if num_before > 0 else 0.0
