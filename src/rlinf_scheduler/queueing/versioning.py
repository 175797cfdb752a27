"""Who makes items for which version, and when the next one begins."""

from __future__ import annotations

from rlinf_scheduler.queueing.instructions import Accept, Instruction, Reason, Refuse
from rlinf_scheduler.queueing.named_queue import NamedQueue
from rlinf_scheduler.queueing.queue_name import QueueName
from rlinf_scheduler.queueing.queue_set import QueueSet
from rlinf_scheduler.queueing.records import Asked, Move


class Versioning(QueueSet):
    """Gives slots and moves versions on; see `Admission`."""

    def admit(
        self, client: str, ticket: int, queue_name: QueueName, max_lag: int, *, wait: bool = True
    ) -> list[Instruction]:
        """A producer asks for leave to make an item that is taken at most `max_lag` versions later: Deliver or Refuse.

        Raises:
            ValueError: the queue holds what was put without a slot.
        """
        if self.closed or self.has_ended(queue_name):
            return [Refuse(client, ticket, NamedQueue.why_over(self.closed), self.describe(queue_name))]
        queue = self._queue(queue_name)
        admission = queue.begin_admission()
        self._admitting[queue] = None
        admission.ask(client, ticket, Asked(max_lag, self._tally.clock.now))
        out = self._settled((queue,))
        if not wait and (client, ticket) in admission.asking:
            admission.withdraw(client, ticket)
            out.append(Refuse(client, ticket, Reason.EMPTY, queue.describe()))
        return out

    def set_version(
        self,
        client: str,
        ticket: int,
        queue_name: QueueName,
        version: int,
        batch_items: int = 0,
        *,
        begins: bool = False,
        wait: bool = True,
    ) -> list[Instruction]:
        """A consumer says which version it is at: Accept, once nothing may come back that is too old; or Refuse.

        Args:
            client: its name.
            ticket: its operation's.
            queue_name: of which queue.
            version: what it takes from now on is taken by this one.
            batch_items: how many items a version takes; 0 for as many as before.
            begins: it begins (again) with this version, whatever the last one was.
            wait: whether it may wait for what was given out before.

        Raises:
            ValueError: the version goes back, `batch_items` is missing, or the queue holds what was put without a slot.
        """
        known = self._queues.get(queue_name)
        if (known is None or known.admission is None) and (self.closed or self.has_ended(queue_name)):
            return [Accept(client, ticket)]  # nothing is made any more
        queue = self._queue(queue_name)
        admission = queue.begin_admission()
        self._admitting[queue] = None
        out: list[Instruction] = []
        admission.move(client, ticket, Move(version, batch_items, begins, self._tally.clock.now), out)
        self._settle((queue,), out)
        if not wait and (client, ticket) in admission.moving:
            state = queue.describe()
            admission.withdraw(client, ticket)
            out.append(Refuse(client, ticket, Reason.EMPTY, state))
        return out

    def hold_slot(
        self, client: str, queue_name: QueueName, number: int, key: int, source: int = 0
    ) -> list[Instruction]:
        """A client holds a copy of a slot, which it calls `key`; "" for one that is in a queue, or on its way.

        It was sent as `source`, if nobody is to have that again.
        """
        queue = self._queues.get(queue_name)
        if queue is not None and queue.admission is not None:
            queue.admission.hold(number, client, key, source)
        return []

    def let_go_of_slot(
        self, client: str, queue_name: QueueName, number: int, key: int, source: int = 0
    ) -> list[Instruction]:
        """A client holds that copy no more; `source` names the one that was sent, if nobody is to have that again."""
        queue = self._queues.get(queue_name)
        if queue is None or queue.admission is None:
            return []
        queue.admission.let_go(number, client, key, source)
        return self._settled((queue,))

    def _withdraw_admission(self, client: str, ticket: int) -> list[Instruction]:
        """Nobody waits any more for a slot or a version, or nobody wants the slot."""
        for queue in self._admitting:
            if queue.admission is not None and (state := queue.admission.withdraw(client, ticket)):
                out: list[Instruction] = [Refuse(client, ticket, Reason.CANCELLED, state)]
                self._settle((queue,), out)
                return out
        return []

    def _end_admission(self, queue: NamedQueue, out: list[Instruction]) -> None:
        if queue.admission is not None:
            queue.admission.end(NamedQueue.why_over(self.closed), queue.describe(), out)
