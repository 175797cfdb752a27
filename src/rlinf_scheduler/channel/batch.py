"""What `get_batch` and a shard return: lists that know whether they are what was asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from rlinf_scheduler.channel import wire
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.shm.payload import ReceivedPayload
from rlinf_scheduler.queueing import GroupName


class Batch(list[Any]):
    """The items of a batch, in order.

    Attributes:
        complete: it is what was asked for; False for what was left at the end of a queue, or when it was flushed, or of
            a version (see `Channel.set_version`).
        versions: of the policy, that the items were made with, None for those of which nobody said it; empty where
            nobody did.
        ids: which items they are, for the `sources` of others; empty where the channel is not recorded.
    """

    versions: Sequence[int | None] = ()
    ids: Sequence[wire.ItemId] = ()

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


class ShardBatch(Batch):
    """A shard's part of one step, in the order of the queue; it may be empty.

    Attributes:
        step: which one, from 0.
        weights: of the items.
        imbalance: of the step: the costliest part over the mean; 1 is best.
        complete: the step is as large as was asked for; False for what was left.
    """

    def __init__(
        self,
        items: Iterable[Any] = (),
        complete: bool = True,
        step: int = 0,
        weights: Sequence[float] = (),
        imbalance: float = 1.0,
    ) -> None:
        super().__init__(items, complete)
        self.step = step
        self.weights = list(weights)
        self.imbalance = imbalance

    @property
    def weight(self) -> float:
        """The sum of the items' weights."""
        return sum(self.weights)

    def split(self, max_weight: float) -> list[list[Any]]:
        """Return micro-batches: runs of items of at most this weight, or of one heavier item.

        >>> ShardBatch("abcd", weights=[3, 4, 9, 1]).split(8)
        [['a', 'b'], ['c'], ['d']]
        """
        runs: list[list[Any]] = []
        room: float = 0
        for item, weight in zip(self, self.weights, strict=True):
            if not runs or weight > room:
                runs.append([])
                room = max_weight
            runs[-1].append(item)
            room -= weight
        return runs


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
        batch = self._batch(values)
        if self.told.versions is not None:
            batch.versions = self.told.versions
        if self.told.ids is not None:
            batch.ids = self.told.ids
        return batch

    def _batch(self, values: list[Any]) -> Batch:
        told, part = self.told, self.told.part
        if told.group is not None:
            return GroupBatch(values, told.complete, wire.as_group(told.group) or "")
        if part is None:
            return Batch(values, told.complete)
        return ShardBatch(values, told.complete, part.step, part.weights, part.imbalance)
