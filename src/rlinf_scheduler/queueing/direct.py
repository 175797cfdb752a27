"""One client's operations that come to a channel's server by shortcuts, beside those that come the usual way.

What a thread sends by its shortcut may overtake what its process has sent the usual way before. So each such operation
says how many messages stand before it, and waits until they were read. It is answered where it came from. If its
thread cannot wait for the answer any more, its process asks the usual way what became of it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from rlinf_scheduler.queueing.messages import Accept, Instruction, Reason, Refuse, Withdraw
from rlinf_scheduler.queueing.state import ChannelState

WayT = TypeVar("WayT", bound=Hashable)
OperationT = TypeVar("OperationT")


class DirectOperations(Generic[WayT, OperationT]):
    """When it is an operation's turn, where its answer goes, and what is said when somebody asks what became of it.

    A way carries one operation at a time: the next one comes when the last one was answered, or not at all.

    >>> direct = DirectOperations()
    >>> direct.arrive("way", 7, "put", after=1)
    False
    >>> direct.read()
    [('way', 'put')]
    >>> direct.accept(7)
    'way'

    Attributes:
        unanswered: those whose turn has come, and where their answers go.
    """

    __slots__ = ("_accepted", "_early", "_num_read", "unanswered")

    def __init__(self) -> None:
        self._num_read = 0
        self._early: dict[int, tuple[int, WayT, OperationT]] = {}
        self.unanswered: dict[int, WayT] = {}
        # The last put of each way that was accepted: its thread may not have read that.
        self._accepted: dict[WayT, int] = {}

    def arrive(self, way: WayT, ticket: int, operation: OperationT, after: int) -> bool:
        """An operation came, before which stand so many messages: whether it is its turn; if not, `read` gives it."""
        if after > self._num_read:
            self._early[ticket] = (after, way, operation)
            return False
        self.unanswered[ticket] = way
        return True

    def read(self) -> list[tuple[WayT, OperationT]]:
        """A message that came the usual way was read: the operations whose turn it is now, in order."""
        self._num_read += 1
        if not self._early:
            return []
        due = [ticket for ticket, (after, _, _) in self._early.items() if after <= self._num_read]
        out = []
        for ticket in due:
            _, way, operation = self._early.pop(ticket)
            self.unanswered[ticket] = way
            out.append((way, operation))
        return out

    def accept(self, ticket: int) -> WayT | None:
        """The item of a put is in its queue: where to say so; None if it came the usual way."""
        way = self.unanswered.pop(ticket, None) if self.unanswered else None
        if way is not None:
            self._accepted[way] = ticket
        return way

    def end(self, ticket: int) -> WayT | None:
        """An operation ends in another way: where to say so; None if it came the usual way."""
        return self.unanswered.pop(ticket, None) if self.unanswered else None

    def query_outcome(
        self, client: str, ticket: int, state: ChannelState, read_all: Callable[[str], None]
    ) -> list[Instruction]:
        """Withdraw an operation, and always say what became of it.

        What has not come by now never went, and what is early is never done.

        Args:
            client: its name.
            ticket: the operation.
            state: the queues.
            read_all: reads what the client's threads have sent until now.
        """
        read_all(client)
        self._early.pop(ticket, None)
        self.unanswered.pop(ticket, None)
        withdrawn = state.apply(Withdraw(ticket), client)
        if withdrawn:
            return withdrawn
        for way, accepted in self._accepted.items():
            if accepted == ticket:
                del self._accepted[way]
                return [Accept(client, ticket)]
        return [Refuse(client, ticket, Reason.CANCELLED, "")]

    def leave(self, way: WayT) -> None:
        """A thread has left its way: nobody asks any more what became of what came by it."""
        self._accepted.pop(way, None)
