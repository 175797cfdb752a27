"""What it costs to be able to see what a job does, with 64 ranks: counted, listened to, looked at, traced.

The same loops run in turn in one run, and what counts is the ratio to the first side, `bare`, in which nothing of where
the time goes is counted: what does that is replaced by nothing in all processes. `counted` is what every job has;
`events` has a listener to all events; `scraped` has its metrics read once a second from `rlinf metrics`; `looked at`
asks all ranks once a second what they are at (`cluster.why`); and `traced` writes a timeline (`cluster.trace`). The
times of beginning and ending a trace are no part of the loops.

A side runs for about half a second, then the next one, for many rounds: each ratio is the median of the rounds' own.

The CartPole example is trained with and without a trace, as its users run it, for few updates and for many. What a note
costs is measured alone, too (`note_costs.py`), and counted: a share of a few thousandths lies within the noise.

Run it with `python benchmarks/observe.py [--only NAME] [--quick]`; "notes" and "cartpole" are names, too.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from measure import Options, Side, Table, count_for, duration_text, ratio_text, read_options, stopwatch
from note_costs import note_costs, share_of_notes, show_costs
from rlinf.scheduler import Channel, Cluster, PackedPlacementStrategy, Worker
from rlinf_scheduler.comm import waits
from rlinf_scheduler.observe.timekeeping import TIMES, Timekeeper

NUM_RANKS = 64
# A run of few updates and one of many: what the beginning costs is no part of their difference.
UPDATES = 12, 36
_CARTPOLE = Path(__file__).parents[1] / "examples" / "cartpole" / "main.py"
_NOTES = ("note_wait", "note_phase", "note_call")
_KEPT = {name: getattr(Timekeeper, name) for name in _NOTES}
WORKLOADS = ("put and get of 1 KiB, one rank", "a call of one rank", "a call of all ranks")
SIDES = ("bare", "counted", "events", "scraped", "looked at", "traced")


def count_nothing(nothing: bool) -> None:
    """Let this process count where its time goes, or not."""
    for name, note in _KEPT.items():
        setattr(Timekeeper, name, (lambda *_: None) if nothing else note)
    waits.account = None if nothing else TIMES.note_wait


class Rank(Worker):
    """One of many; most of them are only there."""

    def count_nothing(self, nothing: bool) -> None:
        """See above."""
        count_nothing(nothing)

    def pairs(self, channel: str, count: int) -> float:
        """Put and get 1 KiB, so often; how many seconds that takes."""
        ours, item = self.connect_channel(channel), os.urandom(1024)
        began = time.perf_counter()
        for _ in range(count):
            ours.put(item)
            ours.get()
        return time.perf_counter() - began

    def nothing(self) -> None:
        """Return."""


@contextmanager
def listening(cluster: Cluster) -> Iterator[None]:
    """A block in which somebody hears of all events."""
    heard: list[object] = []
    cluster.session.bus.subscribe(heard.append)
    try:
        yield
    finally:
        cluster.session.bus.unsubscribe(heard.append)


@contextmanager
def each_second(look: Callable[[], object]) -> Iterator[None]:
    """A block in which somebody looks once a second, the first time at once."""
    over = threading.Event()

    def look_again() -> None:
        while True:
            look()
            if over.wait(1.0):
                return

    thread = threading.Thread(target=look_again)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def served_metrics() -> Iterator[Callable[[], object]]:
    """A block in which another process serves the metrics of this one's job; what reads them."""
    command = [Path(sys.executable).with_name("rlinf"), "metrics", "--no-token", "--job", str(os.getpid())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().strip()
            if not url:
                raise RuntimeError("`rlinf metrics` does not serve; what it says stands above")

            def read() -> None:
                with urllib.request.urlopen(url, timeout=30) as page:
                    page.read()

            yield read
        finally:
            server.terminate()


@contextmanager
def bare(group: Any) -> Iterator[None]:
    """A block in which nothing is counted."""
    group.count_nothing(True).wait()
    count_nothing(True)
    try:
        yield
    finally:
        count_nothing(False)
        group.count_nothing(False).wait()


def compare_sides(cluster: Cluster, group: Any, scrape: Callable[[], object], options: Options) -> None:
    """Each workload on each side, in turn."""
    folder = Path(tempfile.mkdtemp(prefix="observe-"))
    sides: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "bare": lambda: bare(group),
        "counted": nullcontext,
        "events": lambda: listening(cluster),
        "scraped": lambda: each_second(scrape),
        "looked at": lambda: each_second(cluster.why),
        "traced": lambda: cluster.trace(folder / "run.json"),
    }
    Channel.create("pairs")
    one = group.execute_on(0)
    runs: tuple[Side, ...] = (
        lambda count: one.pairs("pairs", count).wait()[0],
        lambda count: _calls(one, count),
        lambda count: _calls(group, count),
    )
    table = Table("median of the rounds", [*SIDES, *(f"{name} / bare" for name in SIDES[1:])], width=10)
    for name, run in zip(WORKLOADS, runs, strict=True):
        if not options.wants(name):
            continue
        count = count_for(run, options.budget_s)
        took: dict[str, list[float]] = {side: [] for side in SIDES}
        for _ in range(options.rounds):
            for side in SIDES:
                with sides[side]():
                    run(max(1, count // 5))  # what began the side left processors busy, or asleep
                    took[side].append(run(count) / count)
        middle = [duration_text(statistics.median(seconds)) for seconds in took.values()]
        # Of each round its own: what else the machine does changes from one to the next.
        in_rounds = [
            [mine / bare for mine, bare in zip(took[side], took["bare"], strict=True)] for side in SIDES[1:]
        ]
        table.row(name, *middle, *(f"{statistics.median(ratios):.3f} x" for ratios in in_rounds))


def _calls(group: Any, count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
        group.nothing().wait()
    return time.perf_counter() - began


class Training(NamedTuple):
    """One run of the CartPole example.

    Attributes:
        training_s: for how long it trained, in seconds.
        times: where the time went, as data.
        size_bytes: how large the file of the trace is; 0 without one.
        spans_each: how many spans the process with most of them made.
    """

    training_s: float
    times: dict[str, Any]
    size_bytes: int = 0
    spans_each: int = 0


def train(updates: int, traced: bool) -> Training:
    """Run the CartPole example for so many updates."""
    with tempfile.TemporaryDirectory(prefix="observe-") as name:
        folder = Path(name)
        environment = {name: value for name, value in os.environ.items() if name != "RLINF_TRACE"}
        file = folder / "cartpole.json"
        if traced:
            environment["RLINF_TRACE"] = str(file)
        options = [f"training.max_updates={updates}", "training.stop_return=1e9", f"hydra.run.dir={folder}"]
        done = subprocess.run(
            [sys.executable, str(_CARTPOLE), *options],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if not (folder / "summary.json").exists():
            raise RuntimeError(done.stderr)
        summary = json.loads((folder / "summary.json").read_text())
        if not traced:
            return Training(summary["training_s"], summary["times"])
        spans = Counter(
            event["pid"] for event in json.loads(file.read_text())["traceEvents"] if event["ph"] == "X"
        )
        return Training(summary["training_s"], summary["times"], file.stat().st_size, max(spans.values()))


def compare_cartpole(options: Options) -> None:
    """The example with and without a trace, in turn; then what of it is notes, by counting them."""
    runs: dict[tuple[int, bool], list[Training]] = {}
    for _ in range((options.rounds + 1) // 2):
        for updates in UPDATES:
            for traced in (False, True):
                runs.setdefault((updates, traced), []).append(train(updates, traced))
    few, many = UPDATES
    middle = {about: statistics.median(each.training_s for each in made) for about, made in runs.items()}
    table = Table("CartPole", ["counted", "traced", "traced / counted"])
    for updates in UPDATES:
        _compared(table, f"{updates} updates", *(middle[updates, traced] for traced in (False, True)))
    each_s = ((middle[many, traced] - middle[few, traced]) / (many - few) for traced in (False, True))
    _compared(table, f"each of the last {many - few}", *each_s)
    print()
    costs = note_costs()
    untraced, traced_run = runs[many, False][-1], runs[many, True][-1]
    spans_s = traced_run.spans_each / traced_run.training_s
    table = Table("CartPole, by counting, of the busiest rank's time", ["share", "spans a second"], 52)
    table.row("counted", f"{100 * share_of_notes(untraced.times, costs):.2f} %")
    share = spans_s * (costs.span + costs.written)
    table.row("traced, besides", f"{100 * share:.2f} %", f"{spans_s:,.0f}")
    print(f"the trace of {many} updates has {traced_run.size_bytes / 1e6:.1f} MB")


def _compared(table: Table, name: str, counted_s: float, traced_s: float) -> None:
    table.row(name, duration_text(counted_s), duration_text(traced_s), ratio_text(traced_s / counted_s))


def main() -> None:
    """Measure what is asked for."""
    options = read_options(__doc__ or "", rounds=11, budget_s=0.6)
    with stopwatch("observe"):
        if options.wants("notes"):
            show_costs(note_costs())
            print()
        if any(map(options.wants, WORKLOADS)):
            # With one round it is tried whether it runs.
            num_ranks = NUM_RANKS if options.rounds > 1 else NUM_RANKS // 16
            with Cluster(simulate=f"1x{num_ranks}") as cluster:
                group = Rank.create_group().launch(
                    cluster, PackedPlacementStrategy(0, num_ranks - 1), name="rank", launch_timeout_s=600
                )
                with served_metrics() as scrape:
                    compare_sides(cluster, group, scrape, options)
        if options.wants("cartpole"):
            print()
            compare_cartpole(options)


if __name__ == "__main__":
    main()
