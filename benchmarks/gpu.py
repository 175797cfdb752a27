"""What ranks of one accelerator exchange, beside what the device could do; needs an accelerator of NVIDIA's.

    weights   a version between two ranks on one device: there, through host memory, and a bare copy on the device
    items     an item of a channel, pinned where it arrives and copied to the device, beside pinned and pageable memory
              of the process's own; and one that stays on the device, beside one that passes host memory
    turns     two groups take turns on the device: what each has there is brought there and back

Each part takes minutes, and can be run alone. With `--pretend` all is on the CPU: whether it runs, not how fast.

    python benchmarks/gpu.py [--only weights|items|turns] [--gib 8] [--rounds 5] [--pretend]
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from measure import MIB, Table, duration_text, ratio_text, speed_text
from rlinf.scheduler import Channel, Cluster, PackedPlacementStrategy, Worker, WorkerGroup

GIB = 1 << 30
TIMEOUT_S = 540.0
NUM_TENSORS = 64
ITEM_BYTES = 256 * MIB


class Rank(Worker):
    """One that measures on the first of its devices."""

    def timed(self, work: Callable[[], object]) -> float:
        """Seconds until the device has done it."""
        self.settle()
        began = time.perf_counter()
        work()
        self.settle()
        return time.perf_counter() - began

    def settle(self) -> None:
        """Return when the device has done all that it was asked."""
        if self.torch_device.type == "cuda":
            torch.cuda.synchronize()

    def tensors(self, size_bytes: int) -> dict[str, torch.Tensor]:
        """Weights of so many bytes on the device."""
        elements = size_bytes // NUM_TENSORS // 2
        names = (f"layer.{index}" for index in range(NUM_TENSORS))
        return {name: torch.zeros(elements, dtype=torch.bfloat16, device=self.torch_device) for name in names}

    def name_of_device(self) -> str:
        """What it is called."""
        is_cuda = self.torch_device.type == "cuda"
        return torch.cuda.get_device_name(self.torch_device) if is_cuda else "no accelerator (--pretend)"


class Actor(Rank):
    """Publishes, and puts."""

    def setup(self, size_bytes: int, pool_bytes: int) -> None:
        """Make weights, and say how much the buckets may take."""
        os.environ["RLINF_DEVICE_POOL_MIB"] = str(pool_bytes // MIB)
        self.weights = self.tensors(size_bytes)
        self.version = 0

    def publish(self) -> float:
        """Publish a version; how long it takes."""
        self.version += 1
        return self.timed(lambda: self.publish_weights("policy", self.weights, self.version))

    def copy_bare(self, rounds: int) -> list[float]:
        """What one copy of all of it on the device takes, by torch alone."""
        into = {name: torch.empty_like(tensor) for name, tensor in self.weights.items()}

        def copy() -> None:
            for name, tensor in self.weights.items():
                into[name].copy_(tensor, non_blocking=True)

        return [self.timed(copy) for _ in range(rounds + 1)][1:]

    def put(self, channel: Channel, count: int, there: bool = False) -> list[float]:
        """Put items of host memory, or of the device; what each takes."""
        device = self.torch_device if there else None
        item = torch.zeros(ITEM_BYTES, dtype=torch.uint8, device=device)
        return [self.timed(lambda: channel.put(item)) for _ in range(count)]


class Rollout(Rank):
    """Fetches, and gets."""

    def setup(self, size_bytes: int) -> None:
        """Make the weights that are written to."""
        self.weights = self.tensors(size_bytes)

    def fetch(self, version: int) -> float:
        """Fetch a version; how long it takes."""
        return self.timed(
            lambda: self.fetch_weights("policy", into=self.weights, min_version=version, timeout_s=TIMEOUT_S)
        )

    def copy_items(self, channel: Channel, count: int) -> dict[str, list[float]]:
        """Seconds of copies to the device: of items, of pinned memory, of pageable memory."""
        is_cuda = self.torch_device.type == "cuda"
        sources = {
            "pinned": torch.zeros(ITEM_BYTES, dtype=torch.uint8, pin_memory=is_cuda),
            "pageable": torch.zeros(ITEM_BYTES, dtype=torch.uint8),
        }
        into = torch.empty(ITEM_BYTES, dtype=torch.uint8, device=self.torch_device)
        times: dict[str, list[float]] = {"get": [], "item": [], **{name: [] for name in sources}}
        for _ in range(count):
            began = time.perf_counter()
            item = channel.get()
            times["get"].append(time.perf_counter() - began)
            times["item"].append(self.timed(lambda item=item: into.copy_(item)))
            for name, source in sources.items():
                times[name].append(self.timed(lambda source=source: into.copy_(source)))
        return times

    def take(self, channel: Channel, count: int) -> list[float]:
        """Get items; what each takes."""
        return [self.timed(channel.get) for _ in range(count)]

    def take_turns(self, rounds: int) -> None:
        """Have its weights on the device, in its turn, and give the device's memory to the next."""
        for _ in range(rounds):
            with self.device_lock(timeout_s=TIMEOUT_S, offload=[self.weights]), self.timer("used"):
                self.timed(lambda: [tensor.add_(1) for tensor in self.weights.values()])


def _only(group: WorkerGroup[Any], method: str, *args: object) -> Any:
    return getattr(group, method)(*args).wait(timeout_s=TIMEOUT_S)[0]


