"""One queue's items, handed out to data-parallel ranks step by step: each rank, a *shard*, has a part of every step.

- A step is cut from the queue once, for all shards; so they see the same number of steps, and the same end. At the end
  of a queue a part may be empty.
- A part stays here until its shard asks for the step after it. A rank that dies is succeeded by one that asks as if it
  had none yet, and has the same part again.
- Who asks for a shard last has it: an earlier one that still waits is told so.
- Shards that lag hold the others up before too many of their parts gather.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self

from msgspec import Struct
from msgspec.structs import replace

from rlinf_scheduler.queueing.balance import (
    Point,
    balanced,
    by_formula,
    by_table,
    imbalance,
    least_loaded,
    round_robin,
)
from rlinf_scheduler.queueing.contents import Parts
from rlinf_scheduler.queueing.item import Item, SubscriptionName, as_name, check_batch_weight, exact, rounded
from rlinf_scheduler.queueing.messages import Deliver, Get, Instruction, Reason, Refuse
from rlinf_scheduler.queueing.operations import Client, Getter
from rlinf_scheduler.queueing.policy import Handler, Merger, OperationOver, Policy
from rlinf_scheduler.queueing.queue import Queue
from rlinf_scheduler.queueing.saved_items import LoadedItems, SavedItems
from rlinf_scheduler.queueing.wanted import Limits, Wanted
from rlinf_scheduler.wording import counted

POLICIES = ("round_robin", "least_loaded", "balanced")
_ENDLESS = 1 << 62
# So many steps may be cut that a shard has not done with.
MAX_AHEAD = 8
NO_PART = "it was acknowledged before, or another one asks for this shard now"


class ShardPlan(NamedTuple):
    """How a queue is divided; every shard of it says the same.

    Attributes:
        num_shards: how many ranks there are.
        policy: one of POLICIES.
        batch_weight: the weight of a step, of all its parts together; None without.
        batch_items: its number of items; None without. With neither, a step is what there is at a flush, or at the end.
        cost: of an item of weight w: cost[0] * w + cost[1] * w * w.
        equal_counts: of "balanced": parts differ by at most one in their number of items.
        cost_table: points (weight, cost) instead of `cost`; empty without.
    """

    num_shards: int
    policy: str = "round_robin"
    batch_weight: int | float | None = None
    batch_items: int | None = None
    cost: tuple[int | float, int | float] = (1, 0)
    equal_counts: bool = False
    cost_table: tuple[Point, ...] = ()

    def check(self) -> None:
        """Raise ValueError unless it makes sense."""
        if self.num_shards < 1:
            message = f"num_shards is at least 1, not {self.num_shards}"
            raise ValueError(message)
        if self.policy not in POLICIES:
            message = f"policy is one of {', '.join(POLICIES)}, not {self.policy!r}"
            raise ValueError(message)
        if self.batch_weight is not None and self.batch_items is not None:
            message = "a step has a batch_weight, or batch_items, or neither"
            raise ValueError(message)
        if self.batch_weight is not None:
            check_batch_weight(self.batch_weight)
        if self.batch_items is not None and self.batch_items < 1:
            message = f"batch_items is at least 1, not {self.batch_items}"
            raise ValueError(message)

    def differences(self, other: ShardPlan) -> tuple[str, str]:
        """Return what this plan and another one say where they differ, in phrases."""
        names = [name for name in self._fields if getattr(self, name) != getattr(other, name)]
        one, two = (", ".join(f"{name}={plan._said(name)}" for name in names) for plan in (self, other))
        return one, two

    def _said(self, name: str) -> str:
        value = getattr(self, name)
        return f"{len(value)} points" if name == "cost_table" else repr(value)

    @property
    def wanted(self) -> Wanted:
        """Return the terms of a step's batch."""
        if self.batch_weight is not None:
            return Wanted(self.batch_weight)
        if self.batch_items is not None:
            return Wanted(None, Limits(self.batch_items, self.batch_items))
        return Wanted(None, Limits(_ENDLESS))

    def costs(self, items: Sequence[Item]) -> list[float]:
        """Return the cost of each item."""
        weights = [rounded(item.weight) for item in items]
        if self.cost_table:
            return [by_table(self.cost_table, weight) for weight in weights]
        return [by_formula(*self.cost, weight) for weight in weights]


