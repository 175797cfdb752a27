"""What a channel costs that survives its process: its puts are written down before they return.

    python benchmarks/durable.py [--quick]

The channel is held by a process of its own, all three kinds in turn in one run. Then what its journal being written
whole costs its clients: for how long its I/O thread does nothing else, and how late that is for others.
"""

from __future__ import annotations

import multiprocessing
import statistics
import sys
import tempfile
import threading
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


class Ticks:
    """How late an I/O thread is that has something to do every millisecond.

    Args:
        messenger: whose thread it is.
    """

    def __init__(self, messenger: Any) -> None:
        self._messenger = messenger
        self._last = time.perf_counter()
        self._most = 0.0
        messenger.submit(self._tick)

    def _tick(self) -> None:
        now = time.perf_counter()
        self._most, self._last = max(self._most, now - self._last), now
        self._messenger.call_later(0.001, self._tick)

    def longest(self) -> float:
        """The longest time between two since this was asked last, in seconds."""
        most, self._most = self._most, 0.0
        return most


def written_whole(count: int, folder: str) -> tuple[float, float, float]:
    """Write the journal of a channel with so many items whole.

    Returns:
        For how long its I/O thread does nothing else, and how late others are then and before, in seconds.
    """
    with LocalRuntime(own_name="whole") as runtime:
        channel = Channel.create("whole", durable=folder, survives="process")
        for begin in range(0, count, 1000):
            for handle in [channel.put(item, async_op=True) for item in range(begin, begin + 1000)]:
                handle.wait()
        held = runtime._servers._servers["whole"]
        ticks, over, kept = Ticks(runtime.messenger), threading.Event(), []
        finish = held._journal.finish

        def note_end(*args: Any) -> None:
            finish(*args)
            over.set()

        def begin_it() -> None:
            began = time.perf_counter()
            held.write_whole()
            kept.append(time.perf_counter() - began)

        held._journal.finish = note_end
        time.sleep(0.5)
        before = ticks.longest()
        runtime.messenger.submit(begin_it)
        over.wait(60)
        return kept[0], ticks.longest(), before


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
    for count in (10_000, int(share * 1_000_000) // 10):
        with tempfile.TemporaryDirectory(dir=".") as folder:
            kept, late, before = written_whole(count, folder)
        print(f"journal of {count:,} items, written whole")
        print(
            f"  its I/O thread does nothing else for {1e3 * kept:.1f} ms; others are at most {1e3 * late:.1f} ms late"
        )
        print(f"  ({1e3 * before:.1f} ms before)")


if __name__ == "__main__":
    main()
