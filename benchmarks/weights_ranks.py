"""Ranks that hand sharded weights over: workers, and plain Ray actors that gather first, as people do today.

Ranks 0 and 1 train a model under FSDP2; the others read it, each as a whole or its tensor-parallel part.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np
import ray
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Placement, Shard

from measure import size_text
from rlinf.scheduler import Worker
from rlinf_scheduler.comm.codec.copying import Copy
from rlinf_scheduler.weights import target as target_module

TIMEOUT_S = 300.0
TRAINERS, READERS = (0, 1), (2, 3)
NUM_RANKS = len(TRAINERS) + len(READERS)
NUM_LAYERS = 32


class Copied(NamedTuple):
    """What a fetch needed and did, in bytes.

    Attributes:
        needed: of the reader's own tensors.
        copied: really.
    """

    needed: int
    copied: int


class Model(nn.Module):
    """Layers of float32, all of one size."""

    def __init__(self, size: int) -> None:
        super().__init__()
        width = int((size // NUM_LAYERS // 8) ** 0.5)
        self.layers = nn.ModuleList(nn.Linear(width, 2 * width, bias=False) for _ in range(NUM_LAYERS))


def weights_name(size: int) -> str:
    """What a model of so many bytes is published as."""
    return f"policy of {size_text(size)}"


def cut(index: int) -> Placement:
    """Along which dimension tensor parallelism cuts a layer: columns and rows in turn."""
    return Shard(index % 2)


class Sharded:
    """A rank of a gloo group, with its part of the model or the place for it."""

    _number: int
    _size: int
    _trainers: DeviceMesh
    _readers: DeviceMesh
    _broadcast: Any
    _model: nn.Module
    _places: dict[str, torch.Tensor]

    def join_gloo(self, store: str, number: int) -> int:
        """Become a rank of a gloo group on the loopback interface; returns this process's number."""
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        limit = timedelta(seconds=TIMEOUT_S)
        distributed.init_process_group(
            "gloo", init_method=f"file://{store}", rank=number, world_size=NUM_RANKS, timeout=limit
        )
        self._number = number
        self._trainers, self._readers = DeviceMesh("cpu", TRAINERS), DeviceMesh("cpu", READERS)
        self._broadcast = distributed.new_group([TRAINERS[0], *READERS])
        return os.getpid()

    def train(self, size: int) -> None:
        """Have a model in shards."""
        self._size = size
        self._model = Model(size)
        fully_shard(self._model, mesh=self._trainers)

    def make_room(self, size: int, whole: bool) -> None:
        """Have a place for all of the model, or for this rank's tensor-parallel part."""
        self._size = size
        with torch.device("meta"):
            shapes = {key: value.shape for key, value in Model(size).state_dict().items()}
        self._places = {}
        for index, (key, shape) in enumerate(shapes.items()):
            here = list(shape)
            if not whole:
                here[index % 2] //= len(READERS)
            local = torch.zeros(here)
            self._places[key] = local if whole else DTensor.from_local(local, self._readers, [cut(index)])

    def change(self, version: int) -> None:
        """Make an optimizer's step, which changes all that is here."""
        with torch.no_grad():
            for parameter in self._model.parameters():
                parameter.fill_(version)

    def clear(self) -> None:
        """Forget what has come."""
        for place in self._places.values():
            _local(place).zero_()

    def check(self, version: int) -> bool:
        """Whether the right weights came."""
        return all(bool((_local(place) == version).all()) for place in self._places.values())

    def broadcast_layers(self) -> tuple[float, float]:
        """Gather a layer, broadcast it, copy what is wanted of it, and so on; returns when it began and ended."""
        began = time.monotonic()
        if self._number in TRAINERS:
            for parameter in self._model.parameters():
                layer = parameter.full_tensor()
                if self._number == TRAINERS[0]:
                    distributed.broadcast(layer.detach(), TRAINERS[0], group=self._broadcast)
        else:
            for place in self._places.values():
                local = _local(place)
                layer = local if local is place else torch.empty(place.shape)
                distributed.broadcast(layer, TRAINERS[0], group=self._broadcast)
                if layer is not local:
                    self._load(place, layer.numpy())
        return began, time.monotonic()

    def _load(self, place: torch.Tensor, layer: np.ndarray[Any, Any]) -> None:
        if isinstance(place, DTensor):
            dim = place.placements[0].dim
            layer = np.split(layer, len(READERS), dim)[self._number - READERS[0]]
        np.copyto(_local(place).numpy(), layer)


class Rank(Sharded, Worker):
    """A worker of either group."""

    def publish(self, version: int) -> tuple[float, float]:
        """Publish the shards that are here; returns when it began and ended."""
        began = time.monotonic()
        self.publish_weights(weights_name(self._size), self._model, version)
        return began, time.monotonic()

    def fetch(self, version: int) -> float:
        """Fetch a version; returns when it was there."""
        self.fetch_weights(weights_name(self._size), into=self._places, min_version=version)
        return time.monotonic()

    def fetch_counted(self, version: int) -> Copied:
        """Fetch a version, and count what is copied."""
        copied = []
        copy_all = target_module.copy_all

        def copy_counted(copies: Sequence[Copy]) -> None:
            copied.extend(source.nbytes for _, source in copies)
            copy_all(copies)

        target_module.copy_all = copy_counted
        try:
            self.fetch_weights(weights_name(self._size), into=self._places, min_version=version)
        finally:
            target_module.copy_all = copy_all
        return Copied(_size(map(_local, self._places.values())), sum(copied))


@ray.remote(num_cpus=0)
class PlainRank(Sharded):
    """A plain Ray actor."""

    def share(self, readers: Sequence[Any]) -> tuple[float, float]:
        """Gather the whole state, and have all readers load it from Ray's store; returns when it began and ended."""
        began = time.monotonic()
        state = {key: value.full_tensor() for key, value in self._model.state_dict().items()}
        if readers:
            reference = ray.put({key: value.numpy() for key, value in state.items()})
            ray.get([reader.load.remote(reference) for reader in readers])
        return began, time.monotonic()

    def load(self, state: dict[str, Any]) -> None:
        """Copy what is wanted of a whole state."""
        for key, array in state.items():
            self._load(self._places[key], array)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _size(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)
