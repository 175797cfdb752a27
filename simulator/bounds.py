"""What a channel's queues may hold, checked when an item enters, and asked when one waits."""

from __future__ import annotations

from collections.abc import Callable

from simulator.lease_oracle import LeaseOracle
from simulator.queue_oracle import Known, QueueOracle
from simulator.tap_oracle import TapOracle
from simulator.world import Violation


class Bounds:
    """The bounds of a channel.

    Args:
        maxsize: items per queue, 0 unbounded.
        max_bytes: bytes per queue, unless it is a single larger item; 0 unbounded.
        total_bytes: the same of all queues together.
        own_queues: all but the subscription, whose bound is its own.
        leases: what is on lease, and dead.
    """

    def __init__(
        self,
        maxsize: int,
        max_bytes: int,
        total_bytes: int,
        own_queues: Callable[[], list[QueueOracle]],
        leases: LeaseOracle,
    ) -> None:
        self._maxsize = maxsize
        self._max_bytes = max_bytes
        self._total_bytes = total_bytes
        self._own_queues = own_queues
        self._leases = leases

    def check(self, queue: QueueOracle, item: Known, *, had_room: bool) -> None:
        """Check that an item may enter a queue, or have room there."""
        held = queue.num_held
        if 0 < self._maxsize < held - queue.num_returned:
            raise Violation(f"{item.queue} holds {held} items of {self._maxsize}", (item.number,))
        if self._max_bytes and held > 1:
            self._check_bytes(item, queue.held_bytes, queue.returned_bytes, self._max_bytes)
        if not self._total_bytes or had_room:
            return
        queues = [queue] if queue.awaited else self._own_queues()
        if sum(each.num_held for each in queues) > 1:
            held_bytes = sum(each.held_bytes for each in queues)
            held_bytes += 0 if queue.awaited else self._leases.dead_bytes
            returned = sum(each.returned_bytes for each in queues)
            self._check_bytes(item, held_bytes, returned, self._total_bytes)

    @staticmethod
    def _check_bytes(item: Known, held_bytes: int, returned_bytes: int, bound: int) -> None:
        if held_bytes - returned_bytes > bound:
            message = f"{held_bytes} bytes of {bound} are held when an item enters {item.queue}"
            raise Violation(message, (item.number,))

    def is_stuck(self, queue: QueueOracle) -> bool:
        """Whether nothing can enter before something is taken."""
        if isinstance(queue, TapOracle):
            return False
        if 0 < self._maxsize <= queue.num_items:
            return True
        waiting = next(iter(queue.line.values()), None)
        if waiting is None or queue.granted or queue.num_leases:
            return False
        return not self.has_room(queue, waiting)

    def has_room(self, queue: QueueOracle, item: Known) -> bool:
        """Whether an item may enter a queue."""
        held = queue.num_held
        if 0 < self._maxsize <= held:
            return False
        if self._max_bytes and held and queue.held_bytes + item.size_bytes > self._max_bytes:
            return False
        if not self._total_bytes:
            return True
        others_bytes = sum(each.held_bytes for each in self._own_queues() if each is not queue)
        others_bytes += self._leases.dead_bytes
        if queue.awaited or not others_bytes:
            return not held or queue.held_bytes + item.size_bytes <= self._total_bytes
        return others_bytes + queue.held_bytes + item.size_bytes <= self._total_bytes
