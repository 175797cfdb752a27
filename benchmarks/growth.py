"""What a put and a get cost as a channel grows: items it holds, blocks of shared memory in use, queues, clients.

Every axis is measured in turn, from small to large and again, so that what the machine does besides hits all points. A
picture is written with `--picture FILE`.
"""

from __future__ import annotations

import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from measure import KIB, Table, duration_text, ratio_text, stopwatch
from rlinf.testing import LocalRuntime
from rlinf.testing.local import LocalAddress
from rlinf_scheduler.channel import Channel, control_wire
from rlinf_scheduler.channel.connections import ChannelConnections
from rlinf_scheduler.session import Session

ROUNDS = 3
PROBES = 150
ARENA_MIB = "12288"


@dataclass(frozen=True, slots=True)
class Axis:
    """What grows.

    Attributes:
        name: in words.
        points: how large it is made, ascending.
        item: what is put and got at every point.
        fill: makes it that large and gives what must be kept meanwhile.
    """

    name: str
    points: tuple[int, ...]
    item: Any
    fill: Callable[[Channel, int, LocalAddress], Any]


def _hold_items(channel: Channel, size: int, _address: LocalAddress) -> None:
    handles = [channel.put(b"x" * KIB, queue_name="held", async_op=True) for _ in range(size)]
    for handle in handles:
        handle.wait()


def _hold_blocks(channel: Channel, size: int, _address: LocalAddress) -> None:
    # Pages that nobody writes take no memory: most of each item stays untouched.
    item = np.zeros(64 * KIB, np.uint8)
    for _ in range(size):
        channel.put(item, queue_name="held")


def _hold_queues(channel: Channel, size: int, _address: LocalAddress) -> None:
    handles = [channel.put(b"x", queue_name=("held", number), async_op=True) for number in range(size)]
    for handle in handles:
        handle.wait()


def _join(channel: Channel, size: int, address: LocalAddress) -> list[Session]:
    """Further processes, as far as the channel's server can tell, that have used it and do nothing now."""
    home = address.directory
    sessions = [Session(address.secret, f"client:{number}", home=home) for number in range(size)]
    for session in sessions:
        session.service(ChannelConnections).to(channel._ref).ask(
            control_wire.Query("held"), control_wire.QueueState
        )
    return sessions


AXES = (
    Axis("items that the channel holds", (10, 100, 1_000, 10_000, 100_000), b"x" * KIB, _hold_items),
    Axis("blocks of 64 KiB in use", (10, 100, 1_000, 10_000), np.zeros(64 * KIB, np.uint8), _hold_blocks),
    Axis("queues", (10, 100, 1_000, 10_000), b"x" * KIB, _hold_queues),
    Axis("clients", (1, 10, 100, 250), b"x" * KIB, _join),
)


def hold(address: LocalAddress, pipe: Any) -> None:
    """Hold channels in a process of their own, as on a cluster, until the pipe ends."""
    with LocalRuntime(address, own_name="channels"):
        while (name := pipe.recv()) is not None:
            Channel.create(name)
            pipe.send(name)


@contextmanager
def a_cluster() -> Iterator[tuple[LocalAddress, Callable[[str], Channel]]]:
    """This process, and one that makes and holds channels."""
    context = multiprocessing.get_context("spawn")
    with LocalRuntime() as runtime:
        ours, theirs = context.Pipe()
        process = context.Process(target=hold, args=(runtime.address, theirs))
        process.start()

        def make(name: str) -> Channel:
            ours.send(name)
            return Channel.connect(ours.recv())

        try:
            yield runtime.address, make
        finally:
            ours.send(None)
            process.join()


def probe(channel: Channel, item: Any) -> tuple[float, float]:
    """Median seconds of a put and of a get, one after the other."""
    puts, gets = [], []
    for _ in range(PROBES):
        began = time.perf_counter()
        channel.put(item)
        put = time.perf_counter()
        channel.get()
        puts.append(put - began)
        gets.append(time.perf_counter() - put)
    return statistics.median(puts), statistics.median(gets)


def measure(axis: Axis) -> list[tuple[int, float, float]]:
    """For each point its size, and seconds of a put and of a get: medians, in the round in which they were least.

    Where the kernel runs the processes matters more than anything that is measured here, and changes between rounds.
    """
    took: dict[int, list[tuple[float, float]]] = {point: [] for point in axis.points}
    for round_ in range(ROUNDS):
        with a_cluster() as (address, make):
            channel, held, kept = make(f"growth-{round_}"), 0, []
            probe(channel, axis.item)
            for point in axis.points:
                kept.append(axis.fill(channel, point - held, address))
                held = point
                took[point].append(probe(channel, axis.item))
    return [
        (point, min(put for put, _ in pairs), min(get for _, get in pairs)) for point, pairs in took.items()
    ]


def draw(curves: dict[str, list[tuple[int, float, float]]], path: str) -> None:
    """Write the curves as a picture."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, plots = plt.subplots(1, len(curves), figsize=(4 * len(curves), 3.2), sharey=True)
    for plot, (name, points) in zip(plots, curves.items(), strict=True):
        sizes = [size for size, _, _ in points]
        plot.plot(sizes, [put * 1e6 for _, put, _ in points], marker="o", label="put")
        plot.plot(sizes, [get * 1e6 for _, _, get in points], marker="s", label="get")
        plot.set_xscale("log")
        plot.set_xlabel(name)
        plot.grid(alpha=0.3)
    plots[0].set_ylim(0, 1.1e6 * max(max(put, get) for points in curves.values() for _, put, get in points))
    plots[0].set_ylabel("µs")
    plots[0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measure every axis, and print what the largest point costs against the smallest."""
    curves = {}
    for axis in AXES:
        table = Table(axis.name, ("put", "get", "put, times", "get, times"))
        curves[axis.name] = points = measure(axis)
        _, first_put, first_get = points[0]
        for size, put, get in points:
            ratios = ratio_text(put / first_put), ratio_text(get / first_get)
            table.row(f"{size:,}", duration_text(put), duration_text(get), *ratios)
        print()
    if "--picture" in sys.argv:
        draw(curves, sys.argv[sys.argv.index("--picture") + 1])


if __name__ == "__main__":
    import os

    os.environ["RLINF_ARENA_MIB"] = ARENA_MIB
    with stopwatch("growth.py"):
        main()
