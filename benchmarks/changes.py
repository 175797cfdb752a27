"""Versions of weights of which some values have changed, to other machines and on one: with deltas and as a whole.

    python benchmarks/changes.py [--mib 256] [--link-mb-per-s 25 125 0] [--machines 1] [--rounds 5] [--percent 0.1 10]

Root, or the right to make namespaces, is needed. Each machine is one process in a namespace of its own, with links of
one rate between them; 0 is no limit. Both sides run in turn: a version that goes as a whole (`delta=False`), and one
for which what is quicker is chosen (`delta="auto"`). A time is from before the publication until the last machine has
the version in its own arrays; publisher and readers are on one machine for the last lines.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
import zlib
from contextlib import ExitStack
from multiprocessing import forkserver
from statistics import median
from typing import Any

import numpy as np

from measure import Table, Target, duration_text, print_targets, ratio_text
from rlinf.testing.machines import Machine, MachineStar
from rlinf_scheduler.comm import ClusterSecret, DirectoryServer, Endpoint, Messenger
from rlinf_scheduler.weights import Weights
from rlinf_scheduler.weights.index_service import IndexService
from spreading import TIMEOUT_S, all_said

NUM_TENSORS = 32
# How much of a whole version's time one may take of which so many percent have changed, where links are what takes
# it; and nowhere more than `MOST`.
MOST = 1.1
AIMS = {0.1: 0.15, 1.0: 0.3, 10.0: 0.7, 50.0: 1.0, 100.0: MOST}
WHOLE, DELTA = "as a whole", "delta"
Model = dict[str, np.ndarray[Any, np.dtype[np.uint16]]]


def model_of(size_bytes: int) -> Model:
    """Tensors of 16-bit values, as bfloat16 has them."""
    draw = np.random.default_rng(0)
    size = size_bytes // NUM_TENSORS // 2
    return {f"layer.{number}": draw.integers(0, 1 << 16, size, np.uint16) for number in range(NUM_TENSORS)}


def change(model: Model, percent: float, seed: int) -> None:
    """Change so many of the values, anywhere."""
    draw = np.random.default_rng(seed)
    for values in model.values():
        values[draw.random(len(values), np.float32) < percent / 100] += 1


def checksum(model: Model) -> int:
    """Of all values."""
    return sum(zlib.crc32(values.data) for values in model.values())


def read(
    pipe: Any, machine: Machine | None, secret: ClusterSecret, home: Endpoint, number: int, size_bytes: int
) -> None:
    """Fetch each version that is announced."""
    if machine is None:
        messenger = Messenger(secret, name=f"rollout:{number}")
    else:
        machine.enter()
        messenger = Messenger(secret, name=f"rollout:{number}", host=machine.address, tcp=True)
    weights, into = Weights(messenger, home), model_of(size_bytes)
    pipe.send(None)
    while (version := pipe.recv()) is not None:
        handle = weights.fetch("policy", into, min_version=version, timeout_s=TIMEOUT_S)
        pipe.send(None)
        handle.wait()
        ended = time.monotonic()
        pipe.send((ended, checksum(into)))


class Bench:
    """A publisher here, and readers, each on a machine of its own or all on this one."""

    def __init__(self, stack: ExitStack, num_readers: int, size_bytes: int, link: int | None) -> None:
        context = multiprocessing.get_context("forkserver")
        forkserver.ensure_running()
        secret, machines, here = ClusterSecret.generate(), [None] * num_readers, {}
        if link is not None:
            star = stack.enter_context(MachineStar(num_readers + 1, link or None))
            stack.enter_context(star.machines[0].entered())
            machines, here = star.machines[1:], {"host": star.machines[0].address, "tcp": True}
        messenger = Messenger(secret, name="actor:0", **here)
        stack.callback(messenger.close)
        DirectoryServer(messenger)
        IndexService(messenger)
        self._weights = Weights(messenger, messenger.endpoint)
        self._model, self._version, self._pipes = model_of(size_bytes), 0, []
        for number, machine in enumerate(machines):
            ours, theirs = context.Pipe()
            args = (theirs, machine, secret, messenger.endpoint, number, size_bytes)
            process = context.Process(target=read, args=args, daemon=True)
            process.start()
            stack.callback(process.join, TIMEOUT_S)
            stack.callback(ours.send, None)
            self._pipes.append(ours)
        all_said(self._pipes)

    def step(self, percent: float, *, side: str) -> float:
        """Seconds until all readers have a version of which so much has changed."""
        self._version += 1
        change(self._model, percent, self._version)
        for pipe in self._pipes:
            pipe.send(self._version)
        all_said(self._pipes)
        time.sleep(0.1)  # until the last question is there
        began = time.monotonic()
        self._weights.publish("policy", self._model, self._version, delta=False if side == WHOLE else "auto")
        ends = all_said(self._pipes)
        expected = checksum(self._model)
        if any(found != expected for _, found in ends):
            raise SystemExit(f"version {self._version} arrived as something else")
        return max(ended for ended, _ in ends) - began


def measure(title: str, bench: Bench, percents: list[float], rounds: int) -> list[Target]:
    """Print the times of each share of changed values."""
    for side in (WHOLE, WHOLE, DELTA, DELTA):  # all memory that is used has been used before
        bench.step(0.1, side=side)
    table = Table(title, (WHOLE, DELTA, "ratio", "least", "most"))
    targets = []
    for percent in percents:
        took_s: dict[str, list[float]] = {WHOLE: [], DELTA: []}
        for _ in range(rounds):
            for side, times in took_s.items():
                times.append(bench.step(percent, side=side))
        whole, delta = (median(each) for each in took_s.values())
        spread = duration_text(min(took_s[DELTA])), duration_text(max(took_s[DELTA]))
        table.row(
            f"{percent:g} % changed",
            duration_text(whole),
            duration_text(delta),
            ratio_text(delta / whole),
            *spread,
        )
        aim = AIMS.get(percent, MOST) if "MB/s" in title else MOST
        targets.append(Target(f"{title}, {percent:g} %", aim, delta / whole, "x", at_least=False))
    return targets


def main() -> None:
    """Print a table for each rate of links, and one for a single machine."""
    parser = argparse.ArgumentParser(description="What has changed in weights.")
    parser.add_argument("--mib", type=int, default=256, help="of a version")
    parser.add_argument("--link-mb-per-s", type=int, nargs="*", default=[25, 125, 0], help="0: no limit")
    parser.add_argument("--machines", type=int, default=1, help="that read")
    parser.add_argument("--percent", type=float, nargs="+", default=[*AIMS])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-machine", action="store_true", help="not on one machine")
    given = parser.parse_args()
    sides = {
        f"{given.mib} MiB, {f'{rate} MB/s' if rate else 'links without limit'}": rate * 1_000_000
        for rate in given.link_mb_per_s
    }
    targets = []
    for title, link in [
        *sides.items(),
        *([] if given.no_machine else [(f"{given.mib} MiB, one machine", None)]),
    ]:
        with ExitStack() as stack:
            bench = Bench(stack, given.machines, given.mib << 20, link)
            if link is None:  # where nothing is compared, it is the same whatever has changed
                targets += measure(title, bench, [1.0], given.rounds * 5)
            else:
                targets += measure(title, bench, given.percent, given.rounds)
    print_targets(targets)


if __name__ == "__main__":
    main()
