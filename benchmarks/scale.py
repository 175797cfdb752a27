"""What 10, 100 and 1,000 nodes of eight cost: computed from figures that this program measures here, one by one.

Everything that grows with the cluster is measured on one machine: sizes of messages, time a message, memory a
connection. The rest is counting, and stands in `rows_of`. Only processor time and memory of a rank come from another
program, `benchmarks/starting_ranks.py`, which starts real ranks.

    python benchmarks/scale.py [--link-gb-per-s 10] [--weights-gb 16] [--markdown]
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import resource
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from rlinf.scheduler import ComponentPlacement, Topology
from rlinf.testing import LocalRuntime
from rlinf_scheduler.channel import Channel
from rlinf_scheduler.comm import ClusterSecret, Endpoint
from rlinf_scheduler.comm.replication.pieces import piece_bytes
from rlinf_scheduler.comm.replication.publication import Publication, Reader, Refer
from rlinf_scheduler.events import WorkerStarted
from rlinf_scheduler.host.info import packed_topology
from rlinf_scheduler.planning import Node
from rlinf_scheduler.session import EventBus, Session
from rlinf_scheduler.session.membership import BEAT, BEAT_S, Beat

NODES = (10, 100, 1000)
A_NODE = 8
# Of benchmarks/starting_ranks.py, of the largest number of ranks that it ran here; docs/performance.md has the table.
LAUNCH_CPU_S, LAUNCH_MIB = 0.76, 53
CORES_A_NODE = 64
MESSAGES = 20_000
CLIENTS = 64
# What a piece takes in each hand beside its time on the link: assumed, a question's way and a turn of an I/O thread.
HAND_S = 0.001
# So long nothing is asked of the home: it hears heartbeats.
QUIET_S = 10.0


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured here.

    Attributes:
        lookup_s: a look-up in the directory, asked for by another process; the server's time, about.
        beat_s: a heartbeat that came in right after another one.
        idle_s: what the home does in a second for a process that only says that it is there: heartbeats come one by
            one, and are acknowledged.
        event_s: an event, emitted.
        item_s: a small item, put and taken in flight.
        connection_bytes: memory of one connection at the process that has many.
        descriptors: of the same.
    """

    lookup_s: float
    beat_s: float
    idle_s: float
    event_s: float
    item_s: float
    connection_bytes: float
    descriptors: float


def topology(num_nodes: int) -> Topology:
    """Nodes as they are found: with ids, addresses, names and devices of their own."""
    return Topology(
        tuple(
            Node(
                uuid.uuid4().hex + uuid.uuid4().hex[:24],
                f"10.0.{rank // 250}.{rank % 250}",
                A_NODE,
                "NVIDIA",
                tuple(map(str, range(A_NODE))),
                f"gpu-node-{rank:04d}",
                "NVIDIA H200",
                tuple(f"GPU-{uuid.uuid4()}" for _ in range(A_NODE)),
            )
            for rank in range(num_nodes)
        )
    )


def planning_s(num_nodes: int) -> float:
    """Two components on all devices, planned, and a placement made for each of their processes."""
    nodes = topology(num_nodes)
    config = {"cluster": {"component_placement": {"actor,rollout": "all"}}}
    began = time.perf_counter()
    placement = ComponentPlacement(config, nodes)
    for name in placement.components:
        placement.placements(name)
    return time.perf_counter() - began


def own_bytes() -> int:
    """Memory that this process shares with no other: proc_pid_smaps(5)."""
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="utf-8").splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Private_"))


def num_descriptors() -> int:
    """How many this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def be_many(pipe: Any, secret: ClusterSecret, home: Endpoint) -> None:
    """Many processes of a job, as far as its home can see, in one; then a quick one that asks and tells."""
    sessions = [Session(secret, f"rank:{number}", home=home) for number in range(CLIENTS)]
    for session in sessions:
        session.directory.register(session.name, session.messenger.endpoint)
    pipe.send("connected")
    pipe.recv()
    first = sessions[0]
    pending = [first.directory.lookup_async("rank:7") for _ in range(MESSAGES)]
    for promise in pending:
        promise.result(60)
    pipe.send("looked up")
    pipe.recv()
    for _ in range(MESSAGES):
        first.messenger.notify(home, BEAT, Beat(None))
    first.directory.lookup("rank:7")
    pipe.send("beaten")
    pipe.recv()
    for session in sessions:
        session.close()


@contextmanager
def many(session: Session) -> Iterator[Any]:
    """The other process, and the pipe to it."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=be_many, args=(theirs, session.secret, session.home))
    process.start()
    try:
        yield ours
    finally:
        process.join()


