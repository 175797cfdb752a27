"""A job that runs for an hour while its ranks are killed: does anything grow?

Two makers put numbered items into a durable channel; three workers take them on lease and put an answer for each into a
plain channel, which the driver reads. All print steadily and are traced; every few seconds a random rank is killed
and comes back, and now and then the process of the durable channel. Every few seconds are noted: the memory of the
driver, of the ranks and of the processes that hold channels (proportional, shared memory included), their descriptors,
what lies on the disk (journal, logs, spans and Ray's own files), and how long the I/O threads of the driver
and of the plain channel take to answer.

    python benchmarks/long_run.py [--minutes 60] [--every 15] [--seed 1] [--picture FILE] [--samples FILE]

Exits with 1 if an item was lost, or the last quarter of the run needs more than the one after the first.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from rlinf.scheduler import Channel, Cluster, PackedPlacementStrategy, Worker, WorkerGroup
from rlinf_scheduler.errors import ChannelClosed
from rlinf_scheduler.events import ChannelOpened, ChannelRestored, Event
from rlinf_scheduler.session import current_session

NUM_MAKERS, NUM_WORKERS = 2, 3
PROMPTS, ANSWERS = "prompts", "answers"
MAXSIZE = 256
# Of each maker, in seconds; one in so many items lies in shared memory.
MAKE_EVERY_S = 0.02
LARGE_EVERY, SMALL_BYTES, LARGE_BYTES = 50, 4 << 10, 1 << 20
LINE = "x" * 180
TRACE_BYTES = 16 << 20
SAMPLE_EVERY_S, PROBE_EVERY_S = 5.0, 0.05
# One in so many times the process of the durable channel is killed; more than five in a minute would give it up.
CHANNEL_EVERY = 10
DEADLINE_S = 120.0
MANY = 1_000_000
MIB = 1 << 20
# The last quarter may need so much more than the second one.
GROWTH, SPARE = 1.1, {"memory": 24.0, "descriptors": 12.0, "disk": 12.0, "latency": 5.0}


class Maker(Worker):
    """Puts numbered items, each life under a number of its own."""

    def run(self) -> None:
        """Put until the channel is closed."""
        prompts = Channel.connect(PROMPTS)
        pause = threading.Event()
        life = f"{self.rank}-{os.getpid()}-{time.time_ns()}"
        with contextlib.suppress(ChannelClosed):
            for number in itertools.count():
                large = number % LARGE_EVERY == LARGE_EVERY - 1
                prompts.put((life, number, np.zeros(LARGE_BYTES if large else SMALL_BYTES, np.uint8)))
                print(f"{life} has put {number} {LINE}")
                pause.wait(MAKE_EVERY_S)


class Answerer(Worker):
    """Takes items on lease; each is acknowledged when its answer is there."""

    def run(self) -> None:
        """Answer until the channel has ended."""
        prompts, answers = Channel.connect(PROMPTS), Channel.connect(ANSWERS)
        for lease in prompts.leases():
            life, number, content = lease.item
            answers.put((life, number, content[:64]))
            print(f"{self.rank} has answered {number} of {life} {LINE}")


@dataclass
class Count:
    """Which numbers have come, in memory that does not grow with their number.

    Attributes:
        num_items: answers that came.
        num_again: those of them that had come before.
    """

    num_items: int = 0
    num_again: int = 0
    _next: dict[str, int] = field(default_factory=dict)
    _ahead: dict[str, set[int]] = field(default_factory=dict)

    def add(self, life: str, number: int) -> None:
        """An answer has come."""
        self.num_items += 1
        due, ahead = self._next.setdefault(life, 0), self._ahead.setdefault(life, set())
        if number < due or number in ahead:
            self.num_again += 1
            return
        ahead.add(number)
        while due in ahead:
            ahead.remove(due)
            due += 1
        self._next[life] = due

    def num_missing(self) -> int:
        """How many are missing of those before the last one of each life."""
        gaps = [
            max(ahead) + 1 - self._next[life] - len(ahead) for life, ahead in self._ahead.items() if ahead
        ]
        return sum(gaps)


@dataclass(frozen=True, slots=True)
class Sample:
    """One look; memory and disk in MiB, times in milliseconds."""

    at_s: float
    memory: dict[str, float]
    descriptors: dict[str, int]
    disk: dict[str, float]
    latency: dict[str, float]


class Job:
    """The job, its killer and its meters.

    Args:
        folder: for what it writes.
        seed: of who is killed.
    """

    def __init__(self, cluster: Any, folder: Path, seed: int) -> None:
        self.folder = folder
        self.count = Count()
        self.num_kills, self.num_channel_kills = 0, 0
        self.samples: list[Sample] = []
        self._cluster = cluster
        self._dice = random.Random(seed)
        self._over = threading.Event()
        self._holders: dict[str, int] = {}
        self._slowest: dict[str, float] = {}
        cluster.subscribe(self._hear)
        self._prompts = Channel.create(PROMPTS, MAXSIZE, durable=str(folder / "journal"), own_process=True)
        self._answers = Channel.create(ANSWERS, MAXSIZE, own_process=True)
        options: dict[str, Any] = {"on_failure": "restart", "max_restarts": MANY}
        with cluster.starting():
            self._makers: WorkerGroup[Any] = Maker.create_group().launch(
                cluster, PackedPlacementStrategy(0, NUM_MAKERS - 1), name="maker", **options
            )
            self._answerers: WorkerGroup[Any] = Answerer.create_group().launch(
                cluster, PackedPlacementStrategy(0, NUM_WORKERS - 1), name="answerer", **options
            )
        self._calls = [group.retrying().run() for group in (self._makers, self._answerers)]
        self._threads = [
            threading.Thread(target=work, daemon=True) for work in (self._read, self._probe, self._measure)
        ]
        self._began = time.monotonic()
        for thread in self._threads:
            thread.start()

    def _hear(self, event: Event) -> None:
        if isinstance(event, ChannelOpened | ChannelRestored):
            self._holders[event.name] = event.pid

    def kill_for(self, seconds: float, every_s: float) -> None:
        """Kill a random rank, or the process of the durable channel, every so many seconds."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self._over.wait(every_s):
            if self._dice.randrange(CHANNEL_EVERY) == 0:
                victim = self._holders[PROMPTS]
                self.num_channel_kills += 1
            else:
                group = self._dice.choice([self._makers, self._answerers])
                alive = [each.pid for each in group.health() if each.state == "alive"]
                if not alive:
                    continue
                victim = self._dice.choice(alive)
                self.num_kills += 1
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)

    def end(self) -> None:
        """Close the way of the items from its beginning, and read what is left."""
        self._prompts.close()
        for call in self._calls:
            call.wait(timeout_s=DEADLINE_S)
        self._answers.close()
        self._threads[0].join(DEADLINE_S)
        self._over.set()
        for thread in self._threads[1:]:
            thread.join(DEADLINE_S)

    def _read(self) -> None:
        for life, number, _ in self._answers:
            self.count.add(life, number)

    def _probe(self) -> None:
        messenger = current_session().messenger
        while not self._over.wait(PROBE_EVERY_S):
            done = threading.Event()
            began = time.perf_counter()
            messenger.submit(done.set)
            done.wait(DEADLINE_S)
            self._note("driver", began)
            began = time.perf_counter()
            self._answers.qsize()
            self._note("plain channel", began)

    def _note(self, what: str, began: float) -> None:
        took_ms = (time.perf_counter() - began) * 1000
        self._slowest[what] = max(self._slowest.get(what, 0.0), took_ms)

    def _measure(self) -> None:
        while not self._over.wait(SAMPLE_EVERY_S):
            slowest, self._slowest = self._slowest, {}
            processes = {
                "driver": [os.getpid()],
                "ranks": [each.pid for group in (self._makers, self._answerers) for each in group.health()],
                "channels": list(self._holders.values()),
            }
            logs = Path(self._cluster.log_folder)
            disk = {
                "journal": _mib_in(self.folder / "journal"),
                "logs of the ranks": _mib_in(logs),
                # Of this job alone: its folder for temporary files is a new one.
                "spans": _mib_in(*self.folder.glob("rlinf-*/trace-*")),
            }
            disk["Ray's own and all else"] = _mib_in(self.folder) - sum(disk.values())
            self.samples.append(
                Sample(
                    time.monotonic() - self._began,
                    {name: sum(map(_memory_mib, pids)) for name, pids in processes.items()},
                    {name: sum(map(_num_descriptors, pids)) for name, pids in processes.items()},
                    disk,
                    slowest,
                )
            )


