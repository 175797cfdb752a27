"""One queue's items, handed out to data-parallel ranks step by step: each rank, a *shard*, has a part of every step.

- A step is cut from the queue once, for all shards; so they see the same number of steps, and the same end. At the end
  of a queue a part may be empty.
- A part stays here until its shard asks for the step after it. A rank that dies is succeeded by one that asks as if it
  had none yet, and has the same part again.
- Who asks for a shard last has it: an earlier one that still waits is told so.
- Shards that lag hold the others up before too many of their parts gather.
- Shards may be the ranks of a group that is resized. A step that was cut stays as it is; the next one is for those who
  are there then. A rank that has left gets what was cut for it, and then its end; once it is gone for good, that is in
  the queue again, at its old place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

from msgspec import Struct
from msgspec.structs import replace

from rlinf_scheduler.queueing.balance import balanced, imbalance, least_loaded, round_robin
from rlinf_scheduler.queueing.contents import Parts
from rlinf_scheduler.queueing.item import Item, SubscriptionName, as_name, exact, rounded
from rlinf_scheduler.queueing.members import Resize
from rlinf_scheduler.queueing.messages import Deliver, Get, Instruction, Reason, Refuse
from rlinf_scheduler.queueing.operations import Client, Getter
from rlinf_scheduler.queueing.policy import Handler, Merger, OperationOver, Policy
from rlinf_scheduler.queueing.queue import Queue
from rlinf_scheduler.queueing.saved_items import LoadedItems, SavedItems
from rlinf_scheduler.queueing.shard_plan import ShardPlan
from rlinf_scheduler.queueing.wanted import Limits, Wanted
from rlinf_scheduler.wording import counted

# So many steps may be cut that a shard has not done with.
MAX_AHEAD = 8
NO_PART = "it was acknowledged before, or another one asks for this shard now"


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
            self.queue.parts.shard(self.shard).waiting = self

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
        number: which shard it is; -1 in files of before: it is the number of its place.
        client: the name of who has asked last; at rest nobody.
    """

    parts: list[Part] = []
    in_hand: Part | None = None
    holder: Any = None
    waiting: Any = None
    number: int = -1
    client: str = ""

    @property
    def num_open(self) -> int:
        """How many steps it has not done with."""
        return len(self.parts) + (self.in_hand is not None)

    def take_parts(self) -> list[Item]:
        """Take all that it has not done with, in the order of the queue."""
        parts, self.parts, self.in_hand = [*filter(None, (self.in_hand,)), *self.parts], [], None
        return sorted((item for part in parts for item in part.items), key=lambda item: item.order)


