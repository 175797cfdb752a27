"""Batches and groups: the lists that their callers get, which know whether they are what was asked for; their gets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Self, TypedDict

from rlinf_scheduler.channel import wire
from rlinf_scheduler.channel.operation import ChannelOperation
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.shm.payload import ReceivedPayload
from rlinf_scheduler.errors import BatchUndecodable, CodecError
from rlinf_scheduler.queueing.item import QueueName
from rlinf_scheduler.queueing.out_of_turn import GroupName
from rlinf_scheduler.queueing.wanted import Limits
from rlinf_scheduler.wording import counted


class Batch(list[Any]):
    """The items of a batch, in order.

    Attributes:
        complete: it is what was asked for; False for what was left at the end of a queue, or when it was flushed, or of
            a version (see `Channel.set_version`).
        versions: of the policy, that the items were made with, None for those of which nobody said it; empty where
            nobody did.
    """

    versions: Sequence[int | None] = ()

    def __init__(self, items: Iterable[Any] = (), complete: bool = True) -> None:
        super().__init__(items)
        self.complete = complete


class GroupBatch(Batch):
    """The items of a group, in order.

    Attributes:
        group: which one.
        complete: it has as many items as were asked for; False for what was left at the end of a queue, or when it was
            flushed.
    """

    def __init__(self, items: Iterable[Any] = (), complete: bool = True, group: GroupName = "") -> None:
        super().__init__(items, complete)
        self.group = group


class Delivery(list[ReceivedPayload]):
    """The items of a batch as they came.

    Attributes:
        told: what the channel said of them.
    """

    __slots__ = ("told",)
    told: wire.Delivered

    @classmethod
    def of(cls, told: wire.Delivered, items: Iterable[ReceivedPayload]) -> Delivery:
        """Items, of which that was said."""
        delivery = cls(items)
        delivery.told = told
        return delivery

    @classmethod
    def of_frames(cls, told: wire.Delivered, frames: Iterable[Buffer]) -> Delivery:
        """Items whose frames follow each other, as was said."""
        left = iter(frames)
        return cls.of(told, [ReceivedPayload(list(islice(left, count))) for count in told.num_frames])

    def batch(self, values: list[Any]) -> Batch:
        """Return what the caller of the get receives, made of the items' values."""
        told = self.told
        if told.group is None:
            batch = Batch(values, told.complete)
        else:
            batch = GroupBatch(values, told.complete, wire.as_name(told.group) or "")
        if told.versions is not None:
            batch.versions = told.versions
        return batch


class BatchLimitOptions(TypedDict, total=False):
    """Bounds of a batch, beside its weight."""

    max_items: int | None
    max_bytes: int | None
    min_items: int
    max_wait_s: float | None


class BatchOperation(ChannelOperation):
    """A get of a batch, or of a group.

    Attributes:
        batch_weight: the weight that a batch has to reach; None for any.
        limits: what a batch has to be besides; None for anything.
        group_size: of a group; 0 for a batch.
    """

    __slots__ = ("batch_weight", "group_size", "limits")
    is_plain = False

    def __init__(
        self,
        kind: str,
        queue_name: QueueName,
        timeout_s: float | None,
        now: Callable[[], float],
        *,
        wait: bool = True,
    ) -> None:
        super().__init__(kind, queue_name, timeout_s, now, wait=wait)
        self.batch_weight: float | None = None
        self.limits: Limits | None = None
        self.group_size = 0

    def renewed(self) -> Self:
        """The same, begun at the same time, as another operation."""
        again = super().renewed()
        again.batch_weight, again.limits, again.group_size = self.batch_weight, self.limits, self.group_size
        return again

    def opening(self, _num_frames: int = 0, _size_bytes: int | None = None) -> wire.AnyGet:
        """How it begins at the server."""
        get: wire.AnyGet = wire.Get(self.ticket, self.queue_name, self.wait, self.batch_weight, self.limits)
        get.group_size = self.group_size
        return get

    @property
    def is_batch(self) -> bool:
        """Whether it asks for several items."""
        return self.batch_weight is not None or self.limits is not None or self.group_size > 0

    def describe_batch(self) -> str:
        """Describe the batch that it asks for, in a phrase."""
        if self.group_size:
            return f"a group of {counted(self.group_size, 'item')}"
        text = "a batch" if self.batch_weight is None else f"a batch of weight {self.batch_weight}"
        if self.limits is None:
            return text
        parts = [f"at least {self.limits.min_items} items"] if self.limits.min_items > 1 else []
        if self.limits.max_items:
            parts.append(f"at most {counted(self.limits.max_items, 'item')}")
        if self.limits.max_bytes:
            parts.append(f"at most {self.limits.max_bytes} bytes")
        return " of ".join([text, " and ".join(parts)]) if parts else text

    def needs(self) -> tuple[float, bool]:
        """Return how much has to be there for it, and whether that is a number of items."""
        needs = self.batch_weight or self.group_size or 0
        if self.limits is not None and not needs:
            needs = self.limits.min_items
        return needs, self.batch_weight is None


def load_all(items: Delivery, begin: Callable[[int], None] | None = None) -> Batch:
    """Return what came as a batch; `begin` is told before each of them.

    Raises:
        BatchUndecodable: some of it cannot be read here.
    """
    values: list[Any] = []
    problems: list[tuple[int, str]] = []
    for place, item in enumerate(items):
        if begin is not None:
            begin(place)
        try:
            values.append(item.load())
        except CodecError as error:
            problems.append((place, str(error)))
    if problems:
        raise BatchUndecodable(problems, values)
    return items.batch(values)
