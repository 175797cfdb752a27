"""How long one version of weights takes to every machine: network namespaces, with links of one rate between them.

    python benchmarks/spreading.py [--machines 4 8] [--mib 64] [--link-mb-per-s 125] [--rounds 5] [--plain]

Root, or the right to make namespaces, is needed. Each machine is one process. All have asked for the next version when
it is published; what is printed is the time until the last has it in its own arrays, and that of one copy over a link.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from multiprocessing import forkserver
from typing import Any

import numpy as np

from rlinf.testing.machines import Machine, MachineStar
from rlinf_scheduler.comm import ClusterSecret, DirectoryServer, Endpoint, Messenger
from rlinf_scheduler.weights import Weights
from rlinf_scheduler.weights.index_service import IndexService

TIMEOUT_S = 120.0
NUM_TENSORS = 32


def state_of(number: int, size_bytes: int) -> dict[str, Any]:
    """Arrays of so many bytes together, each of which is a number."""
    return {
        f"layer.{index}": np.full(size_bytes // NUM_TENSORS // 4, number, np.float32)
        for index in range(NUM_TENSORS)
    }


def read(
    pipe: Any,
    machine: Machine,
    secret: ClusterSecret,
    directory: Endpoint,
    number: int,
    size_bytes: int,
    encrypts: bool,
) -> None:
    """Fetch each version that is announced, on a machine of its own."""
    machine.enter()
    messenger = Messenger(
        secret, name=f"rollout:{number}", host=machine.address, tcp=True, encryption=encrypts
    )
    weights, into = Weights(messenger, directory), state_of(-1, size_bytes)
    pipe.send(None)
    while (version := pipe.recv()) is not None:
        handle = weights.fetch("policy", into, min_version=version, timeout_s=TIMEOUT_S)
        pipe.send(None)
        handle.wait()
        ended = time.monotonic()
        wrong = {float(value) for array in into.values() for value in (array.min(), array.max())} - {version}
        pipe.send((ended, wrong))


def measure(num_machines: int, size_bytes: int, link: int | None, rounds: int, encrypts: bool) -> list[float]:
    """Seconds until all machines have a version, for each round after the first."""
    context = multiprocessing.get_context("forkserver")
    forkserver.ensure_running()
    with MachineStar(num_machines + 1, link) as star, star.machines[0].entered():
        secret = ClusterSecret.generate()
        address = star.machines[0].address
        messenger = Messenger(secret, name="actor:0", host=address, tcp=True, encryption=encrypts)
        DirectoryServer(messenger)
        IndexService(messenger)
        weights = Weights(messenger, messenger.endpoint)
        pipes, processes = [], []
        for number, machine in enumerate(star.machines[1:]):
            ours, theirs = context.Pipe()
            args = (theirs, machine, secret, messenger.endpoint, number, size_bytes, encrypts)
            process = context.Process(target=read, args=args, daemon=True)
            process.start()
            pipes.append(ours)
            processes.append(process)
        all_said(pipes)
        weights.publish("policy", state_of(0, size_bytes), 0)
        took_s = []
        for version in range(1, rounds + 2):
            state = state_of(version, size_bytes)
            for pipe in pipes:
                pipe.send(version)
            all_said(pipes)
            time.sleep(0.3)  # until the last question is there
            began = time.monotonic()
            weights.publish("policy", state, version)
            ends = all_said(pipes)
            if any(wrong for _, wrong in ends):
                raise SystemExit(f"version {version} arrived as {ends}")
            took_s.append(max(ended for ended, _ in ends) - began)
        for pipe, process in zip(pipes, processes, strict=True):
            pipe.send(None)
            process.join(TIMEOUT_S)
        messenger.close()
        return took_s[1:]


def all_said(pipes: list[Any]) -> list[Any]:
    """What each process says next.

    Raises:
        SystemExit: one says nothing.
    """
    said = []
    for pipe in pipes:
        if not pipe.poll(TIMEOUT_S):
            raise SystemExit("a reader does not answer")
        said.append(pipe.recv())
    return said


def main() -> None:
    """Print a line for each number of machines."""
    parser = argparse.ArgumentParser(description="One version, to every machine.")
    parser.add_argument("--machines", type=int, nargs="+", default=[1, 4, 8], help="that read")
    parser.add_argument("--mib", type=int, default=64, help="of a version")
    parser.add_argument("--link-mb-per-s", type=int, default=125, help="of each machine; 0: no limit")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--plain", action="store_true", help="not encrypted")
    given = parser.parse_args()
    link = given.link_mb_per_s * 1_000_000
    one_copy = f"{(given.mib << 20) / link:.2f} s for one copy over a link" if link else "links without limit"
    print(f"{given.mib} MiB, {one_copy}")
    for num_machines in given.machines:
        took_s = measure(num_machines, given.mib << 20, link or None, given.rounds, not given.plain)
        spread = ", ".join(f"{each:.2f}" for each in sorted(took_s))
        print(f"{num_machines} machines: {statistics.median(took_s):.2f} s (median of {spread})", flush=True)


if __name__ == "__main__":
    main()
