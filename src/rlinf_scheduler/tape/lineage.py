"""Which items a training step took, what these were made of, and so on: read from the recordings of channels."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Self

import msgspec

from rlinf_scheduler.comm.codec import decode
from rlinf_scheduler.errors import RecordingError
from rlinf_scheduler.planning.caret import printable
from rlinf_scheduler.queueing.item import ItemId, Trace
from rlinf_scheduler.tape.deliveries import (
    OLDER,
    LeftOut,
    RecordedChannel,
    RecordedDelivery,
    RecordedItem,
    decode_delivery,
)
from rlinf_scheduler.tape.files import TapePlace, TapeReader
from rlinf_scheduler.wording import counted, number_text

SUFFIX = ".rec"
# So much of an item is shown.
SHOWN_CHARS = 60
# A chain that is longer is cut there.
MAX_DEPTH = 50


@dataclass(frozen=True, slots=True)
class TracedItem:
    """An item, and what it was made of.

    Attributes:
        id: which one, `producer/number`; "" of one whose producer is not known.
        process_id: of its producer's process.
        channel: in which channel it was recorded; "" where no recording has it, and so nothing else is known.
        queue: in which of its queues.
        consumer: who took it last.
        version: of the policy that made it; None if nobody said.
        weight: its weight.
        size_bytes: its size.
        made_at_step: at which step it was made; None if nobody said.
        payload: what it is, in short; "" where its bytes were not recorded, or cannot be read here.
        sources: what it was made of.
        num_more_sources: how many more it was made of.
        is_told_above: what it was made of is not told here: of a step that is told once, where it comes first.
    """

    id: str
    process_id: str = ""
    channel: str = ""
    queue: str = ""
    consumer: str = ""
    version: int | None = None
    weight: float = 0
    size_bytes: int = 0
    made_at_step: int | None = None
    payload: str = ""
    sources: tuple[TracedItem, ...] = ()
    num_more_sources: int = 0
    is_told_above: bool = False

    def lines(self, indent: str) -> Iterator[str]:
        """It, and under it what it was made of."""
        yield indent + ", ".join(self._parts()) + (" (see above)" if self.is_told_above else "")
        for source in self.sources:
            yield from source.lines(indent + "  ")
        if self.num_more_sources:
            yield f"{indent}  and {counted(self.num_more_sources, 'further item')}"

    def _parts(self) -> Iterator[str]:
        yield self.id or "an item of an unknown producer"
        if not self.channel:
            yield "of a channel that is not recorded here"
            return
        queue = "" if self.queue == "default" else f" {self.queue}"
        yield f"'{self.channel}'{queue}"
        if self.version is not None:
            yield f"version {self.version}"
        if self.weight:
            yield f"weight {number_text(self.weight)}"
        if self.made_at_step is not None:
            yield f"made at step {self.made_at_step}"
        yield self.payload or f"{self.size_bytes:,} bytes"


@dataclass(frozen=True, slots=True)
class TakenBatch:
    """What a consumer took at once.

    Attributes:
        channel: of which channel.
        queue: of which of its queues.
        consumer: who took it.
        at: when, in seconds since 1970.
        items: what.
    """

    channel: str
    queue: str
    consumer: str
    at: float
    items: tuple[TracedItem, ...]


@dataclass(frozen=True, slots=True)
class StepLineage:
    """What went into a training step; `str()` is a tree.

    Attributes:
        step: which step.
        batches: what was taken at it, in order.
    """

    step: int
    batches: tuple[TakenBatch, ...]

    @property
    def versions(self) -> dict[int | None, int]:
        """How many of the items were made by each version; None: nobody said."""
        return _counts(item.version for batch in self.batches for item in batch.items)

    def to_dict(self) -> dict[str, Any]:
        """All of it, as plain data."""
        versions = [{"version": version, "num_items": number} for version, number in self.versions.items()]
        batches = [asdict(batch) for batch in self.batches]
        return {"step": self.step, "versions": versions, "batches": batches}

    def __str__(self) -> str:
        lines = [f"step {self.step}: {versions_text(self.versions)}"]
        for batch in self.batches:
            when = time.strftime("%H:%M:%S", time.localtime(batch.at))
            what = counted(len(batch.items), "item")
            lines.append(f"  {batch.consumer} took {what} of '{batch.channel}' at {when}")
            for item in batch.items:
                lines.extend(item.lines("    "))
        # Names of channels, queues and ranks are the users' own.
        return "\n".join(map(printable, lines))


def versions_text(versions: dict[int | None, int]) -> str:
    """How many items were made by each version, in words.

    >>> versions_text({7: 2, None: 1})
    '2 items of version 7, 1 item without a version'
    """
    return ", ".join(
        f"{counted(number, 'item')} {'without a version' if version is None else f'of version {version}'}"
        for version, number in versions.items()
    )


def _counts(versions: Iterable[int | None]) -> dict[int | None, int]:
    return dict(sorted(Counter(versions).items(), key=lambda each: (each[0] is None, each[0] or 0)))


@dataclass(eq=False, slots=True)
class _Taken:
    """A delivery, and where it lies."""

    reader: TapeReader
    place: TapePlace
    channel: str
    delivery: RecordedDelivery
    items: list[_Found]


@dataclass(eq=False, slots=True)
class _Found:
    """An item of a delivery, and which of that record's frames are its bytes."""

    taken: _Taken
    item: RecordedItem
    frames: slice


