"""Producers and consumers: workers on a channel, and plain Ray actors on `ray.util.queue`, with the same loops."""

from __future__ import annotations

import asyncio
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
from ray.util.queue import Queue

from bare import Bare, same_content
from measure import MIB, size_text
from rlinf.scheduler import Worker

# From this size on an item is large: few are held, and few are under way at a time.
LARGE = MIB
# Long enough for the consumer to wait in its get again before the next put.
PAUSE_S = 0.0003
CONSUMER_PAUSE_S = 0.0005
STAMP = struct.Struct("d8x")


@dataclass(frozen=True, slots=True)
class Workload:
    """What goes through.

    Attributes:
        kind: "bytes", "tensor", "array", "dict" of 20 tensors, "list" of bytes of 1 KiB.
        size: bytes of one item.
        window: how many puts and how many gets are under way at a time; 1: blocking calls.
        how: "" as it is; "read": the consumer reads every byte; "references": Ray's queue carries
            references to objects that the producer put into Ray's store.
    """

    kind: str
    size: int
    window: int = 1
    how: str = ""

    @property
    def name(self) -> str:
        """As the table calls it."""
        extra = {"": "", "read": ", read through", "references": ", Ray: references"}[self.how]
        pace = "one at a time" if self.window == 1 else f"{self.window} in flight"
        return f"{size_text(self.size)} {self.kind}, {pace}{extra}"

    @property
    def large(self) -> bool:
        """Whether few are held at a time."""
        return self.size >= LARGE


def read_through(item: Any) -> None:
    """Read every byte of a tensor, at the speed of memory."""
    item.numpy().view(np.uint64).max()


class Consuming(Bare):
    """What consumers do with items, whoever moves them."""

    def use(self, items: Iterator[Any], how: str) -> float:
        """Take all `items`, each dropped when the next has come; returns when the last was there."""
        held = None
        for item in items:
            held = item
            if how == "read":
                read_through(held)
        return time.monotonic()

    def first_is_intact(self, items: Iterator[Any], kind: str, size: int) -> bool:
        """Whether the next item is what was put."""
        return same_content(next(items), kind, size)

    def put_paced(self, put: Callable[[bytes], object], count: int) -> None:
        """Put `count` stamps, each when the consumer has asked for it and waits."""
        pipe = self.pipe()
        for _ in range(count):
            pipe.recv(1)
            time.sleep(PAUSE_S)
            put(STAMP.pack(time.perf_counter()))

    def get_paced(self, get: Callable[[], bytes], count: int) -> list[float]:
        """Seconds from before each put to after the get of it: the clock is the machine's, so both ends share it."""
        pipe, took = self.pipe(), []
        for _ in range(count):
            pipe.sendall(b"n")
            (stamp,) = STAMP.unpack(get())
            took.append(time.perf_counter() - stamp)
        return took


class Peer(Consuming, Worker):
    """Puts into a channel or gets from it."""

    def take_turns(self, channel_name: str, count: int, first: bool) -> list[float]:
        """Send a stamp there and back, `count` times, blocking all the way; seconds from each put to its get here."""
        channel, took = self.connect_channel(channel_name), []
        mine, others = ("back", "there") if first else ("there", "back")
        for _ in range(count):
            if first:
                channel.put(STAMP.pack(time.perf_counter()), queue_name=others)
            (stamp,) = STAMP.unpack(channel.get(mine))
            took.append(time.perf_counter() - stamp)
            if not first:
                channel.put(STAMP.pack(time.perf_counter()), queue_name=others)
        return took

    def produce(self, channel_name: str, workload: Workload, count: int) -> float:
        """Put the item `count` times; returns when it began."""
        channel, item = self.connect_channel(channel_name), self.item(workload.kind, workload.size)
        began = time.monotonic()
        if workload.window == 1:
            for _ in range(count):
                channel.put(item)
            return began
        pending: deque[Any] = deque()
        for _ in range(count):
            pending.append(channel.put(item, async_op=True))
            if len(pending) == workload.window:
                pending.popleft().wait()
        for handle in pending:
            handle.wait()
        return began

    def consume(self, channel_name: str, workload: Workload, count: int) -> float:
        """Get `count` items; returns when the last was there."""
        return self.use(self._items(channel_name, workload.window, count), workload.how)

    def check(self, channel_name: str, workload: Workload) -> bool:
        """Get an item; returns whether it is what was put."""
        return self.first_is_intact(self._items(channel_name, 1, 1), workload.kind, workload.size)

    def put_stamps(self, channel_name: str, count: int) -> None:
        """See `put_paced`."""
        self.put_paced(self.connect_channel(channel_name).put, count)

    def get_stamps(self, channel_name: str, count: int) -> list[float]:
        """See `get_paced`."""
        return self.get_paced(self.connect_channel(channel_name).get, count)

    def consume_slowly(self, channel_name: str, count: int) -> None:
        """Get `count` tensors, read each, and rest a little."""
        channel = self.connect_channel(channel_name)
        for _ in range(count):
            read_through(channel.get())
            time.sleep(CONSUMER_PAUSE_S)

    def _items(self, channel_name: str, window: int, count: int) -> Iterator[Any]:
        channel = self.connect_channel(channel_name)
        if window == 1:
            for _ in range(count):
                yield channel.get()
            return
        handles = deque(channel.get(async_op=True) for _ in range(min(window, count)))
        left = count - len(handles)
        while handles:
            yield handles.popleft().wait()
            if left:
                handles.append(channel.get(async_op=True))
                left -= 1


# Outside of the class: one asynchronous method would make it an asynchronous actor, whose blocking calls are slower.
async def _put_many(queue: Queue, item: Any, window: int, count: int) -> None:
    pending: deque[asyncio.Task[None]] = deque()
    for _ in range(count):
        pending.append(asyncio.ensure_future(queue.put_async(item)))
        if len(pending) == window:
            await pending.popleft()
    await asyncio.gather(*pending)


async def _get_many(queue: Queue, window: int, count: int) -> None:
    pending: deque[asyncio.Task[Any]] = deque()
    for _ in range(count):
        pending.append(asyncio.ensure_future(queue.get_async()))
        if len(pending) == window:
            await pending.popleft()
    await asyncio.gather(*pending)


@ray.remote(num_cpus=0)
class PlainPeer(Consuming):
    """The same with `ray.util.queue`, whose asynchronous calls are for `asyncio`."""

    def produce(self, queue: Queue, workload: Workload, count: int) -> float:
        """Put the item `count` times; returns when it began."""
        item = self.item(workload.kind, workload.size)
        began = time.monotonic()
        if workload.window > 1:
            asyncio.run(_put_many(queue, item, workload.window, count))
        elif workload.how == "references":
            for _ in range(count):
                queue.put([ray.put(item)])
        else:
            for _ in range(count):
                queue.put(item)
        return began

    def consume(self, queue: Queue, workload: Workload, count: int) -> float:
        """Get `count` items; returns when the last was there."""
        if workload.window > 1:
            asyncio.run(_get_many(queue, workload.window, count))
            return time.monotonic()
        if workload.how == "references":
            return self.use((ray.get(queue.get()[0]) for _ in range(count)), workload.how)
        return self.use((queue.get() for _ in range(count)), workload.how)

    def put_stamps(self, queue: Queue, count: int) -> None:
        """See `put_paced`."""
        self.put_paced(queue.put, count)

    def get_stamps(self, queue: Queue, count: int) -> list[float]:
        """See `get_paced`."""
        return self.get_paced(queue.get, count)
