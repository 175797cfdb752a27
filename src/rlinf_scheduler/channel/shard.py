"""One data-parallel rank's part of a queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from numbers import Real
from typing import Any, ClassVar, Self

from rlinf_scheduler.channel import control_wire, wire
from rlinf_scheduler.channel.access import ChannelAccess, OfServer
from rlinf_scheduler.channel.arguments import DEFAULT_QUEUE, checked_count, checked_timeout
from rlinf_scheduler.channel.batch import Batch, Delivery
from rlinf_scheduler.channel.batches import checked_batch_weight
from rlinf_scheduler.channel.operation import ChannelOperation
from rlinf_scheduler.channel.spec import group_ranks
from rlinf_scheduler.checks import called_directly, explains_calls
from rlinf_scheduler.errors import ChannelArgumentError, ChannelClosed, LeaseExpired
from rlinf_scheduler.queueing.balance import Point, checked_table, sampled
from rlinf_scheduler.queueing.item import QueueName, check_weight
from rlinf_scheduler.queueing.shard_plan import ShardPlan
from rlinf_scheduler.queueing.sharding import DonePart, WantedPart
from rlinf_scheduler.session import current_session
from rlinf_scheduler.session.membership import GroupMembers

Cost = str | tuple[float, float] | Sequence[tuple[float, float]] | Callable[[float], float]


class ShardBatch(Batch):
    """A shard's part of one step, in the order of the queue; it may be empty.

    Attributes:
        step: which one, from 0.
        weights: of the items.
        imbalance: of the step: the costliest part over the mean; 1 is best.
        complete: the step is as large as was asked for; False for what was left.
    """

    def __init__(
        self,
        items: Iterable[Any] = (),
        complete: bool = True,
        step: int = 0,
        weights: Sequence[float] = (),
        imbalance: float = 1.0,
    ) -> None:
        super().__init__(items, complete)
        self.step = step
        self.weights = list(weights)
        self.imbalance = imbalance

    @property
    def weight(self) -> float:
        """The sum of the items' weights."""
        return sum(self.weights)

    def split(self, max_weight: float, count: int = 0) -> list[list[Any]]:
        """Return micro-batches: runs of items of at most this weight, or of one heavier item.

        Args:
            max_weight: of a micro-batch.
            count: how many there are at least, for ranks that need the same number; the last ones are empty then.

        >>> ShardBatch("abcd", weights=[3, 4, 9, 1]).split(8, count=4)
        [['a', 'b'], ['c'], ['d'], []]
        """
        runs: list[list[Any]] = []
        room: float = 0
        for item, weight in zip(self, self.weights, strict=True):
            if not runs or weight > room:
                runs.append([])
                room = max_weight
            runs[-1].append(item)
            room -= weight
        return runs + [[] for _ in range(count - len(runs))]


class ShardOperation(ChannelOperation):
    """A get of one rank's part of a step.

    Attributes:
        request: which part, after which step, and how the queue is divided.
    """

    __slots__ = ("request",)
    is_plain = False
    request: WantedPart

    def renewed(self) -> Self:
        """The same, begun at the same time, as another operation."""
        again = super().renewed()
        again.request = self.request
        return again

    def opening(self, _num_frames: int = 0, _size_bytes: int | None = None) -> wire.AnyGet:
        """How it begins at the server."""
        return wire.Get(self.ticket, self.queue_name, self.wait, grant=self.request)

    @property
    def is_batch(self) -> bool:
        """Whether it asks for several items."""
        return True

    def describe_batch(self) -> str:
        """Describe the part that it asks for, in a phrase."""
        request = self.request
        return f"step {request.done_step + 1} of shard {request.index} of {request.plan.num_shards}"


