"""Where a version goes: a reader's own tensors, from where each of them comes, and its bytes into their places.

Everything is checked before the first byte is written. Bytes of one dtype in host memory are copied as they are, by
several threads; all else is copied as boxes by numpy or torch, which convert dtypes and write to devices.
torch is only used where it is loaded, or where a dtype arrives that numpy does not know.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from rlinf_scheduler.comm.codec.copying import Copy, copy_all
from rlinf_scheduler.comm.codec.destinations import copy_into, why_unwritable, why_unwritable_array
from rlinf_scheduler.comm.codec.tensors import BITS, KNOWN_TO_NUMPY
from rlinf_scheduler.comm.framing import Bytes
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.errors import WeightsError, WeightsMismatch
from rlinf_scheduler.weights.held import (
    NO_PART,
    TensorEntry,
    decode_rows,
    held,
    is_tensor,
    local_of,
    values_of,
)
from rlinf_scheduler.weights.layout import Index, Manifest, item_size, layout
from rlinf_scheduler.weights.plan import (
    ByteRun,
    Flow,
    Fuse,
    Keys,
    Rename,
    Rows,
    Selection,
    TensorRead,
    Wants,
    runs,
)
from rlinf_scheduler.weights.sources import BoxCopy, MemoryPlace, Sources

logger = Reporter(__name__)

_NUMPY_MARKS = "<>|="
_runs = lru_cache(maxsize=4096)(runs)


class TargetPlan(NamedTuple):
    """What a target reads: from which sources, how much, which tensors, and which bytes of each of their boxes."""

    needed: tuple[int, ...]
    flows: tuple[Flow, ...]
    reads: tuple[TensorRead, ...]
    runs: tuple[tuple[ByteRun, ...], ...]


class WeightsTarget:
    """Tensors of a reader that weights are written to.

    Args:
        name: of the weights, for messages.
        into: a `torch.nn.Module`, whose `state_dict()` is written to, or a mapping, whose values are: tensors (also
            DTensors of this process's mesh), arrays, and `Slice`s of them.
        keys: which of them, as of `Selection`, like the next two.
        rename: as which key each is published.
        fuse: of which published tensors one consists.
        strict: whether all that is wanted has to be published, and all that is published to be wanted.

    Raises:
        WeightsError: it is neither; nothing in it has one of the keys; or a slice is not within its tensor, or a
            DTensor has partial sums.
    """

    # Of a worker, by which it is fetched.
    call = "fetch_weights"

    def __init__(
        self,
        name: str,
        into: Any,
        *,
        keys: Keys = None,
        rename: Rename = None,
        fuse: Fuse = None,
        strict: bool = True,
    ) -> None:
        self._name = name
        self._strict = strict
        values = values_of(into)
        if values is None:
            kind = type(into).__qualname__
            raise WeightsError(name, f"they go into a torch.nn.Module or a dict, not into a {kind}")
        self._selection = Selection(name, values, keys, rename, fuse)
        self._locals = {key: local_of(values[key]) for key in self._selection.keys}
        self._unwritable = _why_unwritable(self._locals)
        self._described = [
            held(name, key, values[key], local)[:3]
            for key, local in self._locals.items()
            if key not in self._unwritable
        ]
        self._layout = layout(self._described)
        self._tied = self._find_tied()

    @property
    def tensors(self) -> list[Any]:
        """The tensors that are written to."""
        return [each for each in self._locals.values() if is_tensor(each)]

    def plan(
        self, version: int, sources: Sources, place: MemoryPlace, reader: int = 0, readers: int = 1
    ) -> TargetPlan:
        """Find what is read from whom, as of `Wants.plan`; in any thread. The sources keep the plan.

        Raises:
            WeightsMismatch: keys, shapes or dtypes differ, or a tensor cannot be written to.
        """
        selection, make = self._selection, partial(self._plan, version, sources, place, reader, readers)
        if self._unwritable:
            return make()
        key = self._layout, tuple(selection.origins.items()), selection.patterns, self._strict, place
        return sources.plan_of((*key, reader, readers), make)

    def _plan(
        self, version: int, sources: Sources, place: MemoryPlace, reader: int, readers: int
    ) -> TargetPlan:
        origins = {key: self._selection.origins.get(key, (Rows(key),)) for key in self._locals}
        there = {
            key: rows for key, rows in origins.items() if all(row.key in sources.indices for row in rows)
        }
        here = layout(row for row in self._described if row[0] in there)
        wants = Wants(sources, here.manifest, self._selection.origins)
        problems = {
            **{problem.key: f"'{problem.key}' cannot be had: {problem.text}" for problem in wants.problems},
            **dict(_unfit(sources, here.manifest, there)),
            **self._unwritable,
        }
        unfit = [problems[key] for key in there if key in problems]
        self._check_keys(version, sources, origins, unfit, nothing=not there)
        found = wants.plan(here, place, reader, readers)
        reads = tuple(found.reads())
        needed = tuple(flow.source for flow in found.flows)
        shapes = {key: part.local_shape for key, _, part in self._described}
        return TargetPlan(needed, found.flows, reads, runs_of(sources, reads, shapes))

    def _check_keys(
        self,
        version: int,
        sources: Sources,
        origins: Mapping[str, Sequence[Rows]],
        unfit: Sequence[str],
        *,
        nothing: bool,
    ) -> None:
        asked = dict.fromkeys(row.key for rows in origins.values() for row in rows)
        missing = [key for key in asked if key not in sources.indices]
        unexpected = [key for key in sources.indices if key not in asked and self._selection.has(key)]
        mismatch = WeightsMismatch(self._name, version, missing, unexpected, unfit)
        if unfit or (nothing and origins) or (self._strict and (missing or unexpected)):
            raise mismatch
        if missing or unexpected:
            logger.warning("fetched without what is not on both sides (strict=False): %s", mismatch)

    def write(
        self,
        version: int,
        plan: TargetPlan,
        payloads: Mapping[int, Sequence[Any]],
        on_device: Mapping[int, Callable[[Callable[[], None]], None]] | None = None,
    ) -> None:
        """Copy everything to its place; the dtypes and the devices stay those of the destination.

        Payloads are what `encode_held` gave, by the number of its source; frames of those in `on_device`, which
        lets something copy from there, may be tensors of bytes on a device.

        Raises:
            WeightsMismatch: something cannot be written to any more, or what is tied would get different values;
                nothing was written.
            WeightsError: a payload is not what its source said that it has; nothing was written.
        """
        if unwritable := _why_unwritable({read.into: self._locals[read.into] for read in plan.reads}):
            raise WeightsMismatch(self._name, version, unfit=tuple(unwritable.values()))
        copies: list[Copy] = []
        others: list[Callable[[], None]] = []
        there: dict[int, list[_Move]] = {}
        moves = list(self._moves(plan, payloads))
        self._check_tied(version, moves)
        for move in moves:
            if is_tensor(move.data):
                there.setdefault(move.read.source, []).append(move)
            else:
                move.split(copies, others)
        copy_all(copies)
        for copy in others:
            copy()
        for number, moves in there.items():
            (on_device or {})[number](partial(_copy_from_device, moves))

    def _moves(self, plan: TargetPlan, payloads: Mapping[int, Sequence[Any]]) -> Iterator[_Move]:
        """Yield what goes where; once, if it goes to tensors that are tied."""
        arrived = {number: ArrivedShards(self._name, payloads[number]) for number in plan.needed}
        written: set[tuple[Any, ...]] = set()
        memory: dict[tuple[str, str], Bytes | None] = {}
        for read, those in zip(plan.reads, plan.runs, strict=True):
            local = self._locals[read.into]
            dtype, data = arrived[read.source].take(read)
            if (read.into, dtype) not in memory:
                memory[read.into, dtype] = _bytes_of(local, dtype)
            if tied := self._tied.get(read.into):
                same = tied, read.source, arrived[read.source].part(read), read.copies
                if same in written:
                    continue
                written.add(same)
            yield _Move(local, memory[read.into, dtype], dtype, data, read, those)

    def _check_tied(self, version: int, moves: Sequence[_Move]) -> None:
        """Make sure that what is tied here gets the same values, also where its publishers have untied it."""
        first: dict[tuple[Any, ...], tuple[_Move, ByteRun]] = {}
        for move in moves if self._tied else ():
            for copy, run in zip(move.read.copies, move.runs, strict=True):
                tied = self._tied.get(move.read.into)
                if tied is None or is_tensor(move.data):
                    continue
                there = first.setdefault((tied, move.dtype, copy.target_start, copy.shape), (move, run))
                if there[0] is not move and not np.array_equal(_source_of(*there), _source_of(move, run)):
                    keys = f"'{there[0].read.into}' and '{move.read.into}'"
                    problem = (
                        f"{keys} are one tensor in the destination, and are published with different values"
                    )
                    raise WeightsMismatch(self._name, version, unfit=(problem,))

    def _find_tied(self) -> dict[str, tuple[Any, ...]]:
        """Return where the tensors lie that others are tied to."""
        keys: dict[tuple[Any, ...], list[str]] = {}
        for key, _, part in self._described:
            local = self._locals[key]
            if is_tensor(local) and local.numel():
                keys.setdefault((local.data_ptr(), local.stride(), local.dtype, part), []).append(key)
        return {key: memory for memory, those in keys.items() if len(those) > 1 for key in those}


def runs_of(
    sources: Sources, reads: Sequence[TensorRead], shapes: Mapping[str, Index]
) -> tuple[tuple[ByteRun, ...], ...]:
    """Return the bytes of what is read, into local tensors of these shapes."""
    sizes = [item_size(sources.dtypes[sources.indices[read.key]]) for read in reads]
    return tuple(
        tuple(_runs(copy, read.source_shape, shapes[read.into], size) for copy in read.copies)
        for read, size in zip(reads, sizes, strict=True)
    )


def _why_unwritable(tensors: Mapping[str, Any]) -> dict[str, str]:
    """Return why tensors of a reader cannot be written to, by the keys of those that cannot."""
    found = {}
    for key, local in tensors.items():
        if isinstance(local, np.ndarray):
            # Of records only the size is published.
            why = "of records" if local.dtype.names else why_unwritable_array(local)
        elif is_tensor(local):
            why = why_unwritable(sys.modules["torch"], local)
        else:
            found[key] = f"'{key}' is of type {type(local).__qualname__} in the destination"
            continue
        if why:
            found[key] = f"'{key}' cannot be written to in the destination: it is {why}"
    return found


class ArrivedShards:
    """What came from one source."""

    def __init__(self, name: str, frames: Sequence[Any]) -> None:
        self._name = name
        self._frames = frames
        self._rows = {row.key: row for row in decode_rows(frames[0])}

    def part(self, read: TensorRead) -> int:
        """Return where it is; several keys are in one place if what was published is tied."""
        return self._rows[read.key].part

    def take(self, read: TensorRead) -> tuple[str, Any]:
        """Return the dtype and the bytes of a tensor: a tensor if they are on a device, else an array."""
        row = self._rows.get(read.key) or TensorEntry(read.key, "none", (), NO_PART)
        data = b"" if row.part == NO_PART else self._frames[1 + row.part]
        num_bytes = math.prod(read.source_shape) * item_size(row.dtype)
        if row.shape != read.source_shape or len(data) != num_bytes:
            raise WeightsError(
                self._name,
                f"{len(data)} bytes of '{read.key}' have come, {row.dtype} {row.shape}, where its publisher has said "
                f"that it has {read.source_shape}",
            )
        return row.dtype, data if is_tensor(data) else np.frombuffer(data, np.uint8)


class _Move(NamedTuple):
    """Bytes that have come, and where they go.

    Attributes:
        memory: the bytes of the reader's tensor, if what has come goes there as it is.
        data: what has come: uint8, an array, or a tensor on a device.
    """

    local: Any
    memory: Bytes | None
    dtype: str
    data: Any
    read: TensorRead
    runs: tuple[ByteRun, ...]

    def split(self, copies: list[Copy], others: list[Callable[[], None]]) -> None:
        """Note the copies of bytes that lie together, and all other ones."""
        if self.memory is None:
            values = self._values()
            others += [partial(_copy_values, self.local, values, copy) for copy in self.read.copies]
            return
        copies += [copy_of(run, self.memory, self.data) for run in self.runs]

    def _values(self) -> Any:
        """Return what has come as values that numpy or torch can convert to those of the reader."""
        if is_tensor(self.local):
            return as_tensor(self.dtype, self.data, self.read.source_shape)
        dtype = _in_numpy(self.dtype)
        if dtype is not None:
            return self.data.view(dtype).reshape(self.read.source_shape)
        tensor = as_tensor(self.dtype, self.data, self.read.source_shape)
        return (tensor.float() if tensor.element_size() <= 2 else tensor.double()).numpy()

    def on_device(self) -> None:
        """Copy what lies on a device into a tensor."""
        source = self.data.view(getattr(sys.modules["torch"], self.dtype)).reshape(self.read.source_shape)
        for copy in self.read.copies:
            _copy_values(self.local, source, copy, non_blocking=True)


def copy_of(run: ByteRun, target: Bytes, source: Bytes) -> Copy:
    """Return the copy of a run from one local tensor's bytes to another's."""
    target, source = target[run.target_offset :], source[run.source_offset :]
    if not run.counts:
        return target[: run.num_bytes], source[: run.num_bytes]
    shape = (*run.counts, run.num_bytes)
    return (
        np.ndarray(shape, np.uint8, target, strides=(*run.target_strides, 1)),
        np.ndarray(shape, np.uint8, source, strides=(*run.source_strides, 1)),
    )


def _source_of(move: _Move, run: ByteRun) -> Bytes:
    return copy_of(run._replace(target_offset=0, target_strides=run.source_strides), move.data, move.data)[1]


def _copy_from_device(moves: Sequence[_Move]) -> None:
    copies: list[Copy] = []
    others: list[Callable[[], None]] = []
    for move in moves:
        if isinstance(move.local, np.ndarray):
            move._replace(data=move.data.cpu().numpy()).split(copies, others)
        else:
            move.on_device()
    copy_all(copies)
    for copy in others:
        copy()


def _copy_values(local: Any, values: Any, copy: BoxCopy, **options: Any) -> None:
    """Copy a box; `values` are a tensor if `local` is one, and else an array."""
    target = local.detach() if is_tensor(local) else local
    target, source = (
        target[_within(copy.target_start, copy.shape)],
        values[_within(copy.source_start, copy.shape)],
    )
    if isinstance(local, np.ndarray):
        np.copyto(target, source, casting="same_kind")
    else:
        torch = sys.modules["torch"]
        copy_into(torch, *_as_bits(torch, target, source), **options)


def _within(start: Index, shape: Index) -> tuple[Any, ...]:
    return (*(slice(a, a + b) for a, b in zip(start, shape, strict=True)), ...)


def _bytes_of(local: Any, dtype: str) -> Bytes | None:
    """Return the memory of a tensor or array as bytes, if what is of a dtype goes there as it is."""
    if isinstance(local, np.ndarray):
        plain = local.flags.c_contiguous and local.dtype == _in_numpy(dtype)
        return np.asarray(local).reshape(-1).view(np.uint8) if plain else None
    if _name_of(local.dtype) != (dtype if of_torch(dtype) else np.dtype(dtype).name):
        return None
    if not local.is_cpu or not local.is_contiguous() or local.is_conj() or local.is_neg():
        return None
    # Bytes: torch's own copy has threads that wait by spinning, and readers are many on a machine.
    torch = sys.modules["torch"]
    # One element counts as contiguous whatever its stride is.
    flat: Bytes = local.detach().as_strided((local.numel(),), (1,)).view(torch.uint8).numpy()
    return flat


def _unfit(
    sources: Sources, manifest: Manifest, origins: Mapping[str, Sequence[Rows]]
) -> Iterator[tuple[str, str]]:
    """Yield which tensors of a reader are of another shape, or of a dtype that what is published does not go into."""
    for key, into, shape in manifest.rows():
        for row in origins[key]:
            index = sources.indices[row.key]
            dtype = sources.dtypes[index]
            if row == Rows(key) and sources.shapes[index] != shape:
                yield key, f"'{key}' has shape {sources.shapes[index]}, and {shape} in the destination"
            elif not _fits(dtype, into):
                yield key, f"'{row.key}' is {_shown(dtype)}, which does not go into {_shown(into)}"


@lru_cache(maxsize=256)
def _fits(published: str, into: str) -> bool:
    """Whether what is of a dtype can be written into another one."""
    if published == into:
        return True  # bits
    if of_torch(into):
        return _fits_tensor(published, into)
    dtype = _in_numpy(published)
    if dtype is not None:
        return np.can_cast(dtype, np.dtype(into), "same_kind")
    # Of the others of torch these become any float.
    return np.dtype(into).kind == "f" and published.startswith(("bfloat16", "float8_"))


def _fits_tensor(published: str, into: str) -> bool:
    """Whether torch here writes what is of a dtype, of its own or of numpy's, into a tensor of another one."""
    torch = _torch()
    try:
        source = as_tensor(published, np.zeros(item_size(published), np.uint8), (1,))
        target = torch.empty(1, dtype=getattr(torch, into))
        if source.dtype.is_complex and not target.dtype.is_complex:
            return False
        copy_into(torch, *_as_bits(torch, target, source))
    except (AttributeError, TypeError, RuntimeError):
        return False
    return True


def of_torch(dtype: str) -> bool:
    """Whether it is a dtype of a tensor, not of an array."""
    return dtype[0] not in _NUMPY_MARKS


@lru_cache(maxsize=256)
def _in_numpy(dtype: str) -> np.dtype[Any] | None:
    """Return a dtype in numpy, which does not know all of torch's."""
    return np.dtype(dtype) if not of_torch(dtype) or dtype in KNOWN_TO_NUMPY else None


def _shown(dtype: str) -> str:
    return str(_in_numpy(dtype) or dtype)


@lru_cache(maxsize=256)
def _name_of(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _torch() -> Any:
    return sys.modules.get("torch") or import_module("torch")


def as_tensor(dtype: str, data: np.ndarray[Any, Any], shape: Index) -> Any:
    """Return a tensor in memory that has its bytes; `dtype` may be one of numpy."""
    torch = _torch()
    if of_torch(dtype):
        return torch.from_numpy(data).view(getattr(torch, dtype)).reshape(shape)
    return torch.from_numpy(data.view(dtype).reshape(shape))


def _as_bits(torch: Any, target: Any, source: Any) -> tuple[Any, Any]:
    """The two as what torch copies in any case: bits, where they are of one dtype."""
    if target.dtype != source.dtype or target.is_complex() or target.is_neg():
        return target, source
    bits = getattr(torch, BITS[target.element_size()])
    return target.detach().view(bits), source.view(bits)
