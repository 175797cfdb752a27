"""How much memory a pipeline through a channel holds while it runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from bare import held_bytes
from channel_peers import Peer, Workload
from measure import KIB, MIB, Options, size_text
from rlinf.scheduler import Channel, Cluster, NodePlacementStrategy
from rlinf_scheduler.events import ChannelOpened, Event, WorkerStarted

TIMEOUT_S = 120.0
MAXSIZE = 8
NUM_ITEMS, ITEM_BYTES = 10_000, MIB
# After so many, each process has as much to tell of its last waits as it ever keeps: those take a MiB in each.
NUM_FIRST = 5_000
# What the queue may hold, what the producer has and puts, what the consumer has and gets.
BOUND_ITEMS = MAXSIZE + 2 + 2
SAMPLE_EVERY_S = 0.05


@contextmanager
def started_pids(cluster: Cluster) -> Iterator[Callable[[str, int], int]]:
    """Hear of the processes that are started inside: `wait_for(group, rank)` gives a process's number."""
    pids: dict[tuple[str, int], int] = {}
    heard = threading.Condition()

    def hear(event: Event) -> None:
        started = {}
        if isinstance(event, WorkerStarted):
            started = {(event.group, event.rank): event.pid}
        elif isinstance(event, ChannelOpened):
            started = {(event.name, 0): event.pid}
        with heard:
            pids.update(started)
            heard.notify_all()

    def wait_for(group: str, rank: int) -> int:
        with heard:
            if not heard.wait_for(lambda: (group, rank) in pids, TIMEOUT_S):
                raise RuntimeError(f"nothing was heard of the start of {group}:{rank}")
            return pids[group, rank]

    cluster.subscribe(hear)
    yield wait_for


def measure(cluster: Cluster, options: Options) -> float | None:
    """Print the most memory that a pipeline of large items held; returns it in items."""
    if not options.wants("memory"):
        return None
    count = NUM_ITEMS if options.rounds > 1 else NUM_ITEMS // 20
    workload = Workload("tensor", ITEM_BYTES)
    with started_pids(cluster) as pid_of:
        # Processes of their own, whose memory has grown for nothing else.
        strategy = NodePlacementStrategy([0, 0])
        peers = Peer.create_group().launch(cluster, placement_strategy=strategy, name="pipeline")
        channel = Channel.create("memory", maxsize=MAXSIZE, own_process=True)
        pids = [pid_of("pipeline", 0), pid_of("pipeline", 1), pid_of("memory", 0)]
    producer, consumer = peers.execute_on(0), peers.execute_on(1)
    _load_code(producer, consumer, NUM_FIRST if options.rounds > 1 else NUM_FIRST // 20)
    before = held_bytes(pids)
    done = consumer.consume_slowly("memory", count)
    producer.produce("memory", workload, count)
    held, depths = _watch(pids, channel, done.done)
    done.wait(TIMEOUT_S)
    peers.terminate()
    channel.delete()
    items = (max(held) - before) / ITEM_BYTES
    full = sum(depth == MAXSIZE for depth in depths) / len(depths)
    print(
        f"\nmemory: {count:,} items of {size_text(ITEM_BYTES)}, maxsize {MAXSIZE}, a slower consumer:"
        f"\n    producer, channel and consumer together held at most {items:.1f} items"
        f" ({len(held)} samples; the queue was full in {full:.0%} of them)"
    )
    return items


def _load_code(producer: Any, consumer: Any, count: int) -> None:
    """Have both do, with items of 1 KiB, what they will do, so that only items add to their memory."""
    small = Workload("tensor", KIB)
    got = consumer.consume_slowly("memory", count)
    producer.produce("memory", small, count).wait(TIMEOUT_S)
    got.wait(TIMEOUT_S)
    producer.item("tensor", ITEM_BYTES).wait(TIMEOUT_S)


def _watch(pids: Sequence[int], channel: Channel, ended: Callable[[], bool]) -> tuple[list[int], list[int]]:
    """Bytes held and items queued, again and again until it has ended."""
    held, depths = [], []
    while not ended():
        held.append(held_bytes(pids))
        depths.append(channel.qsize())
        time.sleep(SAMPLE_EVERY_S)
    return held, depths