@explains_calls
class Shard:
    """Batches of one rank, step by step, until the queue ends; all ranks see the same number of them.

    A batch is done with when the next one is asked for. Whoever makes a new one of these for the same rank, because
    the earlier one died, say, gets the batch that was not done with again, as the same step.

    Args:
        channel: whose queue it is.
        queue_name: the queue.
        index: the rank.
        plan: how the queue is divided.
        members: the ranks that it is divided among as they were; None: they stay as they are.

    Attributes:
        done_step: the last step that is done with; -1 before the first.
    """

    def __init__(
        self,
        channel: Sharding,
        queue_name: QueueName,
        index: int,
        plan: ShardPlan,
        members: GroupMembers | None = None,
    ) -> None:
        self._members = members
        self._channel = channel
        self._queue_name = queue_name
        self._index = index
        self._plan = plan
        self._last_step = -1
        self.done_step = -1

    @called_directly("Shard")
    def next_batch(self, timeout_s: float | None = None) -> ShardBatch:
        """Be done with the batch before, and wait for the next one.

        Args:
            timeout_s: how long, in seconds.

        Raises:
            BatchTimeout: it was not there in time; the text says which shards lag.
            ChannelClosed: the queue has ended, and no shard gets another batch; or this rank has left its group, and
                has had all that was cut for it.
            ChannelError: another one has asked for this shard meanwhile.
            ChannelArgumentError: other shards divide the queue in another way, or `timeout_s` makes no sense.
        """
        limit_s = self._checked(timeout_s)
        self.done_step = self._last_step
        batch = self._next(limit_s)
        self._last_step = batch.step
        return batch

    def __iter__(self) -> Iterator[ShardBatch]:
        """Take batch after batch, until the queue has ended."""
        while True:
            try:
                batch = self.next_batch()
            except ChannelClosed:
                return
            yield batch

    def lease(self, timeout_s: float | None = None) -> ShardLease:
        """Return what takes the next batch for the time of a `with` block, and acknowledges it at the end.

            with shard.lease() as lease:
                self.train(lease.items)

        What was acknowledged does not come to a successor of this rank again, also before the next batch is asked for.
        If the block ends by an exception, the next batch is this one again.

        Args:
            timeout_s: how long to wait for it, in seconds.

        Raises (when the block is entered):
            BatchTimeout, ChannelClosed, ChannelError, ChannelArgumentError: as of `next_batch`.

        Raises (when it ends):
            LeaseExpired: another one has asked for this shard meanwhile.
        """
        return ShardLease(self, self._checked(timeout_s))

    def _checked(self, timeout_s: Any) -> float | None:
        return checked_timeout(self._channel._name, timeout_s)

    def _next(self, timeout_s: float | None) -> ShardBatch:
        operation = ShardOperation("get_batch", self._queue_name, timeout_s, self._channel._now)
        if self._members is not None:
            self._members = self._channel._newest(self._members)
            self._plan = self._plan.of(group_ranks(self._members))
        operation.request = WantedPart(self._plan, self._index, self.done_step)
        return self._channel._get_part(operation)

    def _acknowledge(self, step: int) -> None:
        problem = self._channel._settle_part(DonePart(self._queue_name, self._index, step))
        if problem:
            raise LeaseExpired(self._channel._name, self._queue_name, problem)
        self.done_step = self._last_step = step


class ShardLease:
    """A shard's batch that is acknowledged at the end of a `with` block; see `Shard.lease`.

    Attributes:
        items: the batch, once it is entered.
    """

    items: ShardBatch

    def __init__(self, shard: Shard, timeout_s: float | None) -> None:
        self._shard = shard
        self._timeout_s = timeout_s
        self._is_settled = False

    @property
    def step(self) -> int:
        """Which step of the queue it is of."""
        return self.items.step

    def ack(self) -> None:
        """Say that the batch is done with, before the end of the block.

        Raises:
            LeaseExpired: it was acknowledged before, or another one has asked for this shard meanwhile.
            ChannelUnanswered: the channel's process did not answer within 5 s.
        """
        self._shard._acknowledge(self.step)
        self._is_settled = True

    def __enter__(self) -> ShardLease:
        self.items = self._shard._next(self._timeout_s)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and not self._is_settled:
            self.ack()


