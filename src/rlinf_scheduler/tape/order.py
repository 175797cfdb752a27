"""When what was under way beside a program was over: by what that had before, for its clock is not recorded."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterable
from typing import TypeVar

from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.errors import ReplayEnded

T = TypeVar("T")

# A replay that has asked so often whether something is over, and meanwhile had nothing else, has lost its way.
MAX_POLLS = 1000


class Order:
    """In which order the operations of a lane were over: their numbers in the recording.

    >>> order = Order([7, 3, 5])
    >>> order.has_come_to(3), order.has_come_to(5)
    (True, False)
    >>> order.leave(3)
    >>> order.has_come_to(5), order.has_come_to(7)
    (True, False)
    """

    def __init__(self, numbers: Iterable[int]) -> None:
        self._left = deque(sorted(numbers))
        self._early: set[int] = set()
        self._changed = threading.Condition()

    def leave(self, number: int) -> None:
        """The program has what an operation brought; tasks may have theirs in another order than then."""
        with self._changed:
            self._early.add(number)
            while self._left and self._left[0] in self._early:
                self._early.discard(self._left.popleft())
            self._changed.notify_all()

    def has_come_to(self, number: float) -> bool:
        """Whether all is had that was before."""
        return not self._left or self._left[0] >= number

    def wait_for(self, number: float, timeout_s: float) -> bool:
        """Wait until `has_come_to`, for at most so many seconds; whether it has."""
        with self._changed:
            return self._changed.wait_for(lambda: self.has_come_to(number), timeout_s)


class ReplayedPromise(Promise[T]):
    """The end of an operation, at once for who waits for it; who only asks whether it is over is told what was so then.

    Args:
        order: of its lane.
        number: its own; None of what was not over when the recording ended.
    """

    __slots__ = ("_num_polls", "_number", "_order")

    def __init__(self, order: Order, number: int | None) -> None:
        super().__init__()
        self._order = order
        self._number: float = math.inf if number is None else number
        self._num_polls = 0

    def done(self) -> bool:
        """Whether it was over then, when the program was here.

        Raises:
            ReplayEnded: it never was, and the program does nothing but ask.
        """
        if self._number < math.inf and self._order.has_come_to(self._number):
            return True
        self._num_polls += 1
        if self._num_polls < MAX_POLLS:
            return False
        error = self.exception()
        if isinstance(error, ReplayEnded):
            raise error
        return True

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait, with a limit as long as it took then to be over, by what was before it."""
        return timeout_s is None or self._order.wait_for(self._number, timeout_s)

    def result(self, timeout: float | None = None) -> T:
        """The value."""
        if self._number < math.inf:
            self._order.leave(int(self._number))
        return super().result(timeout)
