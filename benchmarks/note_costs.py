"""What it costs the process that does something to count it, and to trace it: processor time, in loops of nothing else.

A share of a few thousandths lies within what two runs of a job differ by on any machine. So what is done for it is
timed alone, and how often a job does it is counted.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from measure import Table, duration_text
from rlinf_scheduler.comm import waits
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.host.timing import Stopwatch, recording
from rlinf_scheduler.observe.timekeeping import GET, TIMES, WAIT, Span
from rlinf_scheduler.tracing import span_file
from rlinf_scheduler.tracing.span_file import SpanFileHead, SpanFileThread, SpanFileWriter

_NUMBER, _ROUNDS = 20_000, 9
_CAUSE = waits.Cause(waits.CHANNEL, "get", "pairs")
# So many spans are written at once in a process that makes 2,400 a second.
_AT_ONCE = 600


class NoteCosts(NamedTuple):
    """What a note takes, in seconds of processor time.

    Attributes:
        channel_wait: of a blocking operation on a channel: that it has waited, and the look whether it is traced.
        wait: of any other wait, which is read off the stack.
        phase: of a timer.
        call: of a call that a rank runs.
        span: of a trace, besides, in the thread that makes a span,
        written: and in the one that writes it.
    """

    channel_wait: float
    wait: float
    phase: float
    call: float
    span: float
    written: float


def note_costs() -> NoteCosts:
    """Measure them."""
    untraced = {work: _each_s(work) for work in (_channel_wait, _wait, _phase, _call)}
    with _uncounted_waits():
        untraced[_wait] -= _each_s(_wait)
    with _traced():
        spans_s = [_each_s(work) - untraced[work] for work in (_channel_wait, _phase)]
        spans_s.append(_each_s(_moved))
    return NoteCosts(*untraced.values(), max(spans_s), _written_s())


def show_costs(costs: NoteCosts) -> None:
    """As a table."""
    table = Table("one note, in processor time", ["takes"])
    for name, seconds in (
        ("a blocking operation on a channel", costs.channel_wait),
        ("any other wait, which is read off the stack", costs.wait),
        ("a timer", costs.phase),
        ("a call, where it runs", costs.call),
        ("traced: a span more, in its thread", costs.span),
        ("traced: a span more, where it is written", costs.written),
    ):
        table.row(name, duration_text(seconds))


def share_of_notes(times: dict[str, Any], costs: NoteCosts) -> float:
    """What part of its time a rank spends on noting where it goes, in the group that spends most.

    Args:
        times: `Cluster.report` as data.
        costs: of the notes.
    """
    return max(_noting_s(group, costs) / group["num_ranks"] / group["lived_s"] for group in times["groups"])


def _noting_s(group: dict[str, Any], costs: NoteCosts) -> float:
    seconds = 0.0
    for method in group["methods"]:
        seconds += costs.call * method["spent"]["count"]
        seconds += sum(costs.phase * phase["spent"]["count"] for phase in method["phases"])
        for wait in method["waits"]:
            seconds += wait["spent"]["count"] * (
                costs.channel_wait if wait["kind"] == "channel" else costs.wait
            )
    return seconds


# -- what is timed -----------------------------------------------------------------------------------


def _nothing() -> None:
    for _ in range(_NUMBER):
        pass


def _channel_wait() -> None:
    for _ in range(_NUMBER):
        TIMES.note_wait(time.monotonic(), _CAUSE, "rollout:1")
        if TIMES.span_file is None:
            pass


def _wait() -> None:
    for _ in range(_NUMBER):
        Promise[None]().wait(1e-9)


def _phase() -> None:
    for _ in range(_NUMBER):
        with Stopwatch("learn"):
            pass


def _call() -> None:
    for _ in range(_NUMBER):
        with recording({}, "train", "driver"):
            pass


def _moved() -> None:
    for number in range(_NUMBER):
        TIMES.note_moved(GET, time.monotonic(), "get", "pairs", (("rollout:1", number),))


def _each_s(work: Callable[[], None]) -> float:
    """Seconds of this thread's processor time for each of the works: the quickest of some rounds, without the loop."""
    return (_quickest_s(work) - _quickest_s(_nothing)) / _NUMBER


def _quickest_s(work: Callable[[], None]) -> float:
    took = []
    for _ in range(_ROUNDS):
        began = time.thread_time()
        work()
        took.append(time.thread_time() - began)
    return min(took)


@contextmanager
def _uncounted_waits() -> Iterator[None]:
    """A block in which a wait is only that."""
    account, waits.account = waits.account, None
    try:
        yield
    finally:
        waits.account = account


@contextmanager
def _traced() -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="observe-") as folder:
        thread = SpanFileThread(_writer(folder), "rollout:0")
        TIMES.trace(thread.add)
        try:
            yield
        finally:
            TIMES.trace(None)
            thread.end()
            thread.ended.wait(60)


def _written_s() -> float:
    """Seconds of processor time to write a span, of as many as come together in a busy process."""
    took, ident, flush_s = [], threading.get_ident(), span_file.FLUSH_S
    span_file.FLUSH_S = 3600.0
    try:
        with tempfile.TemporaryDirectory(prefix="observe-") as folder:
            thread = SpanFileThread(_writer(folder), "rollout:0")
            for _ in range(_ROUNDS):
                for number in range(_AT_ONCE):
                    thread.add(Span(WAIT, number, number + 0.5, "get('pairs')", ident, "env:0", "pairs"))
                began = time.thread_time()
                thread._write()
                took.append(time.thread_time() - began)
            thread.end()
            thread.ended.wait(60)
    finally:
        span_file.FLUSH_S = flush_s
    return statistics.median(took) / _AT_ONCE


def _writer(folder: str) -> SpanFileWriter:
    return SpanFileWriter(Path(folder) / "p", SpanFileHead("rollout:0", 1, "node0", 0, 0), 1 << 24)
