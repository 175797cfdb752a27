"""Which process holds which channel. Pure: it starts and ends nothing."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

# On one node. See decision 014 for how they were chosen.
MAX_PROCESSES = 4
# So many channels go into one process before the next is started.
NUM_TOGETHER = 4


@dataclass(frozen=True, slots=True)
class ChannelSeat:
    """Which process is to hold a channel, by its number; `is_new`: it is to be started."""

    process: int
    is_new: bool


@dataclass(slots=True)
class _Occupants:
    node_rank: int
    shared: bool
    channels: dict[str, None] = field(default_factory=dict)


class ChannelPool:
    """The processes that hold a job's channels.

    The channels of a node share up to `max_processes` processes: as many as fit `num_together` to each, then evenly.
    One that wants a process of its own shares it with none.

    Args:
        max_processes: how many processes share a node's channels.
        num_together: how many channels a process holds before another is started.

    >>> pool = ChannelPool(max_processes=2, num_together=1)
    >>> [pool.seat(name, node_rank=0).process for name in "abcd"]
    [0, 1, 0, 1]
    >>> pool.leave("a"), pool.leave("c")
    (None, 0)
    >>> pool.retire(0), pool.seat("e", node_rank=0)
    (True, ChannelSeat(process=2, is_new=True))
    """

    def __init__(self, max_processes: int = MAX_PROCESSES, num_together: int = NUM_TOGETHER) -> None:
        self._max_processes = max_processes
        self._num_together = num_together
        self._numbers = itertools.count()
        self._processes: dict[int, _Occupants] = {}
        self._process_of: dict[str, int] = {}

    def seat(self, channel: str, node_rank: int, *, own: bool = False) -> ChannelSeat:
        """Find the process for a channel; one that has a process keeps it."""
        if channel in self._process_of:
            return ChannelSeat(self._process_of[channel], False)
        shared = {
            number: len(process.channels)
            for number, process in self._processes.items()
            if process.shared and process.node_rank == node_rank
        }
        emptiest = None if own or not shared else min(shared, key=lambda number: (shared[number], number))
        has_room = emptiest is not None and (
            shared[emptiest] < self._num_together or len(shared) >= self._max_processes
        )
        is_new = emptiest is None or not has_room
        number = next(self._numbers) if emptiest is None or is_new else emptiest
        if is_new:
            self._processes[number] = _Occupants(node_rank, not own)
        self._processes[number].channels[channel] = None
        self._process_of[channel] = number
        return ChannelSeat(number, is_new)

    def leave(self, channel: str) -> int | None:
        """A channel is gone; returns its process if that holds none now."""
        number = self._process_of.pop(channel, None)
        if number is None:
            return None
        channels = self._processes[number].channels
        channels.pop(channel, None)
        return None if channels else number

    def lose(self, process: int) -> list[str]:
        """A process is gone; returns the channels that are gone with it."""
        lost = self._processes.pop(process, None)
        channels = [] if lost is None else list(lost.channels)
        for channel in channels:
            del self._process_of[channel]
        return channels

    def is_shared(self, process: int) -> bool:
        """Whether further channels may come to a process."""
        return process in self._processes and self._processes[process].shared

    def retire(self, process: int) -> bool:
        """Let a process hold no further channels, if it holds none; whether it may end now."""
        if process not in self._processes or self._processes[process].channels:
            return False
        del self._processes[process]
        return True