def measure_weights(cluster: Cluster, size_bytes: int, rounds: int) -> None:
    """Print what publishing and fetching take, on the device and through host memory."""
    table = Table(f"{size_bytes / GIB:.3g} GiB of weights between two ranks", ["seconds", "speed", "of bare"])
    bare_s = 0.0
    for way, pool_bytes in (("on the device", 3 * size_bytes), ("through host memory", 0)):
        first = PackedPlacementStrategy(0, 0)
        with (
            Actor.create_group().launch(cluster, first, name=f"actor {way}") as actor,
            Rollout.create_group().launch(cluster, first, name=f"rollout {way}") as rollout,
        ):
            _only(actor, "setup", size_bytes, pool_bytes)
            _only(rollout, "setup", size_bytes)
            if not bare_s:
                bare_s = statistics.median(_only(actor, "copy_bare", rounds))
                _row(table, "a bare copy on the device", size_bytes, bare_s, bare_s)
            # The first two make the memory.
            times = [
                (_only(actor, "publish"), _only(rollout, "fetch", version))
                for version in range(1, rounds + 3)
            ]
            for index, name in enumerate(("publish", "fetch")):
                seconds = statistics.median(each[index] for each in times[2:])
                _row(table, f"{name}, {way}", size_bytes, seconds, bare_s)


def measure_items(cluster: Cluster, rounds: int) -> None:
    """Print what copies of items to the device take."""
    table = Table(f"{ITEM_BYTES // MIB} MiB to the device, from", ["seconds", "speed", "of pinned"])
    first, channel = PackedPlacementStrategy(0, 0), Channel.create("items", maxsize=2)
    with (
        Actor.create_group().launch(cluster, first, name="putting") as actor,
        Rollout.create_group().launch(cluster, first, name="getting") as rollout,
    ):
        putting = actor.put(channel, rounds + 2)
        times = _only(rollout, "copy_items", channel, rounds + 2)
        putting.wait(timeout_s=TIMEOUT_S)
    # The first two touch the memory.
    medians = {name: statistics.median(seconds[2:]) for name, seconds in times.items()}
    names = {
        "pinned": "pinned memory",
        "item": "an item",
        "pageable": "pageable memory",
        "get": "(getting the item)",
    }
    for name, text in names.items():
        _row(table, text, ITEM_BYTES, medians[name], medians["pinned"])


def measure_device_items(cluster: Cluster, rounds: int) -> None:
    """Print what items that stay on the device take, beside such that pass host memory."""
    table = Table(
        f"{ITEM_BYTES // MIB} MiB on the device, to another rank", ["seconds", "speed", "of the best"]
    )
    first = PackedPlacementStrategy(0, 0)
    best_s = 0.0
    for way, stays in (("on the device", True), ("through host memory", False)):
        channel = Channel.create(f"items {way}", device_items=stays)
        with (
            Actor.create_group().launch(cluster, first, name=f"putting {way}") as actor,
            Rollout.create_group().launch(cluster, first, name=f"getting {way}") as rollout,
        ):
            # The first two make the memory.
            times = [
                (_only(actor, "put", channel, 1, True)[0], _only(rollout, "take", channel, 1)[0])
                for _ in range(rounds + 2)
            ]
            for index, name in enumerate(("put", "get")):
                seconds = statistics.median(each[index] for each in times[2:])
                best_s = best_s or seconds
                _row(table, f"{name}, {way}", ITEM_BYTES, seconds, best_s)


def measure_turns(cluster: Cluster, size_bytes: int, rounds: int) -> None:
    """Print what taking turns on a device takes."""
    table = Table(f"{size_bytes / GIB:.3g} GiB in turns of two groups", ["seconds", "speed", ""])
    first = PackedPlacementStrategy(0, 0)
    with (
        Rollout.create_group().launch(cluster, first, name="one") as one,
        Rollout.create_group().launch(cluster, first, name="other") as other,
    ):
        for group in (one, other):
            _only(group, "setup", size_bytes)
            # The first makes the memory.
            _only(group, "take_turns", 1)
        results = [group.take_turns(rounds) for group in (one, other)]
        for result in results:
            result.wait(timeout_s=TIMEOUT_S)
        durations = [result.durations("max") for result in results]
    for key, name in {
        "onload": "bringing it there",
        "used": "using it",
        "offload": "bringing it back",
    }.items():
        seconds = statistics.mean(each.get(key, 0.0) for each in durations) / rounds
        if seconds:
            table.row(name, duration_text(seconds), speed_text(size_bytes, seconds), "")


def _row(table: Table, name: str, size_bytes: int, seconds: float, best_s: float) -> None:
    table.row(name, duration_text(seconds), speed_text(size_bytes, seconds), ratio_text(best_s / seconds))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description="What ranks of one accelerator exchange.")
    parser.add_argument("--only", choices=("weights", "items", "turns"), help="run one part")
    parser.add_argument("--gib", type=float, default=8.0, help="how many GiB of weights")
    parser.add_argument(
        "--rounds", type=int, default=5, help="how often each is measured; figures are medians"
    )
    parser.add_argument("--pretend", action="store_true", help="on the CPU")
    given = parser.parse_args(arguments)
    size_bytes = int(given.gib * GIB) // (4 * NUM_TENSORS) * (4 * NUM_TENSORS)
    # For the Ray that is started here, and the ranks in it: items, and three versions of the weights.
    os.environ["RLINF_PINNED_MIB"] = str(16 * ITEM_BYTES // MIB + 3 * -(-size_bytes // MIB))
    with Cluster(simulate="1x1") if given.pretend else Cluster(num_nodes=1) as cluster:
        with Rollout.create_group().launch(cluster, PackedPlacementStrategy(0, 0), name="looking") as looking:
            print(f"{_only(looking, 'name_of_device')}, torch {torch.__version__}\n")
        if given.only in (None, "weights"):
            measure_weights(cluster, size_bytes, given.rounds)
        if given.only in (None, "items"):
            measure_items(cluster, given.rounds)
            measure_device_items(cluster, given.rounds)
        if given.only in (None, "turns"):
            measure_turns(cluster, size_bytes // 2, given.rounds)


if __name__ == "__main__":
    main()
