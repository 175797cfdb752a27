"""Calls for whose answers, or next values, their callers wait too long. On the I/O thread only."""

from __future__ import annotations

import time

from rlinf_scheduler.comm.loop import Timer
from rlinf_scheduler.observe.stalls import Stall, tell_stall
from rlinf_scheduler.session import Session
from rlinf_scheduler.worker.call import Call


def watch_stalls(session: Session, call: Call, stall_after_s: float) -> None:
    """Tell the job's home of a call that owes something for so long, in seconds, and whenever that has doubled."""
    patience = Patience(stall_after_s)
    timers: list[Timer] = []

    def look() -> None:
        now = time.monotonic()
        owed_s = [now - call.owed_since(index) for index in range(len(call.addresses))]
        waited_s = max(owed_s)
        if patience.ends(waited_s):
            pairs = zip(call.addresses, owed_s, strict=True)
            late = tuple(str(address) for address, each_s in pairs if each_s >= stall_after_s)
            tell_stall(session, Stall(call.addresses[0].group, "", f"{call.method}()", late, waited_s))
        begin(patience.left_s(waited_s))

    def begin(pause_s: float) -> None:
        timers[:] = [session.messenger.call_later(pause_s, look)]

    begin(stall_after_s)
    # The timer refers to the call, and that to what has come of it.
    call.complete.add_done_callback(lambda _: timers.pop().cancel())


class Patience:
    """How long a wait may take until it is told of, and told of again.

    >>> patience = Patience(10.0)
    >>> patience.ends(9.0), patience.ends(11.0), patience.ends(19.0), patience.left_s(19.0)
    (False, True, False, 3.0)
    >>> patience.ends(4.0), patience.left_s(4.0)  # what was waited for has come, and it waits for the next
    (False, 6.0)
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._told_s = 0.0

    def ends(self, waited_s: float) -> bool:
        """Return whether it is to be told of now, given for how long it waits, in seconds."""
        if waited_s < self._told_s:
            self._told_s = 0.0
        if waited_s < max(self._limit_s, 2 * self._told_s):
            return False
        self._told_s = waited_s
        return True

    def left_s(self, waited_s: float) -> float:
        """Return for how much longer it may wait, in seconds, given for how long it does; less than 0: it does not."""
        return max(self._limit_s, 2 * self._told_s) - max(0.0, waited_s)
