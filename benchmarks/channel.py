"""Items through a channel against `ray.util.queue`, between two worker processes of one simulated node.

Producer and consumer are workers on Ray; the queue's users are plain Ray actors. Both sides run in turn in one run;
what counts is the ratio. Figures are medians of items a second, from the first put to the last get.

    python benchmarks/channel.py
"""

from __future__ import annotations

import statistics
import time

import numpy as np
import ray
from ray.util.queue import Queue

from rlinf.scheduler import Channel, Cluster, PackedPlacementStrategy, Worker

ROUNDS = 3
WINDOW = 256


def payload(kind: str) -> object:
    """The item of a workload: bytes of a size, or an array of it."""
    name, size = kind.split()
    return b"x" * int(size) if name == "bytes" else np.zeros(int(size), np.uint8)


class Peer(Worker):
    """Puts or gets."""

    def produce(self, kind: str, count: int, window: int) -> float:
        """Put `count` items, up to `window` at a time under way; returns when it began."""
        channel, item = self.connect_channel("bench"), payload(kind)
        began = time.time()
        pending = []
        for _ in range(count):
            if window == 1:
                channel.put(item)
                continue
            pending.append(channel.put(item, async_op=True))
            if len(pending) >= window:
                pending.pop(0).wait()
        for handle in pending:
            handle.wait()
        return began

    def consume(self, count: int, window: int) -> float:
        """Get `count` items; returns when the last one was there."""
        channel = self.connect_channel("bench")
        handles = [channel.get(async_op=True) for _ in range(min(window, count))] if window > 1 else []
        left = count - len(handles)
        for _ in range(count):
            if window == 1:
                channel.get()
                continue
            handles.pop(0).wait()
            if left:
                handles.append(channel.get(async_op=True))
                left -= 1
        return time.time()


@ray.remote(num_cpus=0)
class PlainPeer:
    """The same over `ray.util.queue`, which has no asynchronous handles outside of asyncio."""

    def produce(self, queue: Queue, kind: str, count: int) -> float:
        """Put `count` items; returns when it began."""
        item = payload(kind)
        began = time.time()
        for _ in range(count):
            queue.put(item)
        return began

    def consume(self, queue: Queue, count: int) -> float:
        """Get `count` items; returns when the last one was there."""
        for _ in range(count):
            queue.get()
        return time.time()


def main() -> None:
    """Print one line a workload."""
    with Cluster(simulate="1x2") as cluster:
        peers = Peer.create_group().launch(cluster, placement_strategy=PackedPlacementStrategy(0, 1))
        producer, consumer = peers.execute_on(0), peers.execute_on(1)
        Channel.create("bench", maxsize=1024)
        queue = Queue(maxsize=1024, actor_options={"num_cpus": 0})
        plain_producer, plain_consumer = PlainPeer.remote(), PlainPeer.remote()

        def ours(kind: str, count: int, window: int) -> float:
            ended = consumer.consume(count, window)
            (began,) = producer.produce(kind, count, window).wait(120)
            return count / (ended.wait(120)[0] - began)

        def theirs(kind: str, count: int) -> float:
            ended = plain_consumer.consume.remote(queue, count)
            began = ray.get(plain_producer.produce.remote(queue, kind, count))
            return count / (ray.get(ended) - began)

        print(f"{'items a second':28}{'channel':>12}{'Ray queue':>12}{'ratio':>10}")
        for kind, count, window, their_count in (
            ("bytes 16", 3000, 1, 300),
            ("bytes 1024", 3000, 1, 300),
            ("bytes 1024", 20000, WINDOW, 300),
            ("array 65536", 1000, 1, 200),
            ("array 1048576", 200, 1, 60),
            ("array 16777216", 20, 1, 10),
        ):
            ours(kind, count // 10 + 1, window)
            theirs(kind, their_count // 10 + 1)
            pairs = [(ours(kind, count, window), theirs(kind, their_count)) for _ in range(ROUNDS)]
            a, b = (statistics.median(side) for side in zip(*pairs, strict=True))
            name = f"{kind} B, {'sync' if window == 1 else f'{window} in flight'}"
            print(f"{name:28}{a:12.0f}{b:12.0f}{a / b:9.1f} x")


if __name__ == "__main__":
    main()