class Recordings:
    """The recordings of channels, read into memory without the items' bytes; a context manager, which closes the files.

        with Recordings(["trajectories.rec", "prompts.rec"]) as recordings:
            print(recordings.step(812))

    Args:
        paths: files of `Channel.record`, and folders, of which all such are read that end with `.rec`.

    Attributes:
        notes: what is missing in them, in words.

    Raises:
        RecordingError: there is none, or one is damaged.
    """

    def __init__(self, paths: Iterable[str | os.PathLike[str]]) -> None:
        self.notes: list[str] = []
        self._readers: list[TapeReader] = []
        # Who took an item last: what was given back, or sent once more, is told of once more.
        self._last: dict[ItemId, _Found] = {}
        self._by_step: dict[int, list[_Taken]] = {}
        try:
            for path, was_named in _files(paths):
                self._read(path, was_named=was_named)
        except BaseException:
            self.close()
            raise

    @property
    def steps(self) -> list[int]:
        """The steps at which something was taken and not given back: those that `step` tells of."""
        return sorted(number for number, taken in self._by_step.items() if any(map(self._kept, taken)))

    def versions(self, number: int) -> dict[int | None, int]:
        """How many of a step's items were made by each version, as of `StepLineage`; nothing else is looked up."""
        return _counts(
            each.item.version for taken in self._by_step.get(number, ()) for each in self._kept(taken)
        )

    def step(self, number: int) -> StepLineage | None:
        """What went into a step; None if nothing is recorded of it."""
        taken = sorted(self._by_step.get(number, ()), key=lambda each: each.delivery.at)
        told: set[_Found] = set()
        batches = tuple(batch for each in taken if (batch := self._batch(each, told)).items)
        return StepLineage(number, batches) if batches else None

    def close(self) -> None:
        """Close the files."""
        for reader in self._readers:
            reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _batch(self, taken: _Taken, told: set[_Found]) -> TakenBatch:
        delivery = taken.delivery
        items = tuple(self._traced(each, told, 0) for each in self._kept(taken))
        return TakenBatch(taken.channel, delivery.queue, delivery.consumer, delivery.at, items)

    def _kept(self, taken: _Taken) -> list[_Found]:
        """What nobody took after it had been given back."""
        return [each for each in taken.items if each.item.id is None or self._last[each.item.id] is each]

    def _traced(self, found: _Found, told: set[_Found], depth: int) -> TracedItem:
        item, taken, trace = found.item, found.taken, found.item.trace or Trace()
        # Many items have sources in common, and so have these: all ways back are more than anybody has time for.
        is_told = found in told and bool(trace.sources)
        told.add(found)
        sources = () if is_told else tuple(self._source(each, told, depth) for each in trace.sources)
        return TracedItem(
            id="" if item.id is None else str(item.id),
            process_id="" if item.id is None else item.id.process_id,
            channel=taken.channel,
            queue=taken.delivery.queue,
            consumer=taken.delivery.consumer,
            version=item.version,
            weight=item.weight,
            size_bytes=item.size_bytes,
            made_at_step=trace.step,
            payload=_shown(found),
            sources=sources,
            num_more_sources=trace.num_more,
            is_told_above=is_told,
        )

    def _source(self, which: ItemId, told: set[_Found], depth: int) -> TracedItem:
        found = self._last.get(which)
        if found is None or depth >= MAX_DEPTH:
            return TracedItem(str(which), which.process_id)
        return self._traced(found, told, depth + 1)

    def _read(self, path: str, *, was_named: bool) -> None:
        reader = TapeReader(path)
        self._readers.append(reader)
        channel = ""
        for place, frames in reader:
            try:
                entry = decode_delivery(frames[0])
            except msgspec.MsgspecError as error:
                if not was_named and place.number == 1:
                    reader.close()  # of a rank, beside those of channels: there may be thousands
                    self._readers.remove(reader)
                    return
                raise RecordingError(path, f"it is no recording of a channel: {error}") from error
            if isinstance(entry, RecordedDelivery):
                self._add(_Taken(reader, place, channel, entry, []))
            elif isinstance(entry, RecordedChannel):
                channel = entry.channel
                if entry.num_dropped and not path.endswith(OLDER):
                    self.notes.append(
                        f"{path}: {counted(entry.num_dropped, 'older record')} dropped, beyond its bound"
                    )
            else:
                self.notes.append(f"{path}: {_left_out(entry)}")
        if reader.cut_bytes:
            self.notes.append(
                f"{path}: its last {reader.cut_bytes} bytes are of a delivery that is not whole"
            )

    def _add(self, taken: _Taken) -> None:
        begin = 1
        for item in taken.delivery.items:
            found = _Found(taken, item, slice(begin, begin + item.num_frames))
            begin += item.num_frames
            taken.items.append(found)
            if item.id is not None:
                self._last[item.id] = found
        if taken.delivery.step is not None:
            self._by_step.setdefault(taken.delivery.step, []).append(taken)


