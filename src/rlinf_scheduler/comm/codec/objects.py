"""Objects to bytes and back: pickle protocol 5, with the memory of arrays and tensors beside it.

    head    u8 format, then
      0       the pickle; there are no buffers
      1, 2    nothing: the one buffer is a `bytes`, a `bytearray`
      3       u32 checksum of what follows, u32 length of the table, the table, the pickle
      4       u32 checksum of the table, u32 its length; table and pickle are the last buffer, for they are large
      5       a small `bytes`, as it is
    table   msgpack of [for each buffer that the pickle asks for, its number, or ~number of a tensor], [tensors];
            empty if there are no tensors: then the buffers are those that the pickle asks for, in its order

A wrong byte in what rebuilds an array can end the process, which would tell nobody what went wrong: hence the
checksum, which costs a third of a microsecond. A large pickle goes without, it would cost as much as reading it.

Only what comes from an authenticated process of the cluster may be decoded: pickle runs code.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from itertools import count
from types import FunctionType, MemberDescriptorType, NoneType
from typing import Any, NamedTuple
from zlib import crc32

import msgspec
import numpy as np

from rlinf_scheduler.comm.codec.arrays import MARK, layout_of, memory_of, reduce_array, reduce_subclass
from rlinf_scheduler.comm.codec.interruptions import raised_by_signal_handler
from rlinf_scheduler.comm.codec.moved import loads_of_any_version
from rlinf_scheduler.comm.codec.sources import BytePart, ByteSource, Pieces, copied, write_parts
from rlinf_scheduler.comm.codec.tensor_reader import TensorReader, dressed, quantised, same
from rlinf_scheduler.comm.codec.tensors import TensorRow, TensorTable, quantisation
from rlinf_scheduler.comm.framing import Buffer, Bytes, object_bytes
from rlinf_scheduler.errors import CodecError

_PICKLE = 0
_BYTES = 1
_BYTEARRAY = 2
_TABLE = 3
_APART = 4
_SMALL = 5
# Where the table begins.
_BODY = 9
_FORMAT = (b"\0", b"\1", b"\2", b"\3", b"\4", b"\5")

# Larger `bytes` travel as a buffer, if they are the object itself.
PLAIN_BYTES = 1024
# A larger pickle is a buffer, in which what is large is copied once; a smaller one is part of the head.
HEAD_BYTES = 64 << 10
_MAIN_MODULES = ("__main__", "__mp_main__")
_SCALARS = frozenset((int, float, bool, NoneType))
_TEXTS = frozenset((str, bytearray))


class Encoded:
    """An object as bytes, in frames: the head, which is small and describes it, and then its memory.

    Attributes:
        head: the first frame.
        parts: where the others come from.
        size_bytes: how many bytes it has in all frames together.
    """

    __slots__ = ("head", "parts", "size_bytes")

    def __init__(self, head: bytes, parts: Sequence[BytePart] = ()) -> None:
        self.head = head
        self.parts = parts
        self.size_bytes = len(head) + sum(map(len, parts)) if parts else len(head)

    @property
    def object_bytes(self) -> int:
        """How large its object is for whoever bounds how much there may be (see `framing.object_bytes`)."""
        return object_bytes(len(self.head), self.size_bytes - len(self.head))

    @property
    def sizes(self) -> list[int]:
        """How many bytes each frame has, the head first."""
        return [len(self.head), *map(len, self.parts)]

    @property
    def buffers(self) -> list[Buffer]:
        """The frames after the head."""
        return self.frames()[1:]

    def frames(self) -> list[Buffer]:
        """The frames, each one stretch of memory that changes with the object.

        What has gaps or lies on a device is copied by the first call, nothing else is copied.
        """
        if not self.parts:
            return [self.head]
        parts = [part.contiguous() if isinstance(part, ByteSource) else part for part in self.parts]
        self.parts = parts
        return [self.head, *parts]

    def write_into(self, target: Bytes, offsets: Sequence[int]) -> None:
        """Copy every frame to its place, each byte once; other threads run while large ones are copied.

        Args:
            target: writable memory, one-dimensional.
            offsets: where each frame begins in it, the head's first.

        Raises:
            ValueError: there is not one offset for each frame, or a frame does not fit.
        """
        write_parts([self.head, *self.parts], target, offsets)

    def snapshot(self) -> list[Buffer]:
        """The frames, sharing no memory with the object."""
        return [self.head, *map(copied, self.parts)] if self.parts else [self.head]


def encode(obj: object, device_of: Callable[[Any], str] | None = None) -> Encoded:
    """`obj` as bytes.

    Arrays of numpy and tensors of torch (of every dtype) are not copied unless they lie in memory with gaps,
    or on a GPU. Classes and functions of the user's script, and those that have no importable name, are sent
    by value.

    Args:
        obj: any picklable object.
        device_of: says which tensors are on a device that processes share: these stay parts of their own, whatever they
            are.

    Raises:
        CodecError: something in it cannot be pickled.
    """
    kind = type(obj)
    if kind in _SCALARS or (kind in _TEXTS and len(obj) <= PLAIN_BYTES):  # type: ignore[arg-type]
        return Encoded(_FORMAT[_PICKLE] + pickle.dumps(obj, 5))
    if kind is bytes and len(obj) <= PLAIN_BYTES:  # type: ignore[arg-type]
        return Encoded(_FORMAT[_SMALL] + obj)  # type: ignore[operator]
    if kind is bytes or kind is bytearray:
        return Encoded(_FORMAT[_BYTES if kind is bytes else _BYTEARRAY], [obj])  # type: ignore[list-item]
    if kind is np.ndarray and (layout := layout_of(obj)) is not None:  # type: ignore[arg-type]
        return Encoded(_head_of(*layout), [memory_of(obj)])  # type: ignore[arg-type]
    try:
        return _encode_with(_Pickler, obj, device_of)
    except Exception as error:
        if raised_by_signal_handler(error):
            raise
    # If by value does not work either, its error is the one to show.
    try:
        return _encode_with(_by_value_pickler(), obj, device_of)
    except Exception as error:
        if raised_by_signal_handler(error):
            raise
        raise CodecError(f"{kind.__module__}.{kind.__qualname__} cannot be sent: {error}") from error


@lru_cache(maxsize=256)
def _head_of(shape: tuple[int, ...], dtype: str) -> bytes:
    """The head of an array whose memory travels beside it."""
    return _encode_with(_Pickler, _Layout(shape, dtype)).head


def decode(
    head: Buffer | Bytes, buffers: Sequence[Buffer | Bytes], on_device: Mapping[int, Any] | None = None
) -> Any:
    """The object that `encode` was given.

    Arrays and tensors are writable and lie in `buffers`. They keep them: an array of bytes itself, or what a
    memoryview is a view of. Memory that cannot be written is copied.

    Args:
        head: the first frame.
        buffers: the others.
        on_device: tensors of bytes, on devices, that stand for some of the buffers, by their places.

    Raises:
        CodecError: the bytes are no object, or its class cannot be had here.
    """
    try:
        view = memoryview(head)  # type: ignore[arg-type]  # arrays of bytes are buffers; typed from 3.12 on
        form = view[0]
        if form == _PICKLE:
            return _loads(view[1:])
        if form == _SMALL:
            return bytes(view[1:])
        if form == _BYTES:
            return buffers[0] if type(buffers[0]) is bytes else bytes(buffers[0])
        if form == _BYTEARRAY:
            return bytearray(buffers[0])
        return _decode_with_table(view, buffers, on_device)
    except Exception as error:
        if raised_by_signal_handler(error):
            raise
        raise CodecError(f"the bytes received cannot be decoded: {type(error).__name__}: {error}") from error


def _decode_with_table(
    head: memoryview, buffers: Sequence[Buffer | Bytes], on_device: Mapping[int, Any] | None
) -> Any:
    if head[0] not in (_TABLE, _APART) or len(head) < _BODY:
        message = f"format {head[0]} is unknown"
        raise CodecError(message)
    table_bytes = int.from_bytes(head[5:_BODY], "little")
    body = checked = head[_BODY:]
    if head[0] == _APART:
        *buffers, last = buffers
        body = memoryview(last)  # type: ignore[arg-type]
        checked = body[:table_bytes]
    if crc32(checked) != int.from_bytes(head[1:5], "little"):
        message = "the checksum is another"
        raise CodecError(message)
    ready = [writable(buffer) for buffer in buffers]
    if not table_bytes:
        return _loads(body, ready)
    order, rows = _read_table(body[:table_bytes])
    tensors = TensorReader(ready, on_device)
    taken = [ready[number] if number >= 0 else tensors.tensor(rows[~number]) for number in order]
    return _loads(body[table_bytes:], taken)


def _loads(data: memoryview, buffers: Sequence[Any] = ()) -> Any:
    try:
        return pickle.loads(data, buffers=buffers)
    except (AttributeError, ImportError) as error:
        if raised_by_signal_handler(error):
            raise
        return loads_of_any_version(data, buffers)


def writable(buffer: Any) -> memoryview:
    """The same memory, which is kept as long as the view is; a copy if it cannot be written."""
    if isinstance(buffer, np.ndarray) and len(buffer):
        # Numpy makes an array on an array keep only what that one keeps, but stops at a view of another kind.
        buffer = np.frombuffer(memoryview(buffer), np.uint8)  # type: ignore[arg-type]
    view = memoryview(buffer)
    if not view.readonly:
        return view
    return np.frombuffer(view, np.uint8).copy().data if view.nbytes else memoryview(bytearray())


_write_table = msgspec.msgpack.Encoder().encode
_read_table = msgspec.msgpack.Decoder(tuple[list[int], list[TensorRow]]).decode


class _ByValueNeeded(Exception):
    """A class or function of the user's script: the receiver's `__main__` is another."""


class _Layout(NamedTuple):
    """Stands for an array of which nothing but this is known: pickle writes the same for it."""

    shape: tuple[int, ...]
    dtype: str


class _Chunks(list[Buffer]):
    """The file that a pickler writes to: it hands over large strings as they are, and those are not copied."""

    write = list.append


class _Reducer:
    """What both picklers do with arrays and tensors."""

    by_reference = True

    def begin(self, asked: list[Any], device_of: Callable[[Any], str] | None) -> None:
        self.asked = asked
        self.device_of = device_of
        # What each mark in the pickle stands for: bytes, or the number of a tensor.
        self.sent: list[BytePart | int] = []
        self.tensors: TensorTable | None = None

    def reduce(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is np.ndarray:
            return reduce_array(obj, self.sent)
        if kind is _Layout:
            self.sent.append(b"")
            return np.ndarray, (*obj, MARK)
        if (
            self.by_reference
            and getattr(obj, "__module__", None) in _MAIN_MODULES
            and hasattr(obj, "__qualname__")
        ):
            raise _ByValueNeeded
        if kind is type or kind is FunctionType:
            return NotImplemented
        if isinstance(obj, np.ndarray):
            return reduce_subclass(obj)
        torch: Any = sys.modules.get("torch")
        if torch is not None and isinstance(obj, getattr(torch, "Tensor", ())):
            return self._reduce_tensor(obj, torch)
        return NotImplemented

    def finish(self) -> tuple[bytes, list[BytePart]]:
        """The table, empty if there are no tensors, and the buffers."""
        sent = self.sent
        if len(self.asked) > len(sent):  # Some are of a class that hands out its memory itself.
            marked = iter(sent)
            sent = [next(marked) if buffer is MARK else buffer.raw() for buffer in self.asked]
        parts = [part for part in sent if not isinstance(part, int)]
        if self.tensors is None:
            return b"", parts
        numbers = count()
        order = [~part if isinstance(part, int) else next(numbers) for part in sent]
        self.tensors.finish(parts)
        return _write_table((order, self.tensors.rows)), parts

    def _reduce_tensor(self, tensor: Any, torch: Any) -> Any:
        if self.tensors is None:
            self.tensors = TensorTable(torch, self.device_of)
        if type(tensor) is torch.Tensor and tensor.is_quantized and not tensor.__dict__:
            self.sent.append(self.tensors.add_storage(tensor))
            return quantised, (MARK, *quantisation(tensor))
        added = self.tensors.add_object(tensor)
        if added is None:
            return NotImplemented
        index, kind, state = added
        self.sent.append(index)
        if kind is torch.Tensor and state is None:
            return same, (MARK,)
        return dressed, (MARK, kind, state)


class _Pickler(_Reducer, pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        return self.reduce(obj)


def _by_value_pickler() -> type[Any]:
    """Cloudpickle's pickler with our arrays; loaded on first need, it costs 20 ms."""
    global _by_value
    if _by_value is None:
        import cloudpickle  # noqa: PLC0415 - see above

        class ByValuePickler(_Reducer, cloudpickle.Pickler):  # type: ignore[misc]
            by_reference = False

            def reducer_override(self, obj: Any) -> Any:
                reduced = self.reduce(obj)
                if reduced is NotImplemented:
                    reduced = super().reducer_override(obj)
                    if isinstance(obj, type) and "__slots__" in vars(obj) and reduced is not NotImplemented:
                        return _made_with_slots(obj, reduced)
                return reduced

        _by_value = ByValuePickler
    return _by_value


