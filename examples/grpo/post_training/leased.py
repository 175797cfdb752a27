"""A request that a rank of the rollout has on lease until its answer is handed over."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from post_training.records import Request
from rlinf.scheduler.channel import Lease, LeaseContext
from rlinf.scheduler.errors import LeaseExpired
from rlinf_scheduler.queueing.item import ItemId


@dataclass(slots=True)
class Taken:
    """A request on lease: it is acknowledged when its answer is handed over, so that it outlives this process.

    Attributes:
        leasing: keeps the lease.
        lease: of this request and others.
        place: which of them it is.
        request: it.
    """

    leasing: LeaseContext
    lease: Lease
    place: int
    request: Request

    @property
    def sources(self) -> Sequence[ItemId]:
        """Which item it is, where the channel is recorded."""
        return self.lease.ids[self.place : self.place + 1]

    def acknowledge(self) -> None:
        """It is done with."""
        with suppress(LeaseExpired):  # this process was silent for long, and another one answers too
            self.lease.ack(only=self.place)

    async def acknowledge_async(self) -> None:
        """The same, in a coroutine."""
        with suppress(LeaseExpired):
            await self.lease.ack(only=self.place, async_op=True)