def _left_out(entry: LeftOut) -> str:
    what = "a delivery" if entry.count == 1 else f"{entry.count} deliveries"
    return f"{what} missing: the disk took them too slowly"


def _shown(found: _Found) -> str:
    if not found.item.num_frames:
        return ""
    head, *buffers = found.taken.reader.load(found.taken.place)[found.frames]
    try:
        text = printable(" ".join(repr(decode(head, buffers)).split()))
    except Exception:  # noqa: BLE001 - its class cannot be had here, or its own __repr__ fails
        return ""
    return text if len(text) <= SHOWN_CHARS else f"{text[: SHOWN_CHARS - 3]}..."


def _files(paths: Iterable[str | os.PathLike[str]]) -> list[tuple[str, bool]]:
    """The files that are meant, the older half of each before it, and whether each was named itself."""
    found: list[tuple[str, bool]] = []
    for given in paths:
        path = os.fspath(given)
        if os.path.isdir(path):
            inside = sorted(name for name in os.listdir(path) if name.endswith(SUFFIX))
            if not inside:
                raise RecordingError(path, f"there is no file that ends with {SUFFIX} in this folder")
            found.extend((os.path.join(path, name), False) for name in inside)
        else:
            found.append((path, True))
    return [
        (each, was_named)
        for path, was_named in found
        for each in (path + OLDER, path)
        if each == path or os.path.exists(each)
    ]
