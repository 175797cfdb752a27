"""The home's side: samples become rows, and each writer gets all rows on a thread of its own."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from rlinf_scheduler.config.metrics import MetricsConfig
from rlinf_scheduler.metrics.steps import METRICS, MetricsRow, OpenSteps, Sample
from rlinf_scheduler.metrics.writers import MetricsWriter, writer_factory
from rlinf_scheduler.observe.levels import Levels
from rlinf_scheduler.observe.status_service import begin_status, received
from rlinf_scheduler.session import Session
from rlinf_scheduler.session.membership import GroupMembers
from rlinf_scheduler.wording import counted

# So many samples may wait to be reduced, and so many rows for each writer.
MAX_SAMPLES = MAX_ROWS = 10_000
# So many rows a writer is given at a time.
_AT_ONCE = 500
# Steps are looked at so often, in seconds; queues are, at most.
_LOOK_S, _QUEUES_S = 0.5, 5.0
# How long a job that ends waits for its writers, in seconds.
CLOSE_S = 10.0
_log = logging.getLogger("rlinf.metrics")


def write_metrics(session: Session, config: MetricsConfig) -> None:
    """Have this process, the home of its job, write what the job's processes log.

    Raises:
        ConfigError: a writer is not installed.
    """
    factories = {name: writer_factory(name, config) for name in config.writers}
    collector = MetricsCollector(session, config.wait_s, [_WriterThread(*each) for each in factories.items()])
    session.service(Levels).add(METRICS, collector.take)
    session.on_close_first(collector.close)


class _WriterThread:
    """Hands rows to a writer as it takes them; counts those that it does not take."""

    def __init__(self, name: str, make: Callable[[], MetricsWriter]) -> None:
        self._name = name
        self._make = make
        self._rows: queue.Queue[MetricsRow | None] = queue.Queue(MAX_ROWS)
        self._problem = ""
        self._num_lost = 0
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name=f"rlinf-metrics-{name}", daemon=True)
        self._thread.start()

    def put(self, row: MetricsRow) -> None:
        """Hand over a row, or count it."""
        try:
            self._rows.put_nowait(row)
        except queue.Full:
            self._lose(1, f"it is slow: {MAX_ROWS:,} rows wait for it")

    def end(self) -> None:
        """Let it write what it has, and end; nothing is handed over any more."""
        self._is_closing = True
        with suppress(queue.Full):
            self._rows.put_nowait(None)

    def close(self, until: float) -> None:
        """Wait until a moment for its end; tell what is lost."""
        self._thread.join(max(0.0, until - time.monotonic()))
        if self._thread.is_alive():
            self._lose(max(1, self._rows.qsize() - 1), f"it has not ended after {CLOSE_S:.0f} s")
        if self._num_lost:
            lost = counted(self._num_lost, "row")
            _log.warning("metrics: '%s' has not written %s: %s", self._name, lost, self._problem)

    def _run(self) -> None:
        try:
            writer = self._make()
        except Exception as error:  # noqa: BLE001 - a library's fault ends its writer, not the job
            problem = f"it cannot begin: {type(error).__name__}: {error}"
            while rows := self._next():
                self._lose(len(rows), problem)
            self._lose(0, problem)
            return
        while rows := self._next():
            self._try(partial(writer.write, rows), len(rows))
        self._try(writer.close, 0)

    def _next(self) -> list[MetricsRow]:
        """Wait for rows; none at the end."""
        rows: list[MetricsRow] = []
        while len(rows) < _AT_ONCE and not (self._is_closing and self._rows.empty()):
            try:
                row = self._rows.get(block=not rows, timeout=_LOOK_S)
            except queue.Empty:
                if rows:
                    break
                continue
            if row is not None:  # which only wakes
                rows.append(row)
        return rows

    def _try(self, write: Callable[[], None], num_rows: int) -> None:
        try:
            write()
        except Exception as error:  # noqa: BLE001 - as above: the next rows may be taken
            self._lose(num_rows, f"it has failed: {type(error).__name__}: {error}")

    def _lose(self, num_rows: int, problem: str) -> None:
        self._num_lost += num_rows
        if not self._problem:
            self._problem = problem
            _log.warning("metrics: '%s' does not write what it is given: %s", self._name, problem)


class MetricsCollector:
    """Reduces samples on a thread of its own."""

    def __init__(self, session: Session, wait_s: float, writers: list[_WriterThread]) -> None:
        self._session = session
        self._steps = OpenSteps(wait_s, time.time)
        self._writers = writers
        # None at the end.
        self._samples: queue.SimpleQueue[Sample | GroupMembers | None] = queue.SimpleQueue()
        session.members.on_change.append(self._samples.put)
        self._num_dropped = 0
        self._told: set[str] = set()
        self._queues_at = -_QUEUES_S
        self._thread = threading.Thread(target=self._run, name="rlinf-metrics", daemon=True)
        self._thread.start()

    def take(self, sample: Sample) -> None:
        """Take what a process has logged, or count it; on the I/O thread."""
        self._num_dropped += sample.num_dropped
        if self._samples.qsize() < MAX_SAMPLES:
            self._samples.put(sample)
        else:
            self._num_dropped += len(sample.values)

    def close(self) -> None:
        """Write what there is, and end; waits `CLOSE_S` at most."""
        until = time.monotonic() + CLOSE_S
        messenger = self._session.messenger
        if messenger.why_closed:
            self._samples.put(None)
        else:  # after what was logged before
            messenger.submit(partial(self._samples.put, None))
        self._thread.join(CLOSE_S)
        for writer in self._writers:
            writer.close(until)
        if self._num_dropped:
            _log.warning("metrics: %s were dropped on their way here", counted(self._num_dropped, "value"))

    def _run(self) -> None:
        try:
            while self._write_next():
                pass
        finally:
            for writer in self._writers:
                writer.end()

    def _write_next(self) -> bool:
        """Reduce the next sample, or look at steps that wait; return whether there will be more."""
        try:
            sample = self._samples.get(timeout=_LOOK_S)
        except queue.Empty:
            rows, is_open = self._steps.due(time.monotonic()), True
        else:
            is_open = sample is not None
            rows = self._steps.close() if sample is None else self._add(sample)
        for row in rows:
            self._put(row)
        if rows and is_open:
            self._put_queues(rows[-1].step)
        return is_open

    def _add(self, sample: Sample | GroupMembers) -> list[MetricsRow]:
        if isinstance(sample, GroupMembers):
            return self._steps.resize(sample)
        now = time.monotonic()
        rows = self._steps.add(sample, now) + self._steps.due(now)
        if self._steps.late is not None:
            member, step = self._steps.late
            self._steps.late = None
            if member not in self._told:
                self._told.add(member)
                what = (
                    "logged step %d after that was written: it is a row of its own (cluster.metrics.wait_s)"
                )
                _log.warning(f"metrics: '%s' {what}", member, step)
        return rows

    def _put(self, row: MetricsRow) -> None:
        for writer in self._writers:
            writer.put(row)

    def _put_queues(self, step: int) -> None:
        """Write how many items channels hold, beside a step."""
        now = time.monotonic()
        if now - self._queues_at < _QUEUES_S:
            return
        self._queues_at = now
        try:
            status = received(begin_status(self._session))
        except Exception as error:  # noqa: BLE001 - what channels hold is beside what ranks have logged
            _log.debug("metrics: no queue could be looked at: %s", error)
            return
        values: dict[str, float] = {}
        for channel in status.channels:
            values[f"queue/{channel.name}/items"] = channel.depth
            values[f"queue/{channel.name}/oldest_item_age_s"] = channel.oldest_age_s or 0.0
        if values:
            self._put(MetricsRow(step, values, 1, time.time()))
