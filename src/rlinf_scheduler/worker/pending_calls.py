"""The calls of a group that go on, in order; and what a rank that died was at."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.errors import PeerDied
from rlinf_scheduler.worker.call import Call


class PendingCalls:
    """On the I/O thread alone. Iterating gives the calls that some rank has not answered, in the order of starts."""

    def __init__(self) -> None:
        self._calls: dict[Call, None] = {}
        # By rank: when it answered last, and the call that the end of its process ended.
        self._answered_at: dict[int, float] = {}
        self._ended: dict[int, Call] = {}

    def __iter__(self) -> Iterator[Call]:
        return iter(tuple(self._calls))

    def add(self, call: Call) -> None:
        """A call starts."""
        self._calls[call] = None
        call.complete.add_done_callback(partial(self._on_complete, call))

    def _on_complete(self, call: Call, _: Promise[None]) -> None:
        self._calls.pop(call, None)
        for address, outcome, at in zip(call.addresses, call.outcomes, call.answered_at, strict=True):
            if isinstance(outcome, PeerDied):
                self._ended.setdefault(address.rank, call)
            elif outcome is not None:
                self._answered_at[address.rank] = at

    def forget(self, rank: int) -> None:
        """Another process has a rank's place."""
        self._ended.pop(rank, None)
        self._answered_at.pop(rank, None)

    def end_of(self, rank: int) -> str:
        """What a rank was at when its process ended, just now, in words; "" if it had no call of this process's."""
        since = self._answered_at.get(rank, 0.0)
        for call in (*filter(None, [self._ended.get(rank)]), *self._calls):
            index = next((i for i, address in enumerate(call.addresses) if address.rank == rank), None)
            if index is None or not call.sent_at[index]:
                continue
            if call.outcomes[index] is not None and not isinstance(call.outcomes[index], PeerDied):
                since = call.answered_at[index]
                continue
            until = call.answered_at[index] or time.monotonic()
            return f"{until - max(since, call.sent_at[index]):.1f} s into {call.method}()"
        return ""
