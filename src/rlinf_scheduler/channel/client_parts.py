"""The client of a channel, as its features see it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from rlinf_scheduler.comm.messenger import Messenger
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.errors import ChannelLost

FeatureT = TypeVar("FeatureT")


class ClientParts(Protocol):
    """A `ChannelClient`, as its operations and its parts see it, which it knows all of."""

    # Its parts and operations are not named here: they name this.
    deliveries: Any
    requests: Any
    sender: Any
    on_devices: Any
    ref: Any
    messenger: Messenger
    name: str
    lost: ChannelLost | None
    operations: dict[int, Any]
    outbox: deque[Any]
    inbox: deque[tuple[Callable[[Any], None], Any]]
    on_lost: list[Callable[[], None]]

    @property
    def draining(self) -> Promise[str]:
        """Done when this process is to take no more work."""

    def begin_get(self, operation: Any) -> None:
        """Begin one that takes items."""

    def end_unsent(self, operation: Any) -> None:
        """End what would have begun."""

    def expire(self, operation: Any) -> None:
        """End an operation, unless what it brings is here."""

    def begin_behind_all(self, operation: Any) -> None:
        """Begin one for which all that began before is told first."""

    def on_items(self, ticket: int, items: Any) -> None:
        """Give an operation its items."""

    def refuse(self, ticket: int, problem: str) -> None:
        """End an operation with an error."""

    def look_at(self, operation: Any) -> None:
        """Confirm what an operation brought if its caller has it."""

    def settled(self, operation: Any) -> None:
        """Expect nothing more of an operation."""

    def feature(self, kind: Callable[[Any], FeatureT]) -> FeatureT:
        """Return what a feature keeps here."""

    def hand_over(self, step: Callable[[Any], None], what: Any) -> None:
        """Have a step done on the I/O thread; from any thread."""

    def check_may_block(self) -> None:
        """Raise a ChannelError on the I/O thread."""

    def note_direct(self) -> None:
        """Learn what threads have sent by themselves."""

    def catch_up(self) -> None:
        """Do what was handed over."""

    def drain(self) -> None:
        """Do what was handed over, and send what has gathered."""

    def open(self) -> None:
        """Make the client known to its server."""

    def flush(self) -> None:
        """Send everything that has gathered."""