class ShardingState(Struct, Parts, eq=False, array_like=True):
    """The shards of one queue.

    Attributes:
        shards: those of the plan, and behind them those that have left and have something to do.
        is_restored: whoever asks first says for which ranks the next step is.
    """

    plan: ShardPlan
    shards: list[ShardState]
    next_step: int = 0
    num_dealt: int = 0
    is_restored: bool = True

    def is_replaced_by(self, plan: ShardPlan) -> bool:
        """Return whether the next step is to be for the ranks of another plan.

        Raises:
            ValueError: that differs in more than its ranks, or its ranks cannot be others.
        """
        if self.is_restored:
            return self.plan._replace(num_shards=plan.num_shards, members=plan.members) == plan or (
                self.plan.is_replaced_by(plan)
            )
        return self.plan.is_replaced_by(plan)

    def is_idle(self, ended: bool) -> bool:
        """Return whether nothing is here, nobody waits, and no step is to have the next number."""
        return ended and not any(shard.num_open or shard.waiting for shard in self.shards)

    @property
    def getters(self) -> Sequence[PartGetter]:
        """Those who wait for a part."""
        return [shard.waiting for shard in self.shards if shard.waiting is not None]

    @property
    def members(self) -> Sequence[ShardState]:
        """The shards that the next step is for."""
        return self.shards[: self.plan.num_shards]

    @property
    def left(self) -> Sequence[ShardState]:
        """Those that it is not for, and that have something to do."""
        return self.shards[self.plan.num_shards :]

    def find(self, number: int) -> ShardState | None:
        """Return a shard, if it is there."""
        return next((shard for shard in self.shards if shard.number == number), None)

    def shard(self, number: int) -> ShardState:
        """Return a shard; one that is not there has left."""
        shard = self.find(number)
        if shard is None:
            shard = ShardState(number=number)
            self.shards.append(shard)
        return shard

    def resize(self, plan: ShardPlan) -> None:
        """Let the next step be for others."""
        known = {shard.number: shard for shard in self.shards}
        members = [known.pop(number, ShardState(number=number)) for number in plan.numbers]
        self.plan, self.shards, self.is_restored = plan, [*members, *known.values()], False

    @property
    def may_cut(self) -> bool:
        """Whether no shard lags too far behind; who has left gets no more."""
        return max(shard.num_open for shard in self.members) < MAX_AHEAD

    def ask(self, getter: PartGetter, done_step: int) -> PartGetter | None:
        """Let a shard ask for the step after `done_step`; return an earlier getter whose place this one takes."""
        shard = self.shard(getter.shard)
        shard.client = getter.client.name
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
        shard = self.find(index)
        if shard is None or shard.in_hand is None or shard.in_hand.step != step:
            return None
        holder: PartGetter | None = shard.holder
        return holder

    def finish(self, index: int) -> None:
        """Note that a shard is done with the part that it has in hand."""
        self.shard(index).in_hand = None

    def forget(self, getter: PartGetter) -> None:
        """Let a getter wait no more."""
        shard = self.find(getter.shard)
        if shard is not None and shard.waiting is getter:
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
            self._let_go(queue, out)
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

    def _let_go(self, queue: Queue, out: list[Instruction]) -> None:
        """Tell those who have left and had everything; forget them."""
        for shard in self.left:
            getter: PartGetter | None = shard.waiting
            if getter is not None:
                queue.withdraw_get(getter)
                state = f"shard {shard.number} has left, and had all that was cut for it"
                out.append(Refuse(getter.client.name, getter.ticket, Reason.LEFT, state))
        self.shards = [*self.members, *(shard for shard in self.left if shard.num_open)]

    def _cut_next(self, queue: Queue, closed: bool) -> bool:
        """Cut the next step if it is there, or if this is all that comes."""
        if not queue.fifo.num_items or not self.may_cut:
            return False
        batch = self.plan.wanted.take_of(queue, closed, waited=False)
        if batch is None:
            return False
        self.cut(*batch)
        # A step of all ranks is one consumption: only what is of ranks that have left comes back to the queue.
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
        for shard, its_places in zip(self.members, places, strict=True):
            its_items = [items[place] for place in its_places]
            weight = _weight_of(its_items)
            part = Part(self.next_step, its_items, weight, unevenness, complete or not has_target)
            shard.parts.append(part)
        self.next_step += 1

    def _why_no_part(self, queue: Queue, closed: bool) -> Reason | None:
        if queue.is_last(closed):
            may_come = queue.may_come_back() or queue.fifo.num_items or self.left
            return None if may_come else queue.why_over(closed)
        return Reason.IMPOSSIBLE if self.may_cut and queue.is_stuck() else None

    def describe(self) -> Iterator[str]:
        """Yield how far the shards have come, and which of them lag, in phrases."""
        yield f"{counted(self.next_step, 'step')} for {counted(self.plan.num_shards, 'shard')}"
        for shard in self.members:
            if shard.num_open > 1:
                yield f"shard {shard.number} has {shard.num_open} steps to do"
        for shard in self.left:
            yield f"shard {shard.number} has left with {counted(shard.num_open, 'step')} to do"


