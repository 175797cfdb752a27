"""What it costs to be able to see what a job does, with 64 ranks: counted, listened to, looked at, traced.

The same loops run in turn in one run, and what counts is the ratio to the first side, `bare`, in which nothing of where
the time goes is counted: what does that is replaced by nothing in all processes. `counted` is what every job has;
`events` has a listener to all events; `scraped` has its metrics read once a second from `rlinf metrics`; `looked at`
asks all ranks once a second what they are at (`cluster.why`); and `traced` writes a timeline (`cluster.trace`). The
times of beginning and ending a trace are no part of the loops.

A side runs for about half a second, then the next one, for many rounds: each ratio is the median of the rounds' own.

The CartPole example is trained for so many updates with and without a trace, as its users run it.

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
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from measure import Options, Side, Table, count_for, duration_text, ratio_text, read_options, stopwatch
from rlinf.scheduler import Channel, Cluster, PackedPlacementStrategy, Worker
from rlinf.scheduler.comm import promise, timekeeping
from rlinf.scheduler.comm.promise import Promise
from rlinf.scheduler.comm.timekeeping import TIMES, Cause, Timekeeper
from rlinf.scheduler.host.timing import Stopwatch

NUM_RANKS = 64
UPDATES = 12
_CARTPOLE = Path(__file__).parents[1] / "examples" / "cartpole" / "main.py"
_NOTES = ("note_wait", "note_phase", "note_call")
_KEPT = {name: getattr(Timekeeper, name) for name in _NOTES}
WORKLOADS = ("put and get of 1 KiB, one rank", "a call of one rank", "a call of all ranks")
SIDES = ("bare", "counted", "events", "scraped", "looked at", "traced")


def count_nothing(nothing: bool) -> None:
    """Let this process count where its time goes, or not."""
    for name, note in _KEPT.items():
        setattr(Timekeeper, name, (lambda *_: None) if nothing else note)
    promise.begin_wait_in = (lambda *_: None) if nothing else timekeeping.begin_wait_in


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


def cost_of_notes() -> None:
    """What one note costs in the process that makes it."""
    table = Table("one note", ["takes"])
    cause, number = Cause("channel", "get('pairs')", "pairs"), 200_000

    def waits() -> None:
        for _ in range(number):
            TIMES.note_wait(time.monotonic(), cause, "rollout:1")

    def timers() -> None:
        for _ in range(number):
            with Stopwatch("learn"):
                pass

    def described() -> None:
        for _ in range(number):
            Promise().wait(1e-9)

    works = {
        "a wait of a channel": waits,
        "a timer": timers,
        "a wait that is read off the stack": described,
    }
    for name, work in works.items():
        began = time.perf_counter()
        work()
        table.row(name, duration_text((time.perf_counter() - began) / number))


def trained_s(traced: bool, folder: Path) -> float:
    """Seconds in which the CartPole example does its updates."""
    environment = {name: value for name, value in os.environ.items() if name != "RLINF_TRACE"}
    if traced:
        environment["RLINF_TRACE"] = str(folder / "cartpole.json")
    options = [f"training.max_updates={UPDATES}", "training.stop_return=1e9", f"hydra.run.dir={folder}"]
    done = subprocess.run(
        [sys.executable, str(_CARTPOLE), *options],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if not (folder / "summary.json").exists():
        raise RuntimeError(done.stderr)
    return float(json.loads((folder / "summary.json").read_text())["training_s"])


def compare_cartpole(options: Options) -> None:
    """The example with and without a trace, in turn."""
    took: dict[bool, list[float]] = {False: [], True: []}
    size = 0
    for _ in range((options.rounds + 1) // 2):
        for traced in took:
            with tempfile.TemporaryDirectory(prefix="observe-") as folder:
                took[traced].append(trained_s(traced, Path(folder)))
                if traced:
                    size = (Path(folder) / "cartpole.json").stat().st_size
    counted, traced_s = (statistics.median(seconds) for seconds in took.values())
    table = Table(f"CartPole, {UPDATES} updates", ["counted", "traced", "traced / counted", "file"])
    ratio, file = ratio_text(traced_s / counted), f"{size / 1e6:.1f} MB"
    table.row("median of the rounds", duration_text(counted), duration_text(traced_s), ratio, file)


def main() -> None:
    """Measure what is asked for."""
    options = read_options(__doc__ or "", rounds=11, budget_s=0.6)
    with stopwatch("observe"):
        if options.wants("notes"):
            cost_of_notes()
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