class WantedPart(Struct, frozen=True, array_like=True, tag="part"):
    """A shard's part that somebody wants: of the step after `done_step`, of a queue that is divided by a plan."""

    plan: ShardPlan
    index: int
    done_step: int = -1


class Part(Struct, frozen=True, eq=False, array_like=True):
    """A part of one step of a queue that is divided; steps count from 0.

    Attributes:
        imbalance: of the step: the largest part's cost over the mean.
        complete: the step is as large as was wanted; False for what was left.
    """

    step: int
    items: list[Item]
    weight: int | float
    imbalance: float
    complete: bool

    def told(self, items: list[Item]) -> tuple[Any, ...]:
        """Return its step, the weights of its items, and how uneven the step's parts are, as its getter is told."""
        return self.step, [rounded(item.weight) for item in items], self.imbalance


class DonePart(Struct, tag=33, array_like=True):
    """A shard is done with its part of a step -> `Done`."""

    queue: Any
    index: int
    step: int


class PartGetter(Getter, tag="part"):
    """A shard that asks for its part of the next step; it is in no line.

    Attributes:
        shard: which one.
        part: that it was given.
    """

    shard: int = 0
    part: Part | None = None

    counts: ClassVar[bool] = False
    is_part: ClassVar[bool] = True

    def describe(self) -> str:
        """Return what it asks for, in a phrase."""
        return "a shard's next batch"

    def leave(self) -> None:
        """Wait no more."""
        self.queue.parts.forget(self)

    def line_up(self) -> None:
        """Wait for the next part of its shard."""
        if isinstance(self.queue.parts, ShardingState):
            self.queue.parts.shards[self.shard].waiting = self

    def save(self, items: SavedItems) -> Self:
        """Return it as data."""
        part = None if self.part is None else _saved(self.part, items, None)
        return replace(super().save(items), part=part)

    def load(self, items: LoadedItems) -> None:
        """Have what it was sent, as it was."""
        super().load(items)
        if self.part is not None:
            self.items = items.each(self.queue.name, self.part.items)

    def delivery(self, items: list[Item]) -> Deliver:
        """Return the instruction that sends its part."""
        return super().delivery(items)._replace(grant=self.part)

    def lose(self, taken: bool, out: list[Instruction]) -> None:
        """Be lost; its part is kept for its shard."""
        self.queue.give_back((self,))


class ShardState(Struct, eq=False, array_like=True):
    """The parts of one shard that it has not done with.

    Attributes:
        parts: those that it was not given.
        in_hand: the one that it has.
        holder: who has that; in a snapshot the client's name and the ticket.
        waiting: who asks for the next one; in a snapshot nothing, for it stands at its queue.
    """

    parts: list[Part] = []
    in_hand: Part | None = None
    holder: Any = None
    waiting: Any = None

    @property
    def num_open(self) -> int:
        """How many steps it has not done with."""
        return len(self.parts) + (self.in_hand is not None)


