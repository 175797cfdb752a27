"""Objects to bytes and back: pickle protocol 5, with tensors and arrays beside it.

    head    u8 format; then for a pickle: u32 length of the tensor table, the table (msgpack), the pickle
    buffers the memory of arrays and tensors, one buffer each; views of one tensor storage share one

Only what comes from an authenticated process of the cluster may be decoded: pickle runs code.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlinf.scheduler.comm.framing import Buffer
from rlinf.scheduler.comm.sources import Bytes, Part, Source, copied, write_parts
from rlinf.scheduler.comm.tensors import TensorReader, TensorTable
from rlinf.scheduler.errors import CodecError

_PICKLE = 0
_BYTES = 1
_BYTEARRAY = 2
_FORMAT = (b"\0", b"\1", b"\2")

# A smaller array costs more as a buffer of its own than as a copy within the pickle.
IN_BAND_BYTES = 256
# A larger `bytes` travels as a buffer.
PLAIN_BYTES = 1024
_MAIN_MODULES = ("__main__", "__mp_main__")


class Encoded:
    """An object as bytes, in frames: the head, which is small and describes it, and then its memory.

    Attributes:
        head: the first frame.
        sizes: how many bytes each frame has, the head first.
    """

    __slots__ = ("_parts", "head", "sizes")

    def __init__(self, head: bytes, parts: Sequence[Part] = ()) -> None:
        self.head = head
        self._parts = parts
        self.sizes = [len(head), *map(len, parts)]

    @property
    def size_bytes(self) -> int:
        """Bytes in all."""
        return sum(self.sizes)

    @property
    def buffers(self) -> list[Buffer]:
        """The frames after the head."""
        return self.frames()[1:]

    def frames(self) -> list[Buffer]:
        """The frames, each one stretch of memory that changes with the object.

        What has gaps or lies on a device is copied by the first call, nothing else is copied.
        """
        parts = [part.contiguous() if isinstance(part, Source) else part for part in self._parts]
        self._parts = parts
        return [self.head, *parts]

    def write_into(self, target: Bytes, offsets: Sequence[int]) -> None:
        """Copy every frame to its place, each byte once; other threads run while large ones are copied.

        Args:
            target: writable memory, one-dimensional.
            offsets: where each frame begins in it, the head's first.

        Raises:
            ValueError: there is not one offset for each frame, or a frame does not fit.
        """
        write_parts([self.head, *self._parts], target, offsets)

    def detached(self) -> Encoded:
        """The same, sharing no memory with the object."""
        return Encoded(self.head, [copied(part) for part in self._parts])


def encode(obj: object) -> Encoded:
    """`obj` as bytes.

    Arrays of numpy and tensors of torch (of every dtype) are not copied unless they lie in memory with gaps,
    or on a GPU. Classes and functions of the user's script, and those that have no importable name, are sent
    by value.

    Raises:
        CodecError: something in it cannot be pickled.
    """
    kind = type(obj)
    if (kind is bytes or kind is bytearray) and len(obj) > PLAIN_BYTES:  # type: ignore[arg-type]
        return Encoded(_FORMAT[_BYTES if kind is bytes else _BYTEARRAY], [obj])  # type: ignore[list-item]
    try:
        return _encode_with(_Pickler, obj)
    except _ByValueNeeded:
        pass
    except (pickle.PicklingError, AttributeError, TypeError, RecursionError):
        # No importable name, most often. If by value does not work either, its error is the one to show.
        pass
    try:
        return _encode_with(_by_value_pickler(), obj)
    except Exception as error:
        raise CodecError(f"{kind.__module__}.{kind.__qualname__} cannot be sent: {error}") from error


def decode(head: Buffer, buffers: Sequence[Buffer]) -> Any:
    """The object that `encode` was given.

    Arrays and tensors lie in `buffers`, which the object then owns, and are writable.

    Raises:
        CodecError: the bytes are no object, or its class cannot be had here.
    """
    try:
        view = memoryview(head)
        form = view[0]
        if form == _BYTES:
            return buffers[0] if type(buffers[0]) is bytes else bytes(buffers[0])
        if form == _BYTEARRAY:
            return bytearray(buffers[0])
        table_end = 5 + int.from_bytes(view[1:5], "little")
        if table_end == 5:
            return pickle.loads(view[5:], buffers=buffers)
        tensors = TensorReader(view[5:table_end], buffers)
        return _TensorUnpickler(view[table_end:], buffers[tensors.num_buffers :], tensors).load()
    except Exception as error:
        raise CodecError(f"the bytes received cannot be decoded: {type(error).__name__}: {error}") from error


class _ByValueNeeded(Exception):
    """A class or function of the user's script: the receiver's `__main__` is another."""


class _ArrayReducer:
    """What both picklers do with arrays and tensors."""

    tensors: TensorTable
    by_reference = True

    def reduce(self, obj: Any) -> Any:
        if type(obj) is np.ndarray:
            return _reduce_array(obj)
        if self.tensors.knows(obj):
            index = self.tensors.add(obj)
            return NotImplemented if index is None else (_tensor, (index,))
        if (
            self.by_reference
            and getattr(obj, "__module__", None) in _MAIN_MODULES
            and hasattr(obj, "__qualname__")
        ):
            raise _ByValueNeeded
        return NotImplemented


class _Pickler(_ArrayReducer, pickle.Pickler):
    def __init__(
        self, file: io.BytesIO, keep: Callable[[pickle.PickleBuffer], Any], tensors: TensorTable
    ) -> None:
        super().__init__(file, protocol=5, buffer_callback=keep)
        self.tensors = tensors

    def reducer_override(self, obj: Any) -> Any:
        return self.reduce(obj)


def _by_value_pickler() -> type[Any]:
    """Cloudpickle's pickler with our arrays; loaded on first need, it costs 20 ms."""
    global _by_value
    if _by_value is None:
        import cloudpickle  # noqa: PLC0415 - see above

        class ByValuePickler(_ArrayReducer, cloudpickle.Pickler):  # type: ignore[misc]
            by_reference = False

            def __init__(
                self, file: io.BytesIO, keep: Callable[[pickle.PickleBuffer], Any], tensors: TensorTable
            ) -> None:
                super().__init__(file, protocol=5, buffer_callback=keep)
                self.tensors = tensors

            def reducer_override(self, obj: Any) -> Any:
                reduced = self.reduce(obj)
                return super().reducer_override(obj) if reduced is NotImplemented else reduced

        _by_value = ByValuePickler
    return _by_value