def _memory_mib(pid: int) -> float:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    return 0.0  # it has just ended


def _num_descriptors(pid: int) -> int:
    with contextlib.suppress(OSError):
        return len(os.listdir(f"/proc/{pid}/fd"))
    return 0


def _mib_in(*places: Path) -> float:
    files = [file for place in places for file in ([place] if place.is_file() else place.rglob("*"))]
    total = 0
    for file in files:
        with contextlib.suppress(OSError):
            total += file.lstat().st_blocks * 512
    return total / MIB


def growing(samples: list[Sample]) -> list[str]:
    """What the last quarter of the run needs more of than the second one, each in words."""
    quarter = len(samples) // 4
    early, late = samples[quarter : 2 * quarter], samples[-quarter:]
    found = []
    for kind, spare in SPARE.items():
        for name in sorted({name for sample in samples for name in getattr(sample, kind)}):
            before, after = (
                statistics.median(getattr(each, kind).get(name, 0) for each in part) for part in (early, late)
            )
            if after > before * GROWTH + spare:
                found.append(
                    f"{kind} of {name}: {before:,.1f} in the second quarter, {after:,.1f} in the last"
                )
    return found


def draw(samples: list[Sample], path: Path) -> None:
    """Draw what was measured over time."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    titles = {
        "memory": "memory (proportional), MiB",
        "descriptors": "descriptors",
        "disk": "files, MiB",
        "latency": "slowest answer of an I/O thread in 5 s, ms",
    }
    figure, axes = plt.subplots(2, 2, figsize=(11, 6.5), sharex=True)
    minutes = [each.at_s / 60 for each in samples]
    for axis, (kind, title) in zip(axes.flat, titles.items(), strict=True):
        for name in sorted({name for sample in samples for name in getattr(sample, kind)}):
            axis.plot(
                minutes, [getattr(each, kind).get(name, 0) for each in samples], label=name, linewidth=1
            )
        axis.set_title(title, fontsize=10)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8, frameon=False, loc="upper right", ncols=2)
    axes[0, 0].set_ylim(top=axes[0, 0].get_ylim()[1] * 1.25)
    for axis in axes[1]:
        axis.set_xlabel("minutes")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Run it, and say whether something grows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=15.0, help="a process is killed every so many seconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--samples", type=Path, help="what was measured, as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rl", dir="/tmp") as name:
        # All that the job leaves anywhere lies here. Ray's sockets have long names: a short folder.
        os.environ["TMPDIR"] = tempfile.tempdir = name
        with Cluster(simulate="1x4") as cluster, cluster.trace(f"{name}/run.json.gz", max_bytes=TRACE_BYTES):
            job = Job(cluster, Path(name), options.seed)
            job.kill_for(options.minutes * 60, options.every)
            job.end()
    count, found = job.count, growing(job.samples)
    if options.samples:
        options.samples.write_bytes(msgspec.json.encode([asdict(each) for each in job.samples]))
    if options.picture:
        draw(job.samples, options.picture)
    sys.stderr.write(
        f"{options.minutes:.0f} minutes, {job.num_kills} x a rank and {job.num_channel_kills} x the durable channel's "
        "process killed\n"
        f"{count.num_items:,} answers, {count.num_again:,} of them again, {count.num_missing()} missing\n"
        + "".join(f"it grows: {each}\n" for each in found or [])
    )
    sys.exit(1 if found or count.num_missing() else 0)


if __name__ == "__main__":
    main()
