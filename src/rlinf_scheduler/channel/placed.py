"""Items that lie elsewhere than in host memory: the seam at which the room `devices` plugs in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from rlinf_scheduler.channel.holding import FixedPayload
from rlinf_scheduler.comm.codec import Encoded
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.shm.payload import ReceivedPayload
from rlinf_scheduler.comm.shm.sent_payload import Payload


class PlacedPayload(FixedPayload):
    """An item as it is put that is brought to host memory before its bytes can be sent."""

    __slots__ = ()

    def bring(self, then: Callable[[Payload | BaseException], None]) -> None:
        """Copy it there; `then` is called on the I/O thread."""
        raise NotImplementedError


class UnderWay(Protocol):
    """Items of one delivery on their way; on the I/O thread. It ends by a call, once, or by `cancel`."""

    def begin(self) -> None:
        """Ask for them."""

    def cancel(self) -> None:
        """Give them up."""

    def describe(self) -> str:
        """Return what is waited for, in a phrase."""


class PlacedItems(Protocol):
    """A process's side of the items of one channel that may lie elsewhere."""

    def device_of(self, tensor: Any) -> str:
        """Return where a tensor of an item stays; "" if it does not."""

    def is_worth_it(self, encoded: Encoded) -> bool:
        """Say whether an item stays where it is."""

    def stage(self, encoded: Encoded, left_s: float | None) -> PlacedPayload | None:
        """Return an item that stays, to be put within so many seconds; None if its bytes travel."""

    def has(self, frames: Sequence[Buffer]) -> bool:
        """Say whether parts of the item with these frames lie elsewhere."""

    def landing(
        self,
        items: Sequence[ReceivedPayload],
        done: Callable[[list[ReceivedPayload] | None, BaseException | None], None],
    ) -> UnderWay:
        """Return what brings items; `done` is called with them, or with why they cannot be had now."""

    def landed(self, item: ReceivedPayload) -> ReceivedPayload:
        """Return one item, to be loaded; wait for it.

        Raises:
            CommError: its owner cannot be reached, or has done nothing for minutes.
        """