class ShardingState(Struct, Parts, eq=False, array_like=True):
    """The shards of one queue."""

    plan: ShardPlan
    shards: list[ShardState]
    next_step: int = 0
    num_dealt: int = 0

    def is_idle(self, ended: bool) -> bool:
        """Return whether nothing is here, nobody waits, and no step is to have the next number."""
        return ended and not any(shard.num_open or shard.waiting for shard in self.shards)

    @property
    def getters(self) -> Sequence[PartGetter]:
        """Those who wait for a part."""
        return [shard.waiting for shard in self.shards if shard.waiting is not None]

    @property
    def may_cut(self) -> bool:
        """Whether no shard lags too far behind."""
        return max(shard.num_open for shard in self.shards) < MAX_AHEAD

    def ask(self, getter: PartGetter, done_step: int) -> PartGetter | None:
        """Let a shard ask for the step after `done_step`; return an earlier getter whose place this one takes."""
        shard = self.shards[getter.shard]
        if shard.in_hand is not None:
            shard.parts.insert(0, shard.in_hand)
        shard.in_hand = None
        while shard.parts and shard.parts[0].step <= done_step:
            shard.parts.pop(0)
        earlier: PartGetter | None = shard.waiting
        shard.waiting = getter
        return earlier

    def holder(self, index: int, step: int) -> PartGetter | None:
        """Return the getter that has a shard's part of a step in hand; None without one."""
        shard = self.shards[index] if 0 <= index < len(self.shards) else None
        if shard is None or shard.in_hand is None or shard.in_hand.step != step:
            return None
        holder: PartGetter | None = shard.holder
        return holder

    def finish(self, index: int) -> None:
        """Note that a shard is done with the part that it has in hand."""
        self.shards[index].in_hand = None

    def forget(self, getter: PartGetter) -> None:
        """Let a getter wait no more."""
        shard = self.shards[getter.shard]
        if shard.waiting is getter:
            shard.waiting = None

    def drop_lost(self, failed: Getter | None = None) -> list[Item]:
        """Take what is lost out of parts that no shard has, and out of one that did not arrive."""
        lost: list[Item] = []
        part = failed.part if isinstance(failed, PartGetter) else None
        for shard in self.shards:
            shard.parts = [_without_lost(each, lost) for each in shard.parts]
            if shard.in_hand is not None and shard.in_hand is part:
                shard.in_hand = _without_lost(part, lost)
        return lost

    def items(self) -> Iterator[Item]:
        """Return all items, those in hand too."""
        for shard in self.shards:
            for part in (*shard.parts, *filter(None, (shard.in_hand,))):
                yield from part.items

    def serve(self, queue: Queue, closed: bool, out: list[Instruction]) -> None:
        """Hand parts out, and cut steps while somebody waits for one."""
        while True:
            self._hand_out(out)
            if not self.getters or not self._cut_next(queue, closed):
                break
        reason = self._why_no_part(queue, closed)
        for getter in self.getters if reason is not None else ():
            queue.withdraw_get(getter)
            out.append(Refuse(getter.client.name, getter.ticket, reason or Reason.CLOSED, queue.describe()))

    def _hand_out(self, out: list[Instruction]) -> None:
        """Give their parts to those who wait and have one."""
        for shard in self.shards:
            getter: PartGetter | None = shard.waiting
            if getter is not None and shard.parts:
                shard.in_hand = part = shard.parts.pop(0)
                shard.holder, shard.waiting = getter, None
                getter.items, getter.part, getter.complete = part.items, part, part.complete
                out.append(getter.delivery(part.items))

    def _cut_next(self, queue: Queue, closed: bool) -> bool:
        """Cut the next step if it is there, or if this is all that comes."""
        if not queue.fifo.num_items or not self.may_cut:
            return False
        batch = self.plan.wanted.take_of(queue, closed, waited=False)
        if batch is None:
            return False
        self.cut(*batch)
        # A step of all ranks is one consumption: a part never comes back to the queue.
        queue.gate.give(batch[0])
        queue.gate.forget(batch[0])
        return True

    def cut(self, items: list[Item], complete: bool) -> None:
        """Divide the items of the next step."""
        plan = self.plan
        costs = plan.costs(items)
        if plan.policy == "balanced":
            places = balanced(costs, plan.num_shards, equal_counts=plan.equal_counts)
        elif plan.policy == "least_loaded":
            places = least_loaded(costs, plan.num_shards)
        else:
            places = round_robin(len(items), plan.num_shards, self.num_dealt)
        self.num_dealt += len(items)
        unevenness = imbalance(costs, places)
        has_target = plan.batch_weight is not None or plan.batch_items is not None
        for shard, its_places in zip(self.shards, places, strict=True):
            its_items = [items[place] for place in its_places]
            weight = _weight_of(its_items)
            part = Part(self.next_step, its_items, weight, unevenness, complete or not has_target)
            shard.parts.append(part)
        self.next_step += 1

    def _why_no_part(self, queue: Queue, closed: bool) -> Reason | None:
        if queue.is_last(closed):
            return None if queue.may_come_back() or queue.fifo.num_items else queue.why_over(closed)
        return Reason.IMPOSSIBLE if self.may_cut and queue.is_stuck() else None

    def describe(self) -> Iterator[str]:
        """Yield how far the shards have come, and which of them lag, in phrases."""
        yield f"{counted(self.next_step, 'step')} for {counted(self.plan.num_shards, 'shard')}"
        for index, shard in enumerate(self.shards):
            if shard.num_open > 1:
                yield f"shard {index} has {shard.num_open} steps to do"


