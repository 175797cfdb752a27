"""The recording of a rank, as it is read: who it was, which calls it ran, and what came to each of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from rlinf_scheduler.comm.codec import decode
from rlinf_scheduler.comm.codec.moved import loads_of_any_version
from rlinf_scheduler.comm.failure import load_failure
from rlinf_scheduler.errors import CommError, RecordingError
from rlinf_scheduler.tape.entries import (
    Began,
    CallBegan,
    CallEnded,
    Factory,
    Noted,
    RankEntry,
    Stopped,
    decode_entry,
)
from rlinf_scheduler.tape.files import TapePlace, TapeReader
from rlinf_scheduler.tape.tape import CONSTRUCTING

SUFFIX = ".rec"


@dataclass(eq=False, slots=True)
class RecordedCall:
    """A call that was recorded.

    Attributes:
        began: what is known of it.
        place: where its arguments lie.
        ended: how it ended; None if it had not.
    """

    began: CallBegan
    place: TapePlace
    ended: CallEnded | None = None


@dataclass(eq=False, slots=True)
class RecordedOperation:
    """An operation that was recorded, and where that lies."""

    noted: Noted
    place: TapePlace


@dataclass(slots=True)
class _Worker:
    """What a worker was made from, and where that lies."""

    factory: Factory
    place: TapePlace


# Of one call, or thread: what each kind and subject has, by number.
Operations: TypeAlias = dict[tuple[str, str], dict[int, RecordedOperation]]


class RecordedRank:
    """A rank's recording.

    Args:
        path: the file; or the folder that the launch was given, with `rank`.
        rank: which rank, `group:rank`; not needed where there is one rank's recording.

    Attributes:
        began: who it was.
        calls: what it ran, in the order in which that began; `__init__` first.
        notes: what is missing, in words.

    Raises:
        RecordingError: there is none, or it is damaged.
    """

    def __init__(self, path: str | os.PathLike[str], rank: str = "") -> None:
        self.path = _file_of(os.fspath(path), rank)
        self.calls: list[RecordedCall] = []
        self.notes: list[str] = []
        self._lanes: dict[str, Operations] = {}
        self._by_lane: dict[str, RecordedCall] = {}
        self._worker: _Worker | None = None
        self._reader = TapeReader(self.path)
        try:
            self.began = self._read(rank)
        except BaseException:
            self._reader.close()
            raise

    def _read(self, rank: str) -> Began:
        began: Began | None = None
        for place, frames in self._reader:
            entry = self._entry(frames)
            if isinstance(entry, Began):
                began = entry
                self._place_of_rank = place
            else:
                self._add(entry, place)
        if began is None:
            raise RecordingError(self.path, "it does not say whose it is: nothing but that was begun")
        address = f"{began.group}:{began.rank}"
        if rank and rank != address:
            raise RecordingError(self.path, f"it is of {address}, not of {rank}")
        if self._reader.cut_bytes:
            cut = f"its last {self._reader.cut_bytes} bytes are left out: that record was not whole when the rank died"
            self.notes.append(cut)
        return began

    @property
    def address(self) -> str:
        """Whose it is, `group:rank`."""
        return f"{self.began.group}:{self.began.rank}"

    def place_in_cluster(self) -> tuple[Any, Sequence[Any], memoryview]:
        """Its `Placement`, its hardware, and the topology, packed."""
        _, place, topology = self._reader.load(self._place_of_rank)
        placement, hardware = loads_of_any_version(place)
        return placement, hardware, topology

    @property
    def class_name(self) -> str:
        """Its worker's class, `module:name`; "" if it was not known yet."""
        return "" if self._worker is None else self._worker.factory.worker_class

    def worker_class(self) -> Any:
        """Its worker's class.

        Raises:
            CodecError: it cannot be had here.
        """
        head, *buffers = self._made_from()[0]
        return decode(head, buffers)

    def worker_arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What its worker was made with."""
        head, *buffers = self._made_from()[1]
        arguments: tuple[tuple[Any, ...], dict[str, Any]] = decode(head, buffers)
        return arguments

    def arguments(self, call: RecordedCall) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What a call was made with."""
        frames = self._frames(call.place)
        if not frames:
            return (), {}
        arguments: tuple[tuple[Any, ...], dict[str, Any]] = decode(frames[0], frames[1:])
        return arguments

    def operations(self, lane: str) -> Operations:
        """What was noted in a lane, by operation and subject, and by number."""
        return self._lanes.get(lane, {})

    def brought(self, operation: RecordedOperation) -> tuple[Any, list[bytearray]]:
        """What is said of what an operation brought, and its bytes.

        Raises:
            BaseException: what it had raised.
        """
        about, *frames = self._frames(operation.place)
        if operation.noted.failed:
            failure = load_failure(about)
            raise failure.load() or CommError(failure.text)
        return (loads_of_any_version(about) if about else None), frames

    def close(self) -> None:
        """Close the file."""
        self._reader.close()

    def _made_from(self) -> tuple[list[bytearray], list[bytearray]]:
        if self._worker is None:
            raise RecordingError(self.path, "the rank had not imported its class when the recording ended")
        frames, num = self._frames(self._worker.place), self._worker.factory.num_class_frames
        return frames[:num], frames[num:]

    def _frames(self, place: TapePlace) -> list[bytearray]:
        # Each in memory of its own, as arrays expect it, which may be written to.
        return [bytearray(frame) for frame in self._reader.load(place)[1:]]

    def _entry(self, frames: Sequence[memoryview]) -> RankEntry:
        try:
            entry: RankEntry = decode_entry(frames[0])
        except msgspec.MsgspecError as error:
            raise RecordingError(self.path, f"it is no recording of a rank: {error}") from error
        return entry

    def _add(self, entry: RankEntry, place: TapePlace) -> None:
        match entry:
            case Factory():
                self._worker = _Worker(entry, place)
            case CallBegan():
                self._by_lane[entry.lane] = call = RecordedCall(entry, place)
                self.calls.append(call)
            case CallEnded():
                self._by_lane[entry.lane].ended = entry
            case Noted():
                lane = self._lanes.setdefault(entry.lane, {})
                numbered = lane.setdefault((entry.operation, entry.subject), {})
                numbered[entry.place] = RecordedOperation(entry, place)
            case Stopped():
                self.notes.append(f"it was ended before the rank was: {entry.reason}")