_by_value: type[Any] | None = None


def _encode_with(pickler: Callable[..., Any], obj: object) -> Encoded:
    file = io.BytesIO()
    buffers: list[Buffer] = []
    tensors = TensorTable(sys.modules.get("torch"))

    def keep(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        # What is in the pickle comes back read-only if it was; only a buffer of its own is always writable.
        if raw.nbytes < IN_BAND_BYTES and not raw.readonly:
            return True
        buffers.append(raw)
        return False

    file.write(b"\0\0\0\0\0")
    pickler(file, keep, tensors).dump(obj)
    if not tensors:
        return Encoded(file.getvalue(), buffers)
    table, storages = tensors.finish()
    body = file.getbuffer()[5:]
    head = b"".join((_FORMAT[_PICKLE], len(table).to_bytes(4, "little"), table, body))
    return Encoded(head, [*storages, *buffers])


class _TensorUnpickler(pickle.Unpickler):
    def __init__(self, data: memoryview, buffers: Sequence[Buffer], tensors: TensorReader) -> None:
        super().__init__(io.BytesIO(data), buffers=buffers)
        self._tensors = tensors

    def find_class(self, module: str, name: str) -> Any:
        if name == "_tensor" and module == __name__:
            return self._tensors.get
        return super().find_class(module, name)


def _tensor(index: int) -> Any:
    """Stands in a pickle for the tensor at `index` of its table; the unpickler puts the real one there."""
    raise CodecError(f"tensor {index} stands outside of its message")


def _reduce_array(array: np.ndarray[Any, Any]) -> Any:
    if array.dtype.hasobject or array.dtype.kind in "Mm" or array.dtype.fields is not None:
        # Objects have no bytes to send; dates and records do not export a buffer.
        return NotImplemented
    order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    packed = array.T if order == "F" else np.ascontiguousarray(array)
    return _rebuild_array, (pickle.PickleBuffer(packed.data), array.dtype.str, array.shape, order)


def _rebuild_array(buffer: Any, dtype: str, shape: tuple[int, ...], order: str) -> np.ndarray[Any, Any]:
    flat = (
        np.frombuffer(buffer, dtype=np.dtype(dtype))
        if len(memoryview(buffer))
        else np.empty(0, np.dtype(dtype))
    )
    array = flat if flat.flags.writeable else flat.copy()
    return array.reshape(shape, order="F" if order == "F" else "C")