class Sharding(ChannelAccess):
    """The part of `Channel` that divides a queue among data-parallel ranks."""

    _of_server: ClassVar[OfServer] = (("shard", "shards"),)

    def shard(
        self,
        index: int,
        num_shards: int | GroupMembers,
        *,
        policy: str = "round_robin",
        batch_weight: float | None = None,
        batch_items: int | None = None,
        cost: Cost | None = None,
        equal_counts: bool = False,
        queue_name: QueueName = DEFAULT_QUEUE,
        key: QueueName | None = None,
    ) -> Shard:
        """Return one data-parallel rank's part of a queue, to be iterated: one batch a step.

        The channel divides each step among all ranks, which say the same here but for their `index`. So every rank sees
        the same number of batches, some perhaps empty, and the same end.

            for batch in channel.shard(self.rank, self.members, policy="balanced", batch_items=512):
                self.train(batch)

        Args:
            index: the rank.
            num_shards: the ranks that there are: the `members` of a group, also when it is resized: a step that was cut
                stays as it is, and the next one is for the new ranks; one that has left has what was cut for it, and
                then its end. Or how many there are, from 0, for good.
            policy: "round_robin", in turn as the items came; "least_loaded", each item to the rank that has the least
                to do; "balanced", Karmarkar and Karp's partition of the step.
            batch_weight: the weight of a step, of all ranks together.
            batch_items: its number of items. With neither, a step is what is there at `flush`, or when the queue ends.
            cost: what an item costs: None for its weight, "quadratic" for its square, (a, b) for
                a * weight + b * weight ** 2, a list of points (weight, cost) with straight lines between them, such as
                measured times, or a function of the weight, of which such a list is made here.
            equal_counts: of "balanced": ranks get the same number of items, or one less.
            queue_name: the queue.
            key: another name of `queue_name`.
        """
        queue = self._queue(queue_name, key)
        members = num_shards if isinstance(num_shards, GroupMembers) else None
        count = num_shards if members is None else members.world_size
        plan = _checked_plan(self._name, count, policy, batch_weight, batch_items, cost, equal_counts)
        if type(index) is not int:
            raise ChannelArgumentError(self._name, f"a shard is a rank's number, not {index!r}")
        if members is not None:
            plan = plan.of(group_ranks(members))
        try:
            plan.check_index(index)
        except ValueError as error:
            raise ChannelArgumentError(self._name, str(error)) from error
        return Shard(self, queue, index, plan, members)

    def _newest(self, members: GroupMembers) -> GroupMembers:
        # A connection that is new has not heard of it.
        self._connection().groups[members.group] = None
        return current_session().members.newest(members)

    def _get_part(self, operation: ShardOperation) -> ShardBatch:
        def load(items: Delivery) -> ShardBatch:
            batch = self._load_batch(items)
            mine = ShardBatch(batch, batch.complete, *items.told.grant)
            mine.versions = batch.versions
            return mine

        mine: ShardBatch = self._connection().run(operation, load=load)
        return mine

    def _settle_part(self, message: DonePart) -> str:
        done: control_wire.Done = self._connection().requests.ask(message, control_wire.Done)
        return done.problem


def _checked_plan(
    channel: str,
    num_shards: Any,
    policy: Any,
    batch_weight: Any,
    batch_items: Any,
    cost: Any,
    equal_counts: bool,
) -> ShardPlan:
    """Return how a queue is divided."""
    factors, table = _checked_cost(channel, cost)
    plan = ShardPlan(
        checked_count(channel, "num_shards", num_shards),
        policy,
        None if batch_weight is None else checked_batch_weight(channel, batch_weight, None, None),
        None if batch_items is None else checked_count(channel, "batch_items", batch_items),
        factors,
        bool(equal_counts),
        table,
    )
    try:
        plan.check()
    except ValueError as error:
        raise ChannelArgumentError(channel, str(error)) from error
    return plan


def _checked_cost(channel: str, cost: Any) -> tuple[tuple[float, float], tuple[Point, ...]]:
    """Return what an item costs: the factors of its weight and of its weight's square, or a table."""
    if cost is None:
        return (1, 0), ()
    if cost == "quadratic":
        return (0, 1), ()
    try:
        if callable(cost):
            return (1, 0), sampled(cost)
        if not isinstance(cost[0], Real):
            return (1, 0), checked_table(cost)
        linear, quadratic = (check_weight(factor) for factor in cost)
    except Exception as error:
        problem = (
            f"cost is None (the weight), 'quadratic' (its square), two numbers (a, b) of at least 0 for "
            f"a * weight + b * weight ** 2, a list of points (weight, cost), or a function of the weight; "
            f"not {cost!r}: {error}"
        )
        raise ChannelArgumentError(channel, problem) from error
    return (linear, quadratic), ()