def describe_call(began: CallBegan) -> str:
    """A call, for messages."""
    return CONSTRUCTING if began.lane == CONSTRUCTING else f"call {began.lane}, {began.method}()"


def _file_of(path: str, rank: str) -> str:
    if not os.path.isdir(path):
        return path
    names = sorted(
        name for name in os.listdir(path) if name.endswith(SUFFIX) and _is_of_a_rank(os.path.join(path, name))
    )
    group, _, number = rank.rpartition(":")
    wanted = f"{group.translate(str.maketrans('/:', '+-'))}-{number}"
    fitting = [
        name for name in names if not rank or name == f"{wanted}{SUFFIX}" or name.startswith(f"{wanted}.")
    ]
    if len(fitting) == 1:
        return os.path.join(path, fitting[0])
    if not fitting:
        there = f"there are {', '.join(names)}" if names else "there is none of any rank"
        raise RecordingError(path, f"there is no recording of {rank or 'a rank'} in this folder; {there}")
    choice = "one for each process that the rank had" if rank else "say which rank"
    raise RecordingError(path, f"there are {', '.join(fitting)}: {choice}; name one of these files")


def _is_of_a_rank(path: str) -> bool:
    """Whether a recording is a rank's, and no channel's; one of which that cannot be read may be."""
    try:
        with closing(TapeReader(path)) as reader:
            for _, frames in reader:
                return isinstance(decode_entry(frames[0]), Began)
    except msgspec.MsgspecError:
        return False
    except RecordingError:  # what is wrong is said when it is opened
        pass
    return True