class Shardings(Policy):
    """The queues of a channel that are divided."""

    sharding_type = ShardingState

    def handlers(self) -> dict[type, Handler]:
        """Return what handles parts."""
        return {WantedPart: self.get, DonePart: self.finish, Resize: self.resize}

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
        plan.check_index(wanted.index)
        known = self._queues.find(queue_name)
        sharding = None if known is None else self.of(known)
        is_newer = False if sharding is None else sharding.is_replaced_by(plan)
        queue = self._queues.find_or_make(queue_name)
        if queue is None:
            return self._queues.refuse_unsubscribed(client, get.ticket)
        queue.gate.check(Wanted(None, Limits(plan.batch_items or 1)))
        if sharding is None:
            shards = [ShardState(number=number) for number in plan.numbers]
            sharding = self.sharding_type(plan, shards, is_restored=False)
            queue.decide_by(parts=sharding)
        about = self._queues.client(client), get.ticket, queue, None, queue.tally.clock.now
        getter, out = PartGetter(*about, shard=wanted.index), list[Instruction]()
        if is_newer:
            self._adopt(queue, sharding, plan, out)
        self._ask(queue, sharding, getter, wanted.done_step, out)
        return self._queues.after_get(getter, out, get.wait)

    def resize(self, resize: Resize, _client: str = "") -> list[Instruction]:
        """Let the next step of what is divided among the ranks of a group be for those that it has now."""
        members, out, queues = resize.members, list[Instruction](), list[Queue]()
        members.check()
        for queue in self._queues.all():
            sharding = self.of(queue)
            before = None if sharding is None else sharding.plan.members
            if sharding is not None and before is not None and members.replaces(before):
                self._adopt(queue, sharding, sharding.plan.of(members), out)
                queues.append(queue)
        return self._queues.settle(queues, out)

    def _adopt(self, queue: Queue, sharding: ShardingState, plan: ShardPlan, out: list[Instruction]) -> None:
        sharding.resize(plan)
        self._take_back(queue, sharding, out)

    def _take_back(self, queue: Queue, sharding: ShardingState, out: list[Instruction]) -> bool:
        """Have in the queue again what was cut for ranks that have left and are gone; whether anything was."""
        gone = [shard for shard in sharding.left if shard.client not in self._queues.clients]
        for shard in gone:
            for item in shard.take_parts():
                try:
                    queue.reopen(item)
                except ValueError as error:  # there is no version any more that may take it
                    queue.tally.dead_letters.bury(queue, item, str(error), shard.client, out)
        return bool(gone)

    def lose(self, client: str, out: list[Instruction]) -> Iterable[Queue]:
        """Have in their queues again what was cut for ranks that have left and are gone."""
        divided = ((queue, self.of(queue)) for queue in self._queues.all())
        return [queue for queue, each in divided if each is not None and self._take_back(queue, each, out)]

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
                is_restored = items.at_rest or sharding.is_restored
                its.sharding = replace(sharding, shards=shards, is_restored=is_restored)

    def _saved(self, shard: ShardState, items: SavedItems, queue: Queue) -> ShardState:
        parts = [_saved(part, items, queue) for part in shard.parts]
        client = "" if items.at_rest else shard.client
        if shard.in_hand is None:
            return ShardState(parts, number=shard.number, client=client)
        in_hand = _saved(shard.in_hand, items, queue)
        if items.at_rest:
            return ShardState([in_hand, *parts], number=shard.number)
        holder = shard.holder.client.name, shard.holder.ticket
        return ShardState(parts, in_hand, holder, number=shard.number, client=client)

    def load(self, queues: Sequence[tuple[Queue, Any]], items: LoadedItems) -> None:
        """Divide queues as they were divided."""
        for queue, data in queues:
            for place, shard in enumerate(() if data.sharding is None else data.sharding.shards):
                shard.number = place if shard.number < 0 else shard.number
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
    merged = replace(first if second is None else second, shards=[])
    merged.next_step = max(first.next_step, merged.next_step)
    merged.num_dealt = max(first.num_dealt, merged.num_dealt)
    before = {shard.number: shard.parts for shard in first.shards}
    present = {} if second is None else {shard.number: shard.parts for shard in second.shards}
    for number in dict.fromkeys((*merged.plan.numbers, *present, *before)):
        here = present.get(number, [])
        steps = {part.step for part in here}
        missing = [part for part in before.get(number, []) if part.step not in steps]
        parts = [replace(part, items=merger.missing(part.items)) for part in missing]
        merged.shards.append(ShardState([*parts, *here], number=number))
    return merged


def _weight_of(items: Sequence[Item]) -> int | float:
    return rounded(sum(exact(item.weight) for item in items))


def _without_lost(part: Part, lost: list[Item]) -> Part:
    gone = [item for item in part.items if item.lost]
    if not gone:
        return part
    lost += gone
    living = [item for item in part.items if not item.lost]
    return replace(part, items=living, weight=_weight_of(living))
