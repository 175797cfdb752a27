"""A version as whole tensors, one after the other, for engines whose own loader does the rest."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from rlinf_scheduler.comm.codec.copying import Copy, copy_all
from rlinf_scheduler.comm.framing import Bytes
from rlinf_scheduler.weights.layout import Index, Manifest, item_size, layout, whole
from rlinf_scheduler.weights.plan import ByteRun, Keys, Selection, Wants
from rlinf_scheduler.weights.sources import MemoryPlace, Sources
from rlinf_scheduler.weights.target import ArrivedShards, TargetPlan, as_tensor, copy_of, of_torch, runs_of

# In cycles of two that stay in the processor's cache: of 64 MiB each, a stream takes twice as long.
BUCKET_BYTES = 16 << 20
_ALIGNMENT = 64


class WholeTensor(NamedTuple):
    """A published tensor, and the bytes of which it is made: where they have arrived, and which runs of them."""

    key: str
    dtype: str
    shape: Index
    arrived: list[tuple[Bytes, tuple[ByteRun, ...]]]

    @property
    def num_bytes(self) -> int:
        """How large it is."""
        return math.prod(self.shape) * item_size(self.dtype)

    def copies(self, memory: Bytes) -> Iterator[Copy]:
        """Yield what makes it of what has arrived, in memory of its size."""
        return (copy_of(run, memory, data) for data, runs in self.arrived for run in runs)

    def value(self, memory: Bytes) -> Any:
        """Return it as it was published, a tensor or an array, in memory that has its bytes."""
        if of_torch(self.dtype):
            return as_tensor(self.dtype, memory, self.shape)
        return memory.view(self.dtype).reshape(self.shape)


class WholeTensors:
    """Published tensors as the target of a fetch: whole, in the order of the model; none are written to."""

    call = "stream_weights"
    tensors: Sequence[Any] = ()

    def __init__(self, name: str, keys: Keys) -> None:
        self._name = name
        self._keys = keys if keys is None or isinstance(keys, str) else tuple(keys)
        self._manifest = Manifest((), (), ())
        self._arrived: list[WholeTensor] = []

    def plan(
        self, version: int, sources: Sources, place: MemoryPlace, reader: int = 0, readers: int = 1
    ) -> TargetPlan:
        """Find what is read from whom, as of `WeightsTarget.plan`.

        Raises:
            WeightsError: nothing that is published has one of the keys.
        """
        make = partial(self._plan, version, sources, place, reader, readers)
        self._manifest, plan = sources.plan_of((self._keys, place, reader, readers), make)
        return plan

    def _plan(
        self, version: int, sources: Sources, place: MemoryPlace, reader: int, readers: int
    ) -> tuple[Manifest, TargetPlan]:
        keys = Selection(self._name, list(sources.indices), self._keys, there=f"version {version}").keys
        numbers = {each: sources.indices[each] for each in keys}
        here = layout((each, sources.dtypes[n], whole(sources.shapes[n])) for each, n in numbers.items())
        plan = Wants(sources, here.manifest).plan(here, place, reader, readers)
        reads = tuple(plan.reads())
        runs = runs_of(sources, reads, {each: sources.shapes[n] for each, n in numbers.items()})
        return here.manifest, TargetPlan(tuple(flow.source for flow in plan.flows), plan.flows, reads, runs)

    def write(
        self, version: int, plan: TargetPlan, payloads: Mapping[int, Sequence[Any]], _on_device: object = None
    ) -> None:
        """Take what has arrived; `version` is for messages.

        Raises:
            WeightsError: a payload is not what its source said that it has.
        """
        shards = {number: ArrivedShards(self._name, payloads[number]) for number in plan.needed}
        arrived = {row[0]: WholeTensor(*row, []) for row in self._manifest.rows()}
        for read, runs in zip(plan.reads, plan.runs, strict=True):
            arrived[read.into].arrived.append((shards[read.source].take(read)[1], runs))
        self._arrived = list(arrived.values())

    def stream(self, version: int, bucket_bytes: int, given_back: Callable[[], None]) -> WeightsStream:
        """Return the tensors, of which the bytes are here; see `WeightsStream`."""
        arrived, self._arrived = self._arrived, []
        return WeightsStream(version, arrived, bucket_bytes, given_back)


class WeightsStream(Iterator[tuple[str, Any]]):
    """The tensors of one version, each with its key, in the order in which they were published.

    What it gives is the caller's, to be kept or written to: memory is used again when nobody refers to it. All of the
    version has come to this machine; its memory is given back at the end, by `close`, or when this is dropped.

    Attributes:
        version: which.
        shapes: of its tensors, by key.
    """

    def __init__(
        self, version: int, tensors: list[WholeTensor], bucket_bytes: int, given_back: Callable[[], None]
    ) -> None:
        self.version = version
        self.shapes = {each.key: each.shape for each in tensors}
        self._tensors = tensors
        self._bucket_bytes = bucket_bytes
        self._given_back = given_back
        self._at = 0
        # The number of the first tensor that is put together, and these.
        self._bucket: tuple[int, list[Any]] = 0, []
        self._memory: list[tuple[Bytes, weakref.ref[_Used]]] = []

    def __next__(self) -> tuple[str, Any]:
        if self._at >= len(self._tensors):
            self.close()
            raise StopIteration
        if self._at - self._bucket[0] >= len(self._bucket[1]):
            self._bucket = 0, []  # which frees its memory, unless somebody has kept a tensor
            self._bucket = self._at, self._next_bucket()
        found = self._tensors[self._at].key, self._bucket[1][self._at - self._bucket[0]]
        self._at += 1
        return found

    def close(self) -> None:
        """Give the version's memory back; there is nothing more to come. Tensors that it gave stay as they are."""
        self._tensors, self._bucket, self._memory = [], (0, []), []
        self._given_back()

    def _next_bucket(self) -> list[Any]:
        places, end = list[tuple[WholeTensor, int]](), 0
        for tensor in self._tensors[self._at :]:
            if places and end + tensor.num_bytes > self._bucket_bytes:
                break
            places.append((tensor, end))
            end = -(-(end + tensor.num_bytes) // _ALIGNMENT) * _ALIGNMENT
        memory = self._room(end)
        pieces = [memory[begin : begin + tensor.num_bytes] for tensor, begin in places]
        found = [(tensor, piece) for (tensor, _), piece in zip(places, pieces, strict=True)]
        copy_all([each for tensor, piece in found for each in tensor.copies(piece)])
        return [tensor.value(piece) for tensor, piece in found]

    def _room(self, num_bytes: int) -> Bytes:
        """Return memory for a bucket; two are kept, as whoever asks for a tensor mostly has the one before still."""
        size_bytes = max(num_bytes, self._bucket_bytes)
        free = (memory for memory, used in self._memory if used() is None and len(memory) == size_bytes)
        memory = next(free, None)
        if memory is None:
            memory = np.empty(size_bytes, np.uint8)
        use = _Used(memory)
        others = [
            each for each in self._memory if each[0] is not memory and len(each[0]) == self._bucket_bytes
        ]
        self._memory = [*others[-1:], (memory, weakref.ref(use))]
        return np.asarray(use)


class _Used:
    """Memory of a bucket for as long as an array, or a tensor, refers to it."""

    __slots__ = ("__array_interface__", "__weakref__", "_memory")

    def __init__(self, memory: Bytes) -> None:
        self._memory = memory
        self.__array_interface__ = memory.__array_interface__