class Shardings(Policy):
    """The queues of a channel that are divided."""

    sharding_type = ShardingState

    def handlers(self) -> dict[type, Handler]:
        """Return what handles parts."""
        return {WantedPart: self.get, DonePart: self.finish}

    def of(self, queue: Queue) -> ShardingState | None:
        """Return the shards of a queue; None where it is not divided."""
        return queue.parts if isinstance(queue.parts, ShardingState) else None

    def get(self, get: Get[WantedPart], client: str) -> list[Instruction]:
        """Deliver a part to a data-parallel rank, now or later, or refuse it.

        Raises:
            ValueError: the plan, or the index, makes no sense, or other shards of this queue have another plan.
        """
        wanted: Any = get.grant
        plan, queue_name = wanted.plan, as_name(get.queue)
        plan.check()
        if not 0 <= wanted.index < plan.num_shards:
            message = f"there is no shard {wanted.index} of {plan.num_shards}"
            raise ValueError(message)
        known = self._queues.find(queue_name)
        sharding = None if known is None else self.of(known)
        if sharding is not None and sharding.plan != plan:
            others, own = sharding.plan.differences(plan)
            message = f"other shards divide it by {others}, and this one by {own}"
            raise ValueError(message)
        queue = self._queues.find_or_make(queue_name)
        if queue is None:
            return self._queues.refuse_unsubscribed(client, get.ticket)
        queue.gate.check(Wanted(None, Limits(plan.batch_items or 1)))
        if sharding is None:
            sharding = self.sharding_type(plan, [ShardState() for _ in range(plan.num_shards)])
            queue.decide_by(parts=sharding)
        about = self._queues.client(client), get.ticket, queue, None, queue.tally.clock.now
        getter, out = PartGetter(*about, shard=wanted.index), list[Instruction]()
        self._ask(queue, sharding, getter, wanted.done_step, out)
        return self._queues.after_get(getter, out, get.wait)

    def _ask(
        self,
        queue: Queue,
        sharding: ShardingState,
        getter: PartGetter,
        done_step: int,
        out: list[Instruction],
    ) -> None:
        """Let a getter wait for its shard's next part; to settle its queue hands it out."""
        getter.client.operations[getter.ticket] = getter
        earlier = sharding.ask(getter, done_step)
        if earlier is not None:
            del earlier.client.operations[earlier.ticket]
            out.append(Refuse(earlier.client.name, earlier.ticket, Reason.SUCCEEDED, queue.describe()))
        if queue.tally.has_losses:  # a part that its shard had comes back
            queue.fifo.lost += sharding.drop_lost()

    def finish(self, done: DonePart, client: str) -> list[Instruction]:
        """Note that a shard is done with its part of a step before it asks for the next.

        Raises:
            OperationOver: it has not got it.
        """
        queue = self._queues.find(as_name(done.queue))
        sharding = None if queue is None else self.of(queue)
        holder = None if sharding is None else sharding.holder(done.index, done.step)
        if queue is None or sharding is None or holder is None or holder.client.name != client:
            raise OperationOver(NO_PART)
        sharding.finish(done.index)
        return self._queues.settle((queue,), [])

    # -- snapshots -------------------------------------------------------------------------------

    def save(self, state: Any, data: Mapping[Queue, Any], items: SavedItems) -> None:
        """Add the shards of queues that are divided."""
        for queue, its in data.items():
            sharding = self.of(queue)
            if sharding is not None:
                shards = [self._saved(shard, items, queue) for shard in sharding.shards]
                its.sharding = replace(sharding, shards=shards)

    def _saved(self, shard: ShardState, items: SavedItems, queue: Queue) -> ShardState:
        parts = [_saved(part, items, queue) for part in shard.parts]
        if shard.in_hand is None:
            return ShardState(parts)
        in_hand = _saved(shard.in_hand, items, queue)
        if items.at_rest:
            return ShardState([in_hand, *parts])
        return ShardState(parts, in_hand, (shard.holder.client.name, shard.holder.ticket))

    def load(self, queues: Sequence[tuple[Queue, Any]], items: LoadedItems) -> None:
        """Divide queues as they were divided."""
        for queue, data in queues:
            for shard in () if data.sharding is None else data.sharding.shards:
                for part in (*shard.parts, *filter(None, (shard.in_hand,))):
                    items.each(queue.name, part.items)
                if shard.holder is not None:
                    self._hold(queue, shard)
            if data.sharding is not None:
                queue.decide_by(parts=data.sharding)

    def _hold(self, queue: Queue, shard: ShardState) -> None:
        """Let somebody have the part of a shard in hand: what it was sent, if it is there still."""
        name, ticket = shard.holder
        holder = self._queues.operation(name, ticket)
        if isinstance(holder, PartGetter) and holder.part is not None:
            shard.in_hand = holder.part
        else:
            holder = PartGetter(self._queues.clients.get(name) or Client(name), ticket, queue)
        shard.holder = holder

    @staticmethod
    def merge(first: Any, state: Any, queues: Sequence[tuple[Any, Any]], merger: Merger) -> None:
        """Keep the steps of both."""
        for one, two in queues:
            if one.sharding is not None:
                two.sharding = _merged(one.sharding, two.sharding, merger)


