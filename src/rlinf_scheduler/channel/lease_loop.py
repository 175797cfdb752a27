"""One lease after the other, until a queue ends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack

from rlinf_scheduler.channel.lease import Lease, LeaseContext
from rlinf_scheduler.errors import ChannelClosed


class LeaseLoop:
    """An iterator of leases, as `Channel.leases` returns it, for `for` and `async for`.

    Each lease is acknowledged when the next one is asked for, and given back when the loop is left before.

    Args:
        make: makes the next lease, not entered.
    """

    def __init__(self, make: Callable[[], LeaseContext]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Lease]:
        """Give leases until the queue ends."""
        while True:
            with ExitStack() as block:
                try:
                    lease = block.enter_context(self._make())
                except ChannelClosed:
                    return
                yield lease

    async def __aiter__(self) -> AsyncIterator[Lease]:
        """Give leases until the queue ends."""
        while True:
            async with AsyncExitStack() as block:
                try:
                    lease = await block.enter_async_context(self._make())
                except ChannelClosed:
                    return
                yield lease
