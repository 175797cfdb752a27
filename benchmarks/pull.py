"""Weights for another machine: pulled by NIXL, against the library's own connections, in turn in one run.

Between two network namespaces UCX has TCP, as between machines without RDMA. On one host with shared memory off it
copies from process to process. Each round publishes a version and measures until another process has all of it in
tensors of its own.

    python benchmarks/pull.py
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import statistics
import sys
import time
from multiprocessing.connection import Connection

import numpy as np

from measure import MIB
from rlinf.testing.machines import Machine, MachineStar, MachinesUnavailable
from rlinf_scheduler.comm import ClusterSecret, Endpoint
from rlinf_scheduler.session import Session, set_current
from rlinf_scheduler.weights import open_weights

CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 1 << 18
DEADLINE_S = 120.0
SIZES = (64 * MIB, 256 * MIB)
ROUNDS = 5
# what RLINF_PULL says, and whether the library's own connections have TLS
WAYS = {"tcp+tls": ("off", True), "tcp": ("off", False), "nixl": ("nixl", True)}


def _state(size_bytes: int, value: int) -> dict[str, np.ndarray]:
    return {f"layer.{index}": np.full(size_bytes // 16, value, np.uint8) for index in range(16)}


def _join(
    machine: Machine | None,
    secret: ClusterSecret,
    name: str,
    home: Endpoint | None,
    way: str,
    transports: str,
) -> Session:
    if machine is not None:
        machine.enter()
        _see_its_interfaces()
    os.environ["UCX_TLS"] = transports
    os.environ["RLINF_PULL"], encryption = WAYS[way]
    host = "127.0.0.1" if machine is None else machine.address
    session = Session(
        secret, name, home=home, host=host, tcp=True, encryption=encryption, machine_id=f"machine of {name}"
    )
    set_current(session)
    return session


def _see_its_interfaces() -> None:
    """Mount /sys anew, seen by this process alone: UCX finds there which interfaces there are."""
    libc = ctypes.CDLL(None, use_errno=True)
    steps = (
        libc.unshare(CLONE_NEWNS),
        libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None),
        libc.mount(b"sysfs", b"/sys", b"sysfs", 0, None),
    )
    if any(steps):
        raise OSError(ctypes.get_errno(), "/sys cannot be mounted anew")


def publish(pipe: Connection, *place: object) -> None:
    """Publish a version of each size that comes through the pipe."""
    session = _join(*place)  # type: ignore[arg-type]
    weights = session.service(open_weights)
    pipe.send(session.messenger.endpoint)
    for version, size_bytes in enumerate(iter(pipe.recv, None), 1):
        weights.publish(f"policy-{size_bytes}", _state(size_bytes, version % 251), version)
        pipe.send((version, time.process_time()))


def fetch(pipe: Connection, *place: object) -> None:
    """Fetch each version that comes through the pipe, and send how long it took."""
    session = _join(*place)  # type: ignore[arg-type]
    weights = session.service(open_weights)
    intos = {size: _state(size, 0) for size in SIZES}
    pipe.send("ready")
    for size_bytes, version in iter(pipe.recv, None):
        into, began, cpu = intos[size_bytes], time.perf_counter(), time.process_time()
        weights.fetch(f"policy-{size_bytes}", into, version=version, timeout_s=DEADLINE_S).wait()
        took_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
        if any(array.min() != version % 251 or array.max() != version % 251 for array in into.values()):
            sys.exit("another version has arrived")
        pulls = session.messenger.pulls
        pipe.send((took_s, cpu_s, "" if pulls is None else pulls.stats().why))


class Pair:
    """A publisher and a reader of one way."""

    def __init__(self, stack: contextlib.ExitStack, way: str, places: tuple, transports: str) -> None:
        secret = ClusterSecret.generate()
        self.publisher = self._start(stack, publish, (places[0], secret, "actor:0", None, way, transports))
        home = self.publisher.recv()
        self.reader = self._start(stack, fetch, (places[1], secret, "rollout:0", home, way, transports))
        self.reader.recv()

    def _start(self, stack: contextlib.ExitStack, function: object, place: tuple) -> Connection:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=function, args=(theirs, *place), daemon=True)
        process.start()
        stack.callback(process.kill)
        return ours

    def round(self, size_bytes: int) -> tuple[float, float, str]:
        """Publish and fetch a version: seconds, processor seconds of the reader, why it was not pulled."""
        self.publisher.send(size_bytes)
        version, _ = self.publisher.recv()
        self.reader.send((size_bytes, version))
        return self.reader.recv()


def compare(title: str, places: tuple, transports: str) -> None:
    """Print one table."""
    print(f"\n{title}, UCX_TLS={transports}")
    with contextlib.ExitStack() as stack:
        pairs = {way: Pair(stack, way, places, transports) for way in WAYS}
        for size_bytes in SIZES:
            took: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
            for number in range(ROUNDS + 2):
                for way, pair in pairs.items():
                    seconds, cpu_s, why = pair.round(size_bytes)
                    if why:
                        sys.exit(f"{way}: {why}")
                    if number > 1:
                        took[way].append((seconds, cpu_s))
            for way, rounds in took.items():
                median = statistics.median(seconds for seconds, _ in rounds)
                best = min(seconds for seconds, _ in rounds)
                ratio = median / statistics.median(seconds for seconds, _ in took["tcp+tls"])
                cpu_s = statistics.median(cpu for _, cpu in rounds)
                print(
                    f"  {size_bytes // MIB:4d} MiB  {way:8s} median {median * 1e3:7.1f} ms  best {best * 1e3:7.1f}"
                    f"  {size_bytes / median / 1e9:5.2f} GB/s  reader's processor {cpu_s * 1e3:6.1f} ms"
                    f"  of tcp+tls {ratio:4.2f}"
                )


def main() -> None:
    """Compare between two machines, and on one."""
    try:
        with MachineStar(2) as star:
            compare("two network namespaces", star.machines, "tcp")
    except MachinesUnavailable as error:
        print(f"no network namespaces here: {error}")
    compare("one host, shared memory off", (None, None), "all")


if __name__ == "__main__":
    main()
