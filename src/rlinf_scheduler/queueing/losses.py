"""Items whose bytes are gone: what leaves its queue, and who is told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

from rlinf_scheduler.queueing.instructions import Bury, Instruction, Reason, Refuse
from rlinf_scheduler.queueing.item import Item, SubscriptionName
from rlinf_scheduler.queueing.operations import Getter, Putter
from rlinf_scheduler.wording import counted


def lose_items(queues: Any, held: Iterable[Item], why: Callable[[Any], str]) -> list[Instruction]:
    """Lose items whose bytes are gone; see `ChannelState.lose_items`.

    Args:
        queues: of the channel.
        held: items that are in no queue and in no delivery.
        why: says of a payload whose it was and how it was lost, in a phrase; "" if it is not lost.
    """
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
        drop(queue)
    settled: list[Instruction] = queues.settle(every, out)
    return settled


def drop(queue: Any, failed: Getter | None = None) -> None:
    """Take out of a queue what is lost; also of a delivery that did not arrive."""
    queue.fifo.drop_lost()
    queue.fifo.lost += queue.parts.drop_lost(failed)


def note(queue: Any, out: list[Instruction]) -> None:
    """Note what was taken out since: getters are to be told, and who has asked."""
    lost: list[Item] = queue.fifo.lost
    queue.fifo.lost = []
    queue.lost += lost
    queue.gate.forget(lost)
    if type(queue.name) is not SubscriptionName:  # what one sees is counted where it was put
        queue.tally.num_lost += len(lost)
        queue.tally.lost_bytes += sum(item.size_bytes for item in lost)
    for item in lost:
        item.payload = None
        if item.question is not None:
            out.append(Bury(*item.question, item.attempts, "", item.lost))


def tell_first(queue: Any, out: list[Instruction]) -> None:
    """Refuse the first getter in line: nobody else will hear of these items."""
    getter = next(chain(queue.getters, queue.parts.getters))
    queue.withdraw_get(getter)
    out.append(told(queue, getter))


def tell(queue: Any, getter: Getter, out: list[Instruction]) -> None:
    """Refuse a getter, and tell it of the items that are lost."""
    note(queue, out)
    out.append(told(queue, getter))


def told(queue: Any, getter: Getter) -> Refuse:
    """Return what a getter is told."""
    counts = Counter(item.lost for item in queue.lost)
    queue.lost = []
    state = "; ".join(f"{counted(count, 'item')} {why}" for why, count in counts.items())
    return Refuse(getter.client.name, getter.ticket, Reason.LOST, state)