_by_value: type[Any] | None = None


def _made_with_slots(cls: type, reduced: tuple[Any, ...]) -> tuple[Any, ...]:
    """What cloudpickle makes of a class, with its slots where the class is made; cloudpickle sets them on it later.

    A class that is made without would give its objects a dict, which the sender's class cannot take back.
    """
    if issubclass(cls, Enum):  # it is made of its members, which have a dict anyway
        return reduced
    make, (kind, name, bases, own, *others), (attributes, slots), *rest = reduced
    special = ("__dict__", "__weakref__")
    names = [key for key, value in vars(cls).items() if type(value) is MemberDescriptorType or key in special]
    kept = {key: value for key, value in attributes.items() if key not in names}
    arguments = (kind, name, bases, {**own, "__slots__": tuple(names)}, *others)
    return make, arguments, (kept, slots), *rest


def _encode_with(
    pickler_type: Callable[..., Any], obj: object, device_of: Callable[[Any], str] | None = None
) -> Encoded:
    chunks = _Chunks()
    asked: list[Any] = []
    pickler = pickler_type(chunks, 5, buffer_callback=asked.append)
    pickler.begin(asked, device_of)
    pickler.dump(obj)
    table, parts = pickler.finish()
    if len(table) + sum(map(len, chunks)) > HEAD_BYTES:
        head = b"".join((_FORMAT[_APART], _u32(crc32(table)), _u32(len(table))))
        return Encoded(head, [*parts, Pieces([table, *chunks])])
    if not parts and not table:
        return Encoded(b"".join((_FORMAT[_PICKLE], *chunks)))
    body = b"".join((table, *chunks))
    return Encoded(b"".join((_FORMAT[_TABLE], _u32(crc32(body)), _u32(len(table)), body)), parts)


def _u32(number: int) -> bytes:
    return number.to_bytes(4, "little")
