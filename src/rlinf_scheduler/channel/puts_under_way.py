"""The puts of this process on one channel that are not over: who waits for their end, and whether there are any."""

from __future__ import annotations

from collections.abc import Mapping

from rlinf_scheduler.channel.operation import Operation
from rlinf_scheduler.comm.promise import Promise


class PutsUnderWay:
    """Tells when puts are over. On the I/O thread only.

    Args:
        operations: all that are known, by their tickets.

    Attributes:
        awaited: who waits until certain puts are over, and for which.
    """

    def __init__(self, operations: Mapping[int, Operation]) -> None:
        self.awaited: list[tuple[list[Operation], Promise[None]]] = []
        self._operations = operations

    def tell_after(self, over: Promise[None]) -> None:
        """Complete a promise when every put that has begun here is over."""
        puts = [operation for operation in self._operations.values() if operation.kind == "put"]
        self.awaited.append((puts, over))

    def look(self) -> None:
        """See which are over."""
        waiting, self.awaited = self.awaited, []
        for puts, over in waiting:
            left = [operation for operation in puts if self._is_under_way(operation)]
            if left:
                self.awaited.append((left, over))
            else:
                over.set_result(None)

    def say_held(self, answer: Promise[bool]) -> None:
        """Say whether items of this process are not in their queues yet."""
        answer.set_result(any(operation.parcel is not None for operation in self._operations.values()))

    def _is_under_way(self, operation: Operation) -> bool:
        promise = operation.find_promise()
        return operation.ticket in self._operations and not (promise is not None and promise.done())
