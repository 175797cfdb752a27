"""Ends of queues and of the channel, flushes, and losses: nothing more comes, or what was here is gone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import chain
from typing import Any

from rlinf_scheduler.queueing.item import Item, QueueName, as_name
from rlinf_scheduler.queueing.messages import Close, EndAll, EndQueue, Flush, Instruction, Reason, Refuse
from rlinf_scheduler.queueing.operations import Getter, Putter
from rlinf_scheduler.queueing.policy import Handler, Policy
from rlinf_scheduler.queueing.queue import Queue
from rlinf_scheduler.queueing.queue_set import QueueSet

# Of queues that are gone, the ends of so many are remembered: one-shot names do not pile up.
NUM_ENDED = 1 << 16


class QueueEnds:
    """Ends the queues of a channel.

    Args:
        policies: say which queues see what enters another one.
    """

    def __init__(self, queues: QueueSet, policies: Iterable[Policy]) -> None:
        self._queues = queues
        self._policies = policies

    def handlers(self) -> dict[type, Handler]:
        """Return what handles ends."""
        return {
            Flush: self.flush,
            EndQueue: self.end_queue,
            EndAll: self.end_all,
            Close: self.close,
        }

    def end_queue(self, end: EndQueue, _client: str) -> list[Instruction]:
        """Take no further put into a queue; what came before is still delivered, and then getters are refused."""
        name, queues = as_name(end.queue), self._queues
        queues.ended[name] = None
        if len(queues.ended) > NUM_ENDED:
            gone = next((each for each in queues.ended if queues.find(each) is None), name)
            del queues.ended[gone]
        return self._end(self._with_followers(name, alone=True))

    def end_all(self, _end: EndAll, _client: str) -> list[Instruction]:
        """End every queue, also those that nobody has used yet."""
        self._queues.all_ended = True
        return self._end(list(self._queues.all()))

    def _end(self, queues: Collection[Queue]) -> list[Instruction]:
        out: list[Instruction] = []
        for queue in queues:
            queue.ended = True
            queue.gate.end(Queue.why_over(self._queues.closed), queue.describe(), out)
        return self._queues.settle(queues, out)

    def flush(self, flush: Flush, _client: str) -> list[Instruction]:
        """Let batches take what came until now, whether it reaches their weight or not."""
        queues = self._with_followers(as_name(flush.queue), alone=False)
        for queue in queues:
            queue.flush()
        return self._queues.settle(queues, [])

    def _with_followers(self, name: QueueName, *, alone: bool) -> list[Queue]:
        """Return a queue, if it is there, and those that see what enters it."""
        queue = self._queues.find(name)
        followers = (each for policy in self._policies for each in policy.followers(name, alone=alone))
        return [*([] if queue is None else [queue]), *followers]

    def close(self, _close: Close, _client: str) -> list[Instruction]:
        """Refuse puts from now on, waiting ones too; getters drain what is there."""
        queues = self._queues
        if queues.closed:
            return []
        queues.closed = True
        out: list[Instruction] = []
        for queue in queues.all():
            queue.refuse_puts(out)
            queue.gate.end(Queue.why_over(queues.closed), queue.describe(), out)
        return queues.settle(list(queues.all()), out)


def lose_items(queues: QueueSet, held: Iterable[Item], why: Callable[[Any], str]) -> list[Instruction]:
    """Lose items whose bytes are gone, as of `ChannelState.lose_items`; `held` are in no queue and no delivery."""
    operations = [each for client in queues.clients.values() for each in client.operations.values()]
    sent = (item for each in operations if isinstance(each, Getter) for item in each.items or ())
    kept = (item for queue in queues.all() for item in queue.items())
    for item in chain(kept, sent, held):
        item.lost = item.lost or why(item.payload)
    queues.tally.has_losses = True
    out: list[Instruction] = []
    for putter in operations:
        if isinstance(putter, Putter) and putter.complete and (lost := why(putter.item.payload)):
            putter.queue.withdraw_put(putter)
            out.append(Refuse(putter.client.name, putter.ticket, Reason.LOST, f"its item {lost}"))
            putter.queue.release_stream(putter.client, out)
    every = list(queues.all())
    for queue in every:
        queue.drop_lost()
    return queues.settle(every, out)