def _saved(part: Part, items: SavedItems, queue: Queue | None) -> Part:
    """A part as data; what is lost is counted unless its queue is a subscription's."""
    counts_lost = queue is None or type(queue.name) is not SubscriptionName
    return replace(part, items=items.each(part.items, counts_lost=counts_lost))


def _merged(first: ShardingState, second: ShardingState | None, merger: Merger) -> ShardingState:
    present = [ShardState() for _ in first.shards] if second is None else second.shards
    shards = []
    for shard, here in zip(first.shards, present, strict=True):
        steps = {part.step for part in here.parts}
        missing = [part for part in shard.parts if part.step not in steps]
        parts = [replace(part, items=merger.missing(part.items)) for part in missing]
        shards.append(ShardState([*parts, *here.parts]))
    next_step, num_dealt = first.next_step, first.num_dealt
    if second is not None:
        next_step, num_dealt = max(next_step, second.next_step), max(num_dealt, second.num_dealt)
    return ShardingState(first.plan, shards, next_step, num_dealt)


def _weight_of(items: Sequence[Item]) -> int | float:
    return rounded(sum(exact(item.weight) for item in items))


def _without_lost(part: Part, lost: list[Item]) -> Part:
    gone = [item for item in part.items if item.lost]
    if not gone:
        return part
    lost += gone
    living = [item for item in part.items if not item.lost]
    return replace(part, items=living, weight=_weight_of(living))
