"""Ranks that send to each other: workers, and plain Ray actors with their own calls, the store and torch's gloo."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any

import ray
import torch
from torch import distributed

from bare import Bare, make_item, same_content
from rlinf.scheduler import Worker

TIMEOUT_S = 120.0
SOURCE, TARGETS = "actor", "rollout"
NUM_TARGETS = 4
NUM_LAYERS = 32
WEIGHTS = "policy"


def make_weights(size: int, filled: bool) -> dict[str, torch.Tensor]:
    """A state dict of `size` bytes: random ones, or a place for them."""
    one = size // NUM_LAYERS
    return {
        f"layers.{index}.weight": make_item("tensor", one) if filled else torch.zeros(one, dtype=torch.uint8)
        for index in range(NUM_LAYERS)
    }


class Rank(Bare, Worker):
    """A worker of either group."""

    _weights: dict[str, torch.Tensor] | None = None
    _received: Any = None

    def send_many(self, size: int, count: int) -> float:
        """Send a tensor to rank 0 of the targets, again and again; returns when it began."""
        item = self.item("tensor", size)
        began = time.monotonic()
        for _ in range(count):
            self.send(item, TARGETS, 0)
        return began

    def recv_many(self, count: int) -> float:
        """Receive what `send_many` sends, each dropped when the next has come; returns when the last was there."""
        for _ in range(count):
            self._received = self.recv(SOURCE, 0)
        return time.monotonic()

    def send_tensors(self, size: int, count: int) -> float:
        """`send_many` for a receiver that has a place for the tensor."""
        item = self.item("tensor", size)
        began = time.monotonic()
        for _ in range(count):
            self.send_tensor(item, TARGETS, 0)
        return began

    def recv_tensors(self, size: int, count: int) -> float:
        """Receive in place; returns when the last was there."""
        if self._received is None or self._received.numel() != size:
            self._received = torch.zeros(size, dtype=torch.uint8)
        for _ in range(count):
            self.recv_tensor(self._received, SOURCE, 0)
        return time.monotonic()

    def broadcasts(self, size: int, count: int) -> tuple[float, float]:
        """Take part in `count` broadcasts, each dropped when the next has come; returns when it began and ended."""
        groups = [(SOURCE, [0]), (TARGETS, list(range(NUM_TARGETS)))]
        item = self.item("tensor", size) if self.group_name == SOURCE else None
        began = time.monotonic()
        for _ in range(count):
            self._received = self.broadcast(item, groups=groups, src=(SOURCE, 0))
        return began, time.monotonic()

    def received_intact(self, size: int) -> bool:
        """Whether the last tensor is what was sent; drops it."""
        received, self._received = self._received, None
        return received is not None and same_content(received, "tensor", size)

    def has_weights(self, size: int, filled: bool) -> None:
        """Make the weights, or the place for them."""
        self._weights = make_weights(size, filled)

    def publish(self, version: int) -> float:
        """Publish the weights; returns when it began."""
        began = time.monotonic()
        self.publish_weights(WEIGHTS, self._weights, version)
        return began

    def fetch(self, version: int) -> float:
        """Fetch the weights, of `version` or newer, into the place for them; returns when they were there."""
        self.fetch_weights(WEIGHTS, into=self._weights, min_version=version)
        return time.monotonic()

    def weights_sum(self) -> int:
        """What tells whether the right weights came."""
        return sum(int(tensor.sum()) for tensor in (self._weights or {}).values())


@ray.remote(num_cpus=0)
class PlainRank(Bare):
    """A plain Ray actor, that is also a rank of a gloo group."""

    _weights: dict[str, torch.Tensor] | None = None
    _held: Any = None

    def take(self, item: Any) -> None:
        """Have the item, and drop the last one."""
        self._held = item

    def drop(self) -> None:
        """Hold nothing."""
        self._held = None

    def load(self, weights: dict[str, Any]) -> None:
        """Copy weights, tensors or arrays, into their place."""
        for name, value in weights.items():
            self._weights[name].numpy()[...] = value

    def call_many(self, target: Any, kind: str, size: int, count: int, put: bool) -> float:
        """Hand an item to another actor in a call, as it is or put into Ray's store; returns seconds."""
        item = self.item(kind, size)
        began = time.monotonic()
        for _ in range(count):
            ray.get(target.take.remote(ray.put(item) if put else item))
        return time.monotonic() - began

    def share_many(self, targets: list[Any], kind: str, size: int, count: int) -> float:
        """Put an item into Ray's store once and have all targets get it, again and again; returns seconds."""
        item = self.item(kind, size)
        began = time.monotonic()
        for _ in range(count):
            reference = ray.put(item)
            ray.get([target.take.remote(reference) for target in targets])
        return time.monotonic() - began

    def share_weights(self, targets: list[Any], count: int, as_arrays: bool) -> float:
        """Put the weights into Ray's store once and have all targets load them, again and again; returns seconds."""
        began = time.monotonic()
        for _ in range(count):
            weights = (
                {name: tensor.numpy() for name, tensor in self._weights.items()}
                if as_arrays
                else self._weights
            )
            reference = ray.put(weights)
            ray.get([target.load.remote(reference) for target in targets])
        return time.monotonic() - began

    def has_weights(self, size: int, filled: bool) -> None:
        """Make the weights, or the place for them."""
        self._weights = make_weights(size, filled)

    def join_gloo(self, store: str, rank: int, world_size: int) -> None:
        """Become a rank of a gloo group on the loopback interface."""
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        limit = timedelta(seconds=TIMEOUT_S)
        distributed.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=world_size, timeout=limit
        )

    def gloo_send(self, size: int, count: int) -> float:
        """Send a tensor to rank 1, again and again; returns when it began."""
        item = self.item("tensor", size)
        began = time.monotonic()
        for _ in range(count):
            distributed.send(item, 1)
        return began

    def gloo_recv(self, size: int, count: int) -> float:
        """Receive in place from rank 0; returns when the last was there."""
        place = self.item("tensor", size)
        for _ in range(count):
            distributed.recv(place, 0)
        return time.monotonic()

    def gloo_broadcasts(self, size: int, count: int) -> tuple[float, float]:
        """Take part in `count` broadcasts from rank 0; returns when it began and ended."""
        item = self.item("tensor", size)
        began = time.monotonic()
        for _ in range(count):
            distributed.broadcast(item, 0)
        return began, time.monotonic()

    def gloo_weights(self, count: int) -> tuple[float, float]:
        """Take part in `count` broadcasts of every tensor of the weights; returns when it began and ended."""
        began = time.monotonic()
        for _ in range(count):
            for tensor in self._weights.values():
                distributed.broadcast(tensor, 0)
        return began, time.monotonic()
