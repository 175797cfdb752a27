"""What a durable channel knows, as bytes: written whole now and then, so that its journal does not grow for ever.

The objects of `queueing` are written as they are, by pickle, and items' bytes beside them. A pickle may name whatever
it likes; nothing but these objects is made when it is read.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any

import msgspec

from rlinf.scheduler.channel.journaled import Saying
from rlinf.scheduler.channel.server import ServerImage
from rlinf.scheduler.comm.framing import Buffer
from rlinf.scheduler.queueing import ServerStreams
from rlinf.scheduler.queueing.leases import Leases

# Of these modules the classes that are defined there: they are plain state, and to make one does nothing else.
_PLAIN = ("rlinf.scheduler.queueing.", "rlinf.scheduler.channel.wire", "rlinf.scheduler.channel.durable_wire")
# Of all others only these.
_NAMED = {
    (__name__, "ChannelImage"),
    (__name__, "_method"),
    ("rlinf.scheduler.channel.journaled", "Saying"),
    ("rlinf.scheduler.channel.server", "ServerImage"),
    ("rlinf.scheduler.comm.endpoint", "Endpoint"),
    ("rlinf.scheduler.comm.shm.parcel", "Arrived"),
    ("collections", "Counter"),
    ("collections", "OrderedDict"),
    ("collections", "defaultdict"),
    ("collections", "deque"),
    ("fractions", "Fraction"),
    ("builtins", "set"),
    ("builtins", "frozenset"),
}
# What objects of `queueing` keep of each other besides state: a method of its owner.
_METHODS = {(Leases, "next_number")}


@dataclass(frozen=True, slots=True)
class ChannelImage:
    """All that there is of a durable channel, between two turns.

    Attributes:
        server: what its server knows.
        streams: what clients have said and are told.
        names: of the clients.
        lines: which of its lines each of them uses.
        epoch: of the process that wrote it.
        job: in which that was.
        now: by the channel's clock.
        timers: what is to be called, and when.
    """

    server: ServerImage
    streams: ServerStreams[Saying]
    names: dict[str, str]
    lines: dict[str, str]
    epoch: int
    job: str
    now: float
    timers: list[tuple[tuple[Any, ...], float]]

    def write(self) -> tuple[bytes, list[Buffer]]:
        """It as bytes; the frames are not copied, and must not change until they are written.

        Raises:
            UnpicklingError: it could not be read again.
        """
        file = io.BytesIO()
        pickler = _ImagePickler(file, protocol=5)
        pickler.dump(self)
        pickled = file.getvalue()
        # It is about to take the place of what led to it.
        _Unpickler(io.BytesIO(pickled), pickler.frames).load()
        return msgspec.msgpack.encode((pickled, [len(frame) for frame in pickler.frames])), pickler.frames

    @classmethod
    def read(cls, head: bytes, frames: memoryview) -> ChannelImage:
        """What `write` wrote.

        Raises:
            ValueError: it is none.
        """
        pickled, sizes = msgspec.msgpack.decode(head, type=tuple[bytes, list[int]])
        pieces: list[Buffer] = []
        position = 0
        for size in sizes:
            pieces.append(bytearray(frames[position : position + size]))
            position += size
        try:
            image = _Unpickler(io.BytesIO(pickled), pieces).load()
        except Exception as error:  # a file has said what is made here, and how
            message = f"it was written by another version of this library: {error}"
            raise ValueError(message) from error
        if not isinstance(image, cls):
            message = "it is no image of a channel"
            raise ValueError(message)  # noqa: TRY004 - what it is, a file has said
        return image


class _ImagePickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, protocol: int) -> None:
        super().__init__(file, protocol)
        self.frames: list[Buffer] = []
        self._places: dict[int, int] = {}

    def persistent_id(self, what: Any) -> int | None:
        if type(what) is not bytearray and type(what) is not memoryview:
            return None
        place = self._places.setdefault(id(what), len(self.frames))
        if place == len(self.frames):
            self.frames.append(what)
        return place

    def reducer_override(self, what: Any) -> Any:
        """A method of an object is written by its name."""
        if isinstance(what, MethodType):
            return _method, (what.__self__, what.__name__)
        return NotImplemented


def _method(owner: Any, name: str) -> Any:
    if (type(owner), name) not in _METHODS:
        message = f"it names a method of {type(owner).__module__}.{type(owner).__qualname__}: {name}"
        raise pickle.UnpicklingError(message)
    return getattr(owner, name)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, frames: Sequence[Buffer]) -> None:
        super().__init__(file)
        self._frames = frames

    def persistent_load(self, place: Any) -> Buffer:
        frame: Buffer = self._frames[place]
        return frame

    def find_class(self, module: str, name: str) -> Any:
        """Nothing but a class that is listed, or one that a module of plain state defines: no name leads elsewhere."""
        if (module, name) in _NAMED or _is_plain(module, name):
            return super().find_class(module, name)
        message = f"it names {module}.{name}"
        raise pickle.UnpicklingError(message)


def _is_plain(module: str, name: str) -> bool:
    """Whether it is a class of plain state; whatever holds some was imported long ago."""
    if not module.startswith(_PLAIN):
        return False
    found = vars(sys.modules.get(module, object)).get(name)
    return isinstance(found, type) and found.__module__ == module
