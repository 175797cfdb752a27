"""What a channel costs that survives its process: its puts are written down before they return.

    python benchmarks/durable.py [--quick]

The channel is held by a process of its own, all three kinds in turn in one run.
"""

from __future__ import annotations

import multiprocessing
import statistics
import sys
import tempfile
import time
from typing import Any

from rlinf.scheduler import Channel
from rlinf.testing import LocalRuntime

KINDS: dict[str, dict[str, Any]] = {
    "in memory": {},
    'survives="process"': {"survives": "process"},
    'survives="machine"': {"survives": "machine"},
}
ROUNDS = 5


def hold(address: Any, pipe: Any, folder: str) -> None:
    """Hold one channel of each kind."""
    with LocalRuntime(address, own_name="holder"):
        for number, options in enumerate(KINDS.values()):
            durable = f"{folder}/{number}" if options else None
            Channel.create(f"channel-{number}", durable=durable, **options)
        pipe.send("ready")
        pipe.recv()


def one_by_one(channel: Channel, item: Any, count: int) -> float:
    """Seconds that a put and its acceptance take."""
    started = time.perf_counter()
    for _ in range(count):
        channel.put(item)
    return (time.perf_counter() - started) / count


def many_at_once(channel: Channel, item: Any, count: int) -> float:
    """The same of puts that do not wait for each other."""
    started = time.perf_counter()
    for handle in [channel.put(item, async_op=True) for _ in range(count)]:
        handle.wait()
    return (time.perf_counter() - started) / count


def back_and_forth(channel: Channel, item: Any, count: int) -> float:
    """A put and a get."""
    started = time.perf_counter()
    for _ in range(count):
        channel.put(item)
        channel.get()
    return (time.perf_counter() - started) / count


def main() -> None:
    """Print microseconds an item, and how many times those of a channel in memory that is."""
    share = 0.1 if "--quick" in sys.argv else 1.0
    workloads = [
        ("put, 100 bytes, one after the other", one_by_one, bytes(100), 300),
        ("put, 100 bytes, 1,000 at once", many_at_once, bytes(100), 1_000),
        ("put and get, 100 bytes", back_and_forth, bytes(100), 200),
        ("put, 1 MiB, one after the other", one_by_one, bytes(1 << 20), 20),
    ]
    context = multiprocessing.get_context("spawn")
    with LocalRuntime() as runtime, tempfile.TemporaryDirectory(dir=".") as folder:
        ours, theirs = context.Pipe()
        context.Process(target=hold, args=(runtime.address, theirs, folder), daemon=True).start()
        ours.recv()
        channels = [Channel.connect(f"channel-{number}") for number in range(len(KINDS))]
        for name, work, item, count in workloads:
            times: list[list[float]] = [[] for _ in channels]
            for _ in range(ROUNDS):
                for channel, its_times in zip(channels, times, strict=True):
                    its_times.append(work(channel, item, max(3, int(share * count))))
                    channel.drain()
            medians = [statistics.median(its_times) for its_times in times]
            print(name)
            for kind, median in zip(KINDS, medians, strict=True):
                print(f"  {kind:20} {1e6 * median:8.0f} us  {median / medians[0]:6.1f} x")


if __name__ == "__main__":
    main()
