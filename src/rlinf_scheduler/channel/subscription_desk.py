"""Where a channel's server hears who reads its subscriptions. On the I/O thread only."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from rlinf_scheduler.channel import control_wire, wire
from rlinf_scheduler.queueing import ChannelState, Instruction, Tapped, TapTerms

# Unless it is said, a subscription holds such a share of what its channel may hold.
SHARE = 4


class SubscriptionDesk:
    """Keeps the time that `ChannelState` does not know: how long the last member of a subscription may be succeeded.

    Args:
        call_later: calls a function on the I/O thread after so many seconds.
        state: the channel's queues.
        max_bytes: how many bytes they may hold; 0 is unbounded.
        successor_s: how long to wait for a successor, in seconds.
        on_over: called with the name of a subscription that is over, how many items it had not given out, and what
            follows.
    """

    def __init__(
        self,
        call_later: Callable[[float, Callable[[], None]], Any],
        state: ChannelState,
        max_bytes: int,
        successor_s: float,
        on_over: Callable[[str, int, list[Instruction]], None],
    ) -> None:
        self._call_later = call_later
        self._state = state
        self._max_bytes = max_bytes
        self._successor_s = successor_s
        self._on_over = on_over

    def answer(
        self, client: str, message: control_wire.Subscribe | control_wire.Unsubscribe
    ) -> control_wire.Joined | None:
        """Let a client be a member, or be one no more."""
        if isinstance(message, control_wire.Subscribe):
            queue = None if message.queue is None else wire.as_name(message.queue)
            max_bytes = self._max_bytes_of(message.name) if message.max_bytes is None else message.max_bytes
            terms = TapTerms(queue, message.maxsize, max_bytes)
            return control_wire.Joined(self._state.subscribe(client, message.number, message.name, terms))
        vacancy = self._state.leave_subscription(client, message.number, message.name)
        if vacancy is not None and message.failed:
            self._wait(message.name, vacancy)
        elif vacancy is not None:
            self._give_up(message.name, vacancy)
        return None

    def _max_bytes_of(self, name: str) -> int:
        """What a member means that does not say it: what there is, for its share may be of another machine's memory."""
        known = self._state.terms_of(name)
        return -(-self._max_bytes // SHARE) if known is None else known.max_bytes

    def lose(self, client: str) -> None:
        """A client is gone."""
        for name, vacancy in self._state.lose_member(client):
            self._wait(name, vacancy)

    def resume(self) -> None:
        """Wait for the successors that another desk has waited for, or of those who read before a restart."""
        for name, vacancy in self._state.vacant_subscriptions():
            self._wait(name, vacancy)

    def _wait(self, name: str, vacancy: int) -> None:
        self._call_later(self._successor_s, partial(self._give_up, name, vacancy))

    def _give_up(self, name: str, vacancy: int) -> None:
        num_left = self._state.num_items(Tapped(name))
        out = self._state.give_up_subscription(name, vacancy)
        if out is not None:
            self._on_over(name, num_left, out)
