"""Calls that no rank answers for too long. On the I/O thread only."""

from __future__ import annotations

import time

from rlinf.scheduler.comm.loop import Timer
from rlinf.scheduler.observe.stalls import Stall, tell_stall
from rlinf.scheduler.session import Session
from rlinf.scheduler.worker.call import Call


def watch_stalls(session: Session, call: Call, stall_after_s: float) -> None:
    """Tell the job's home of a call that takes so long, in seconds, and again whenever it has taken twice as long."""
    began = time.monotonic()
    timers: list[Timer] = []

    def tell() -> None:
        pairs = zip(call.addresses, call.outcomes, strict=True)
        missing = tuple(str(address) for address, outcome in pairs if outcome is None)
        waited_s = time.monotonic() - began
        tell_stall(session, Stall(call.addresses[0].group, "", f"{call.method}()", missing, waited_s))
        begin(waited_s)

    def begin(pause_s: float) -> None:
        timers[:] = [session.messenger.call_later(pause_s, tell)]

    begin(stall_after_s)
    # The timer refers to the call, and that to what has come of it.
    call.complete.add_done_callback(lambda _: timers.pop().cancel())
