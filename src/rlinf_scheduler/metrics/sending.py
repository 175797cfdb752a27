"""A process's side: what it logs is sent to the job's home, and given up where that does not take it."""

from __future__ import annotations

import threading
from functools import partial

from msgspec.structs import replace

from rlinf_scheduler.comm import Reply
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.errors import CommTimeout
from rlinf_scheduler.metrics.steps import METRICS, Logged, Sample, checked_step, checked_values
from rlinf_scheduler.observe.levels import Levels
from rlinf_scheduler.observe.timekeeping import TIMES, Site, current_step
from rlinf_scheduler.session import Session

# So many samples may be under way to a home that has not taken them,
MAX_UNTAKEN = 1000
# which counts as lost what it has not taken after so long.
TIMEOUT_S = 60.0
_log = Reporter(__name__)


class MetricsSender:
    """Sends what this process logs; a service of its session."""

    def __init__(self, session: Session) -> None:
        self._messenger = session.messenger
        self._home = session.home
        is_home = session.home.process_id == session.messenger.endpoint.process_id
        self._levels = session.service(Levels) if is_home else None
        self._is_wanted = True
        # Of both numbers: samples are sent by users' threads, and taken on the I/O thread.
        self._lock = threading.Lock()
        self._num_untaken = 0
        self._num_dropped = 0
        self._step = -1
        self._spent: dict[Site, float] = {}

    def log(self, sample: Sample) -> None:
        """Send it, with what this process's timers have measured since its step before; waits for nobody."""
        if not self._is_wanted:
            return
        if sample.step != self._step:
            self._step = sample.step
            times = self._times()
            slowest = tuple(Logged(f"{name}/max", value, "max") for name, value, _ in times)
            sample = replace(
                sample, values=(*sample.values, *times, *(slowest if sample.world_size > 1 else ()))
            )
        self._send(sample)

    def _times(self) -> tuple[Logged, ...]:
        before, self._spent = self._spent, {where: spent[1] for where, spent in TIMES.phases.copy().items()}
        return tuple(
            Logged("/".join(filter(None, ("time", *where))), seconds - before.get(where, 0.0), "mean")
            for where, seconds in self._spent.items()
            if seconds > before.get(where, 0.0)
        )

    def _send(self, sample: Sample) -> None:
        """Send it from this thread: so it is on its way before the result of the call that logs it."""
        with self._lock:
            if self._num_untaken >= MAX_UNTAKEN:
                self._num_dropped += len(sample.values)
                return
            self._num_untaken += 1
            num_dropped, self._num_dropped = self._num_dropped, 0
        told = replace(sample, num_dropped=num_dropped)
        if self._levels is not None:
            self._messenger.submit(partial(self._take, self._levels, told))
            return
        asked = METRICS.ask(self._messenger, self._home, told, timeout_s=TIMEOUT_S)
        asked.add_done_callback(partial(self._on_taken, len(told.values) + num_dropped))

    def _take(self, levels: Levels, told: Sample) -> None:
        """Take it here, in the home."""
        with self._lock:
            self._num_untaken -= 1
        self._is_wanted = levels.has(METRICS)
        if self._is_wanted:
            levels.now(METRICS, told)

    def _on_taken(self, num_values: int, asked: Promise[Reply]) -> None:
        error = asked.exception(0)
        with self._lock:
            self._num_untaken -= 1
            if isinstance(error, CommTimeout):
                self._num_dropped += num_values
                return
        if error is not None and self._is_wanted:
            self._is_wanted = False
            _log.info("what is logged by log_metrics goes nowhere: cluster.metrics says where to (%s)", error)


def log_metrics(
    session: Session | None,
    group: str,
    member: str,
    world_size: int,
    logged: tuple[object, object, str | None],
) -> None:
    """Check what was logged and send it; without a session it is only checked.

    Args:
        logged: values by name; the step, or None for that of the block; and the reduction.

    Raises:
        ConfigError: as of `Worker.log_metrics`.
    """
    metrics, step, reduce = logged
    number = checked_step(current_step() if step is None else step)
    values = checked_values(metrics, reduce)
    if session is not None:
        session.service(MetricsSender).log(Sample(group, member, world_size, number, values))
