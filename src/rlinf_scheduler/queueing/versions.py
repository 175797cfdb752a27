"""The queues of a channel that have versions: slots are given there, and a consumer says at which version it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from rlinf_scheduler.queueing.item import QueueName, as_name
from rlinf_scheduler.queueing.messages import Accept, Instruction, Reason, Refuse
from rlinf_scheduler.queueing.policy import Handler, Merger, Policy
from rlinf_scheduler.queueing.queue import Queue
from rlinf_scheduler.queueing.queue_set import QueueSet
from rlinf_scheduler.queueing.saved_items import LoadedItems, SavedItems
from rlinf_scheduler.queueing.version_gate import Move, PermitRequest, VersionGate
from rlinf_scheduler.queueing.wanted import WantedGroup


class AskForSlot(Struct, tag=7, array_like=True, gc=False):
    """Ask for leave to make an item -> `Delivered` with a slot, or `Refused`; it goes back by `Withdraw`."""

    ticket: int
    queue: Any
    wait: bool
    max_lag: int


class SetVersion(Struct, tag=8, array_like=True, gc=False):
    """Say which version takes the items of a queue from now on -> accepted or `Refused`."""

    ticket: int
    queue: Any
    wait: bool
    version: int
    batch_items: int = 0
    begins: bool = False


class HoldSlot(Struct, tag=34, array_like=True):
    """The client holds a copy of a slot, which it calls `key`; or one was `sent`, and is nobody's yet -> `Done`.

    The one that was sent as `source` is no more (0: it may be read again): it is the client's, and ends with it.
    """

    queue: Any
    slot: int
    key: int
    sent: bool
    source: int = 0


class LetGoOfSlot(Struct, tag=35, array_like=True):
    """The client holds that copy no more (0: it held none); nor is the one that was sent as `source` -> `Done`."""

    queue: Any
    slot: int
    key: int
    source: int = 0


class VersionedQueues(Policy):
    """The queues of a channel that have versions."""

    gate_type = VersionGate

    def __init__(self, queues: QueueSet, bounds: Any) -> None:
        super().__init__(queues, bounds)
        self._versioned: dict[Queue, VersionGate] = {}

    def queues(self) -> list[Queue]:
        """Return the queues that have versions, those that are there, in order."""
        return [queue for queue in self._versioned if self._queues.find(queue.name) is queue]

    def of(self, queue: Queue | None) -> VersionGate | None:
        """Return the gate of a queue; None where it has no versions."""
        return self._versioned.get(queue) if queue is not None else None

    def begin(self, queue: Queue) -> VersionGate:
        """Return the gate of a queue, which has versions from now on.

        Raises:
            ValueError: what is here has no slot, or somebody waits for a group.
        """
        gate = self._versioned.get(queue)
        if gate is not None:
            return gate
        if any(isinstance(getter.wanted, WantedGroup) for getter in (*queue.getters, *queue.skipped)):
            message = "somebody waits for a group of it: collect groups in another queue"
            raise ValueError(message)
        if queue.num_held or queue.putters or queue.num_lent or queue.delivering:
            message = f"it holds what was put without a slot: {queue.describe()}"
            raise ValueError(message)
        self._versioned = {each: self._versioned[each] for each in self.queues()}
        gate = self._versioned[queue] = self.gate_type(queue, self._queues)
        queue.decide_by(gate=gate)
        return gate

    # -- snapshots -------------------------------------------------------------------------------

    def save(self, state: Any, data: Mapping[Queue, Any], items: SavedItems) -> None:
        """Add the versions of queues, and the slots that are out."""
        for queue, its in data.items():
            if isinstance(queue.gate, VersionGate):
                its.versions = queue.gate.save(items)
        if not items.at_rest:
            state.versioned = [queue.name for queue in self.queues()]

    def remake(self, name: QueueName, data: Any) -> Queue | None:
        """Return a queue that has versions, still empty."""
        if data.versions is None:
            return None
        queue = self._queues.make(name)
        self.begin(queue).load(data.versions)
        return queue

    def load(self, queues: Sequence[tuple[Queue, Any]], items: LoadedItems) -> None:
        """Count the items that are open."""
        for queue, data in queues:
            if isinstance(queue.gate, VersionGate):
                queue.gate.load_items(queue.fifo)
                # What does not count is lent, and comes below, or is a part, and given for good.
                sent = (getter.items or () for getter in data.sent if getter.counts)
                queue.gate.load_items(item for items in sent for item in items)
        for lent in self._queues.tally.lender.all():
            if isinstance(lent.queue.gate, VersionGate):
                lent.queue.gate.load_items(lent.items.values())

    def arrange(self, state: Any, items: LoadedItems) -> None:
        """Have queues in the order of before."""
        known = [self._queues.find(as_name(name)) for name in state.versioned]
        first = [queue for queue in known if queue is not None]
        self._versioned = {queue: self._versioned[queue] for queue in (*first, *self._versioned)}

    @staticmethod
    def merge(first: Any, state: Any, queues: Sequence[tuple[Any, Any]], merger: Merger) -> None:
        """Keep the version of the first: with what was there first, it is the one of then."""
        for one, two in queues:
            if one.versions is not None:
                two.versions = one.versions

    def clear(self) -> None:
        """Forget all of them."""
        self._versioned.clear()

    def handlers(self) -> dict[type, Handler]:
        """Return what handles slots and versions."""
        return {
            AskForSlot: self.give_slot,
            SetVersion: self.set_version,
            HoldSlot: self.hold,
            LetGoOfSlot: self.let_go,
        }

    def give_slot(self, asked: AskForSlot, client: str) -> list[Instruction]:
        """Give a producer leave to make an item, taken at most `max_lag` versions later: Deliver or Refuse.

        Raises:
            ValueError: the queue holds what was put without a slot.
        """
        queues, name, owner = self._queues, as_name(asked.queue), (client, asked.ticket)
        if queues.is_over(name):
            return [queues.refuse_put(*owner, name)]
        queue = queues.make(name)
        kept = self.begin(queue).kept
        kept.asking[owner] = PermitRequest(asked.max_lag, queue.tally.clock.now)
        out = queues.settle((queue,), [])
        if not asked.wait and kept.asking.pop(owner, None) is not None:
            out.append(Refuse(*owner, Reason.EMPTY, queue.describe()))
        return out

    def set_version(self, said: SetVersion, client: str) -> list[Instruction]:
        """Let a consumer say its version: Accept, once nothing may come back that is too old; or Refuse.

        Raises:
            ValueError: the version goes back, it is not known how many items one takes, or the queue holds what was put
                without a slot.
        """
        queues, name, owner = self._queues, as_name(said.queue), (client, said.ticket)
        if self.of(queues.find(name)) is None and queues.is_over(name):
            return [Accept(*owner)]  # nothing is made any more
        queue = queues.make(name)
        gate, out = self.begin(queue), list[Instruction]()
        move = Move(said.version, said.batch_items, said.begins, queue.tally.clock.now)
        gate.move(*owner, move, out)
        queues.settle((queue,), out)
        if not said.wait and owner in gate.kept.moving:
            state = queue.describe()
            gate.withdraw(*owner)
            out.append(Refuse(*owner, Reason.EMPTY, state))
        return out

    def hold(self, hold: HoldSlot, client: str) -> list[Instruction]:
        """Note that a client holds a copy of a slot, or that one was sent and is nobody's yet."""
        gate = self.of(self._queues.find(as_name(hold.queue)))
        if gate is not None:
            gate.hold(hold.slot, "" if hold.sent else client, hold.key, hold.source)
        return []

    def let_go(self, let_go: LetGoOfSlot, client: str) -> list[Instruction]:
        """Note that a client holds a copy no more; nor is there the one that was sent as `source`."""
        queue = self._queues.find(as_name(let_go.queue))
        gate = self.of(queue)
        if queue is None or gate is None:
            return []
        gate.let_go(let_go.slot, client, let_go.key, let_go.source)
        return self._queues.settle((queue,), [])

    def withdraw(self, client: str, ticket: int) -> list[Instruction]:
        """Forget who waits for a slot or a version, or a slot that nobody wants; [] if there is no such operation."""
        for queue in self.queues():
            if state := self._versioned[queue].withdraw(client, ticket):
                out: list[Instruction] = [Refuse(client, ticket, Reason.CANCELLED, state)]
                return self._queues.settle((queue,), out)
        return []

    def lose(self, client: str, out: list[Instruction]) -> list[Queue]:
        """Forget a client that is gone; return the queues for which that changes something."""
        queues = self.queues()
        for queue in queues:
            self._versioned[queue].lose(client)
        return queues
