"""What has come to this process for gets, until it is known whether somebody has taken it. On the I/O thread only.

A user's thread takes items by a mark alone, and says nothing: so somebody has to look. What is about to be taken is
looked at soon, so that it is confirmed; the rest now and then, for a dropped handle says so itself.
"""

from __future__ import annotations

from collections.abc import Callable

from rlinf_scheduler.channel.client_parts import ClientParts
from rlinf_scheduler.channel.operation import ChannelOperation
from rlinf_scheduler.comm.loop import Timer

# Confirmations wait this long for an operation to travel with; until then a dead consumer's item comes back.
CONFIRM_DELAY_S = 0.002
# Items that were delivered and are not taken are looked after so often at least.
SWEEP_S = 1.0


class Deliveries:
    """The operations whose items are here.

    Args:
        client: calls `forget` when it looks at an operation whose items were taken, or go back.
        call_later: calls a function after so many seconds.

    Attributes:
        looks_soon: it will look by itself what became of delivered items.
    """

    def __init__(self, client: ClientParts, call_later: Callable[[float, Callable[[], None]], Timer]) -> None:
        self.looks_soon = False
        self._client = client
        self._call_later = call_later
        self._here: dict[int, ChannelOperation] = {}
        # About to be taken: by callers that block, and by those who ask a handle.
        self._soon: dict[int, ChannelOperation] = {}
        self._arrivals: list[ChannelOperation] = []
        self._look_s = CONFIRM_DELAY_S
        self._timer: Timer | None = None
        self._sweep_due = False

    def __contains__(self, ticket: int) -> bool:
        return ticket in self._here

    def add(self, operation: ChannelOperation) -> None:
        """The items of an operation have come."""
        self._here[operation.ticket] = operation

    def tell(self, operation: ChannelOperation) -> None:
        """Let the server know that the items of an operation have come, unless they are taken until then."""
        if operation.blocks:
            self._soon[operation.ticket] = operation
        self._arrivals.append(operation)
        if not self.looks_soon:
            self.wake()

    def expect(self, operation: ChannelOperation) -> None:
        """The items of an operation are taken as soon as they come."""
        self._soon[operation.ticket] = operation

    def touch(self, operation: ChannelOperation) -> None:
        """Somebody is about to take the items of a handle."""
        if operation.ticket in self._here:
            self._soon[operation.ticket] = operation
            if not self.looks_soon:
                self.wake()

    def wake(self, _nothing: None = None) -> None:
        """Look soon whether items were taken."""
        self._look_s = CONFIRM_DELAY_S
        self.look_later()

    def look_later(self) -> None:
        """Look when it is due."""
        if self._soon or self._arrivals:
            # One that is due late gives way to one that is due soon.
            if not self.looks_soon:
                if self._timer is not None:
                    self._timer.cancel()
                self.looks_soon = self._look_s == CONFIRM_DELAY_S
                self._timer = self._call_later(self._look_s, self._on_soon)
        elif self._here and not self._sweep_due:
            self._sweep_due = True
            self._call_later(SWEEP_S, self._on_sweep)

    def look(self) -> None:
        """See what became of what was about to be taken."""
        for operation in list(self._soon.values()):
            self._client.look_at(operation)

    def look_at_all(self) -> None:
        """See what became of all that is here."""
        self.look()
        for operation in list(self._here.values()):
            self._client.look_at(operation)

    def forget(self, ticket: int) -> None:
        """It is known what became of an operation."""
        if self._here or self._soon:
            self._here.pop(ticket, None)
            self._soon.pop(ticket, None)

    def clear(self) -> None:
        """Forget everything: there is nobody to tell."""
        self._here.clear()
        self._soon.clear()

    def _on_soon(self) -> None:
        self.looks_soon, self._timer = False, None
        self._look_s = min(2 * self._look_s, SWEEP_S)
        self._client.catch_up()
        self.look()
        arrivals, self._arrivals = self._arrivals, []
        self._client.sender.arrived += [each.ticket for each in arrivals if each.ticket in self._here]
        self.look_later()
        self._client.flush()

    def _on_sweep(self) -> None:
        """A dropped handle says so itself, unless an interruption came in between."""
        self._sweep_due = False
        self.look_at_all()
        self.look_later()
        self._client.flush()
