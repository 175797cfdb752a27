"""Data-parallel ranks that train step by step, leave a call now and then, and ask again."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from rlinf_scheduler.session.membership import GroupMembers
from simulator.script import NOWAIT, SHARDS, Call
from simulator.users import UserCall

MAX_TRAIN_US = 20_000
# How often a rank is interrupted, or runs into a deadline.
MAX_LEFT = 5


class Rank:
    """One life of one rank: a loop around `next_batch`, as `Shard` does it.

    Args:
        client: its process's side of the channel.
        index: which shard is its.
        next_number: gives its calls their numbers.
        members: the ranks of its group, as they were; None of one that is not resized.
        calm: it is never interrupted, and shares its process with others.
    """

    def __init__(
        self,
        client: Any,
        index: int,
        next_number: Callable[[], int],
        members: GroupMembers | None = None,
        *,
        calm: bool = False,
    ) -> None:
        self.members = members
        self.over = False
        self.index = index
        self.done_step = self.last_step = -1
        self._client = client
        self._next_number = next_number
        self._draw: Random = client.world.randomness("rank", client.name, index)
        self._calm = calm
        self._num_left = 0 if calm else MAX_LEFT
        client.ranks[index] = self
        client.host.later(self._draw.randrange(1_000), self._ask)

    def ended(self, call: UserCall) -> None:
        """A call of it has ended."""
        match call.outcome:
            case "taken":
                self.last_step = call.part_step
                if self._draw.random() < 0.5:
                    # It says that it has done with it before it asks for the next one, or, too late, after that.
                    about = self.index, call.part_step
                    self._client.host.later(
                        self._draw.randrange(MAX_TRAIN_US), self._client.acknowledge_part, *about
                    )
                self._client.host.later(self._draw.randrange(MAX_TRAIN_US), self._ask)
            case "ended" | "closed" | "lost" | "succeeded" | "left":
                self.over = True
            case "impossible" if self._num_left <= 0:
                self.over = True
            case "impossible":
                self._num_left -= 1
                self._client.host.later(MAX_TRAIN_US, self._ask)
            case _:
                self._client.host.later(self._draw.randrange(1, MAX_TRAIN_US), self._ask)

    def _ask(self) -> None:
        self.done_step = self.last_step
        draw = self._draw
        timeout_us, drop = None, ""
        if self._num_left > 0:
            timeout_us = draw.choice((None, None, NOWAIT, 400, 10_000, 1_000_000))
            drop = draw.choice(("", "", "", "begun", "delivered", "later", "cancel"))
        if timeout_us is not None or drop:
            self._num_left -= 1
        blocking = not self._calm and draw.random() < 0.5
        step = Call(0, self._next_number(), -1, "step", SHARDS, self.index, 0, timeout_us, blocking, drop)
        self._client.call(step)