def measure() -> Figures:
    """Everything, here and now."""
    bus = EventBus()
    bus.subscribe(lambda _event: None)
    event = WorkerStarted("actor", 0, 0, 0, 1.0)
    began = time.perf_counter()
    for _ in range(MESSAGES):
        bus.emit(event)
    bus.flush(60)
    event_s = (time.perf_counter() - began) / MESSAGES
    bus.close()
    with LocalRuntime() as runtime:
        before = own_bytes(), num_descriptors()
        with many(runtime) as pipe:
            pipe.recv()
            grown = own_bytes() - before[0], num_descriptors() - before[1]
            began = time.process_time()
            time.sleep(QUIET_S)
            idle_s = (time.process_time() - began) / QUIET_S / CLIENTS
            began = time.process_time()
            pipe.send(None)
            pipe.recv()
            lookup_s = (time.process_time() - began) / MESSAGES
            began = time.process_time()
            pipe.send(None)
            pipe.recv()
            beat_s = (time.process_time() - began) / MESSAGES
            pipe.send(None)
        channel = Channel.create("items")
        began = time.perf_counter()
        for number in range(MESSAGES // 256):
            puts = [channel.put(number, async_op=True) for _ in range(256)]
            gets = [channel.get(async_op=True) for _ in range(256)]
            for handle in (*puts, *gets):
                handle.wait(60)
        item_s = (time.perf_counter() - began) / (MESSAGES // 256 * 256)
    return Figures(lookup_s, beat_s, idle_s, event_s, item_s, grown[0] / CLIENTS, grown[1] / CLIENTS)


def rows_of(figures: Figures, link: float, weights: float) -> Iterator[tuple[str, list[str]]]:
    """Each row of the table: what, and a cell for each number of nodes."""

    def row(what: str, cell: Any) -> tuple[str, list[str]]:
        return what, [cell(num_nodes) for num_nodes in NODES]

    def ranks(num_nodes: int) -> int:
        return A_NODE * num_nodes

    packed = {num_nodes: len(packed_topology(topology(num_nodes))) for num_nodes in NODES}
    yield row("ranks", lambda n: f"{ranks(n):,}")
    yield row("planning two components", lambda n: seconds(planning_s(n)))
    yield row(
        "starting the ranks, on each node",
        lambda _n: seconds(A_NODE * LAUNCH_CPU_S / min(A_NODE, CORES_A_NODE)),
    )
    yield row("memory of the ranks, on each node", lambda _n: size(A_NODE * LAUNCH_MIB * 2**20))
    yield row("topology, sent to each rank", lambda n: size(packed[n]))
    yield row("the launch's bytes, out of the driver", lambda n: size(packed[n] * ranks(n)))
    yield row("and how long that takes", lambda n: seconds(packed[n] * ranks(n) / link))
    yield row("the home's connections", lambda n: f"{ranks(n):,}")
    yield row("its descriptors", lambda n: f"{figures.descriptors * ranks(n):,.0f}")
    yield row("its memory for them", lambda n: size(figures.connection_bytes * ranks(n)))
    yield row(
        "its time for heartbeats, if they come at once", lambda n: percent(figures.beat_s * ranks(n) / BEAT_S)
    )
    yield row("and one by one", lambda n: percent(figures.idle_s * ranks(n)))
    yield row("every rank looks up one other", lambda n: seconds(figures.lookup_s * ranks(n)))
    yield row("events of a launch, emitted", lambda n: seconds(figures.event_s * ranks(n)))
    yield row("connections of a rank that uses 2 channels and 2 peers", lambda _n: "5")
    yield row("items a second of one channel, all ranks together", lambda _n: f"{1 / figures.item_s:,.0f}")
    yield row("of these for each rank", lambda n: f"{1 / figures.item_s / ranks(n):,.1f}")
    yield row(
        "weights, if all nodes had them from the publisher", lambda n: seconds(weights * (n - 1) / link)
    )
    yield row(
        "weights, nodes from each other",
        lambda n: seconds(replication_s(n, weights, link)),
    )


def replication_s(num_nodes: int, size_bytes: float, link: float) -> float:
    """How long it takes until every node has an object, as the publisher decides it; all links are equally quick.

    Args:
        num_nodes: with the publisher's.
        size_bytes: of the object.
        link: what each card carries in each direction, in bytes a second; those that copy from it have equal shares.
    """
    num_pieces = math.ceil(size_bytes / piece_bytes(int(size_bytes)))
    publication = Publication("0", replicated=True, num_pieces=num_pieces)
    sources, copies = dict[str, str](), Counter[str]()
    for number in range(1, num_nodes):
        (given,) = publication.ask(Reader(number, str(number), str(number)))
        if isinstance(given, Refer):
            sources[str(number)] = given.process_id
            copies[given.process_id] += 1
    # When each node has each piece: one after the other, and none before it is there where it comes from.
    numbers, come = np.arange(num_pieces), {"": np.zeros(num_pieces)}
    for node, source in sources.items():
        piece_s = copies[source] * size_bytes / num_pieces / link
        come[node] = (
            np.maximum.accumulate(come[source] + HAND_S - numbers * piece_s) + (numbers + 1) * piece_s
        )
    return float(max(pieces[-1] for pieces in come.values()))


def seconds(value: float) -> str:
    """A duration for people."""
    if value >= 120:
        return f"{value / 60:,.0f} min"
    return f"{value:.1f} s" if value >= 1 else f"{value * 1e3:.1f} ms"


def size(value: float) -> str:
    """Bytes for people."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "KB")):
        if value >= unit:
            return f"{value / unit:.1f} {name}"
    return f"{value:.0f} B"


def percent(value: float) -> str:
    """A share of one core."""
    return f"{value:.1%} of a core"


def main() -> None:
    """Print the table and what it was computed from."""
    parser = argparse.ArgumentParser(description="What 10, 100 and 1,000 nodes cost.")
    parser.add_argument("--link-gb-per-s", type=float, default=10.0, help="what each node's card carries")
    parser.add_argument("--weights-gb", type=float, default=16.0, help="of one version")
    parser.add_argument("--markdown", action="store_true", help="as a table of a page")
    given = parser.parse_args()
    figures = measure()
    rows = list(rows_of(figures, given.link_gb_per_s * 1e9, given.weights_gb * 1e9))
    if given.markdown:
        print("| | " + " | ".join(f"{n:,} nodes" for n in NODES) + " |\n|---|" + "---:|" * len(NODES))
        for what, cells in rows:
            print(f"| {what} | {' | '.join(cells)} |")
    else:
        for what, cells in rows:
            print(f"{what:55}" + "".join(f"{cell:>16}" for cell in cells))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    print(f"\nmeasured here: {msgspec.json.encode(figures).decode()}; descriptors allowed: {soft:,}")


if __name__ == "__main__":
    main()
