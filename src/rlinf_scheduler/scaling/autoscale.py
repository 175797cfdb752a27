"""`cluster.autoscale`: a thread of the driver that looks at a group, decides by the policy, and grows or shrinks it."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from rlinf_scheduler.errors import ClusterTimeout, ConfigError, PlacementError, SchedulerError
from rlinf_scheduler.events import Autoscaled
from rlinf_scheduler.observe.graph import graph_of
from rlinf_scheduler.observe.report import WITHIN_S
from rlinf_scheduler.observe.status_service import begin_status, received
from rlinf_scheduler.observe.time_service import ask_times
from rlinf_scheduler.observe.why import ask_job
from rlinf_scheduler.planning.scaling import ScalingDecision, ScalingPolicy, ScalingSample
from rlinf_scheduler.scaling.launched import has_ended
from rlinf_scheduler.scaling.lending import lender_of
from rlinf_scheduler.scaling.measures import (
    MEASURES,
    TimesSoFar,
    has_open_waits,
    sample_between,
    times_so_far,
)
from rlinf_scheduler.session import Session
from rlinf_scheduler.wording import did_you_mean, list_names
from rlinf_scheduler.worker.group import WorkerGroup

# So many decisions are remembered.
_MAX_DECISIONS = 256
_log = logging.getLogger(__name__)


class Autoscale:
    """A policy that grows and shrinks a group, until it is stopped or the job ends.

    Args:
        session: of the process whose policy it is.
        group: which.
        policy: decides.
        by: the measure, one of `MEASURES`.
        dry_run: nothing is changed: what would be is told.
        on_grow: called with the ranks that have come, to have them begin.

    Attributes:
        group: the group's name.
        policy: see above.
        last: what was decided last, with its reason; None at first.

    Raises:
        ConfigError: there is no such measure, or the group has a policy.
    """

    def __init__(
        self,
        session: Session,
        group: WorkerGroup[Any],
        policy: ScalingPolicy,
        *,
        by: str,
        dry_run: bool,
        on_grow: Callable[[WorkerGroup[Any]], object] | None,
    ) -> None:
        if by not in tuple(MEASURES):
            problem = f"by={by!r}: a group is scaled by {' or '.join(map(repr, MEASURES))}"
            raise ConfigError(problem, hint=did_you_mean(str(by), MEASURES))
        if on_grow is not None and not callable(on_grow):
            raise ConfigError(
                f"on_grow={on_grow!r}: it is a function that is called with the ranks that have come"
            )
        self.group, self.policy = group.name, policy
        self._session, self._workers, self._by, self._dry_run = session, group, by, dry_run
        self.last: ScalingDecision | None = None
        self._on_grow = on_grow
        self._decisions: deque[ScalingDecision] = deque(maxlen=_MAX_DECISIONS)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"rlinf-autoscale-{self.group}", daemon=True)
        self._all = session.service(Autoscales)
        self._all.add(self)
        self._thread.start()

    @property
    def decisions(self) -> tuple[ScalingDecision, ...]:
        """What was changed, would have been, or could not be, each with its reason; the newest last."""
        return tuple(self._decisions)

    def end(self) -> None:
        """Decide no more; returns at once."""
        self._over.set()

    def stop(self, timeout_s: float = 120.0) -> None:
        """Decide no more; a resize that goes on is waited for.

        Raises:
            ClusterTimeout: it is not over at the deadline.
        """
        self.end()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise ClusterTimeout(
                f"the policy of '{self.group}' is at a resize that is not over after {timeout_s:.0f} s"
            )

    def _run(self) -> None:
        try:
            self._look_and_decide()
        finally:
            self._all.remove(self)

    def _look_and_decide(self) -> None:
        """Until it is stopped, or the group or the job has ended."""
        before: TimesSoFar | None = None
        is_new = True  # what was before does not count
        while not self._over.wait(self.policy.options.every_s):
            try:
                if self.is_over:
                    return
                after = self._looked_at(before)
                sample = None if before is None or is_new else sample_between(before, after, self.group)
                is_new = self._take(sample) if sample is not None else False
                before = after
            except Exception as error:  # noqa: BLE001 - Ray's, say: the next look may be better
                if self._session.closed:
                    return
                is_error = isinstance(error, SchedulerError)
                _log.warning(
                    "the policy of '%s' could not look: %s", self.group, error, exc_info=not is_error
                )

    def _looked_at(self, before: TimesSoFar | None) -> TimesSoFar:
        times, about = ask_times(self._session, WITHIN_S), (self.group, self._by)
        has_open = has_open_waits(times, *about)
        graph = graph_of(ask_job(self._session, WITHIN_S, by_signal=False)) if has_open else None
        return times_so_far(times, *about, before, graph)

    @property
    def is_over(self) -> bool:
        """Whether it decides nothing any more: it was stopped, or its group has ended."""
        return self._over.is_set() or has_ended(self._workers)

    def _take(self, sample: ScalingSample) -> bool:
        """Decide, do it, and remember it; whether the group is another one now, or may be."""
        size = self._workers.world_size
        if lender := lender_of(self._session, self.group):
            self.policy.changed(sample.at)
            reason = f"it has ranks on devices of '{lender}', and stays until they are given back"
            self.last = ScalingDecision(sample.at, size, size, reason)
            return True
        decision = self.policy.decide(sample, size)
        is_done = decision.action != "stay" and not self._dry_run
        if is_done:
            began = time.monotonic()
            try:
                self._resize(decision.after - decision.before)
            except SchedulerError as error:
                reason = (
                    f"it was to {decision.action} to {decision.after}, and cannot: {self._why_not(error)}"
                )
                decision = ScalingDecision(decision.at, decision.before, decision.before, reason)
            self.policy.changed(decision.at + time.monotonic() - began)
        if is_done or decision.action != "stay":
            self._note(decision)
        self.last = decision
        return is_done

    def _resize(self, by: int) -> None:
        if by < 0:  # by their numbers: those that are lent to it meanwhile are not meant
            self._workers.shrink(ranks=self._workers.members.ranks[by:], drain_s=self.policy.options.drain_s)
            return
        ranks = self._workers.grow(by)
        if self._on_grow is not None:
            try:
                self._on_grow(self._workers.execute_on(*ranks))
            except Exception:  # noqa: BLE001 - the user's code: they stay, and are called by others, maybe
                _log.exception("on_grow of the policy of '%s' failed for ranks %s", self.group, ranks)

    def _why_not(self, error: SchedulerError) -> str:
        first = str(error).partition("\n")[0]
        if not isinstance(error, PlacementError):
            return first
        nodes = received(begin_status(self._session)).nodes
        seen = {address for node in nodes for device in node.devices for address in device.holders}
        holders = {address.rpartition(":")[0] for address in seen} - {self.group}
        return f"{first}; accelerators are held by {list_names(sorted(holders))}" if holders else first

    def _note(self, decision: ScalingDecision) -> None:
        last = self._decisions[-1] if self._decisions else None
        if decision.action != "stay":
            about = decision.before, decision.after, decision.reason, self._dry_run
            self._session.bus.emit(Autoscaled(self.group, *about))
        elif last is not None and (last.after, last.reason) == (decision.after, decision.reason):
            return  # it was told that it cannot
        else:
            _log.warning("the policy of '%s': %s", self.group, decision.reason)
        self._decisions.append(decision)


class Autoscales:
    """The policies that a process runs; a service of its session."""

    def __init__(self, session: Session) -> None:
        self._by_group: dict[str, Autoscale] = {}
        self._lock = threading.Lock()
        session.on_close(self.end)

    def add(self, policy: Autoscale) -> None:
        """One begins.

        Raises:
            ConfigError: its group has one.
        """
        with self._lock:
            first = self._by_group.get(policy.group)
            if first is not None and not first.is_over:
                limits = f"{first.policy.least} to {first.policy.most} ranks"
                problem = f"'{policy.group}' has a policy already, of {limits}"
                raise ConfigError(problem, hint="stop() it first")
            self._by_group[policy.group] = policy

    def end(self) -> None:
        """The job ends."""
        for policy in list(self._by_group.values()):
            policy.end()

    def remove(self, policy: Autoscale) -> None:
        """One has ended."""
        with self._lock:
            if self._by_group.get(policy.group) is policy:
                del self._by_group[policy.group]
