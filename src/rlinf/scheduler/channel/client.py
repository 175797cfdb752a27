"""The channel as its users hold it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Literal, overload

from rlinf.scheduler.channel import wire
from rlinf.scheduler.channel.arguments import (
    DEFAULT_QUEUE,
    checked_batch_weight,
    checked_limits,
    checked_max_bytes,
    checked_maxsize,
    checked_name,
    checked_plan,
    checked_priority,
    checked_producers,
    checked_queue_name,
    checked_successor,
    checked_timeout,
    checked_weight,
    or_forever,
)
from rlinf.scheduler.channel.batch import Batch, Delivery
from rlinf.scheduler.channel.connection import DELETE_TIMEOUT_S, Connection
from rlinf.scheduler.channel.connections import Connections
from rlinf.scheduler.channel.operation import ANSWER_S, Operation
from rlinf.scheduler.channel.producer import Producer
from rlinf.scheduler.channel.shard import Shard
from rlinf.scheduler.channel.spec import (
    SUCCESSOR_S,
    ChannelRef,
    ChannelSpec,
    ChannelStats,
    address_of,
    channels_of,
)
from rlinf.scheduler.channel.starting import StartChannel, Starter
from rlinf.scheduler.comm.codec import encode
from rlinf.scheduler.comm.handle import AsyncHandle
from rlinf.scheduler.comm.shm.parcel import Arrived
from rlinf.scheduler.errors import (
    BatchUndecodable,
    ChannelArgumentError,
    ChannelClosed,
    ChannelEmpty,
    ChannelLost,
    ChannelNotFound,
    CodecError,
    CommError,
    PeerDied,
    PeerNotFound,
)
from rlinf.scheduler.queueing import QueueName
from rlinf.scheduler.session import Session, current_session
from rlinf.scheduler.wording import did_you_mean, list_names

CONNECT_TIMEOUT_S = 120.0


class Channel:
    """A set of named FIFO queues that any worker and the driver put into and get from.

    Use `Channel.create` and `Channel.connect`. A channel can be sent to another process, as an argument or
    as an item; there it connects by itself when it is first used.

    Operations that take `async_op` wait for their end and return the result, or with `async_op=True` return a
    handle at once (`wait(timeout_s)`, `await`, `done()`, `then(f)`, `cancel()`). Either way, puts of one
    process to one queue keep their order, and getters of a queue are served in the order in which they
    came. An asynchronous put takes the item as it is during the call. An asynchronous get whose handle is
    dropped gives up its place in line, and gives back the item if it has one.

    `timeout_s` bounds an operation, in seconds; None waits as long as it takes. An operation that raises
    ChannelTimeout has put or taken nothing; only what became of a put that raises its subclass ChannelUnanswered
    is not known. `key=` is another name of `queue_name=`.

    Every operation raises ChannelLost when the process that holds the channel is gone, and
    ChannelArgumentError for arguments that make no sense.
    """

    def __init__(self, ref: ChannelRef) -> None:
        self._ref = ref
        self._name = ref.spec.name
        self._cached: Connection | None = None

    @classmethod
    def create(
        cls,
        name: str,
        maxsize: int = 0,
        group_affinity: str | None = None,
        group_rank_affinity: int | None = None,
        *,
        max_bytes: int | None = None,
        producers: int | None = None,
        successor_s: float = SUCCESSOR_S,
    ) -> Channel:
        """Make a channel, held by a process of its own whose address is `name:0`.

        Args:
            name: its name in the cluster.
            maxsize: how many items each of its queues holds before puts wait; 0 is unbounded.
            group_affinity: the worker group on whose node and device it is held; by default the caller's own
                (node 0 from the driver).
            group_rank_affinity: the rank in that group; by default the caller's own, or 0 in another group.
            max_bytes: how many bytes all its queues hold before puts wait; 0 is unbounded, None a quarter of the memory
                of the machine that holds it. An item that is larger is taken where nothing else is held, and what
                somebody waits for does not wait for what other queues hold.
            producers: how many there will be (see `producer`); the channel ends when the last of them is done.
            successor_s: how long a producer that failed or died may be replaced before it counts as done.

        Raises:
            ChannelExists: the name is taken.
        """
        spec = ChannelSpec(
            checked_name(name),
            checked_maxsize(name, maxsize),
            max_bytes=checked_max_bytes(name, max_bytes),
            producers=checked_producers(name, producers),
            successor_s=checked_successor(name, successor_s),
        )
        wanted = StartChannel(spec, group_affinity, group_rank_affinity)
        return cls(ChannelRef(spec, current_session().service(Starter).start(wanted)))

    @classmethod
    def connect(cls, name: str, timeout_s: float | None = CONNECT_TIMEOUT_S) -> Channel:
        """Return the channel `name`, as soon as somebody has created it.

        Args:
            name: its name in the cluster.
            timeout_s: how long to wait for that, in seconds; None: as long as it takes.

        Raises:
            ChannelNotFound: nobody created it within `timeout_s` seconds.
            ChannelLost: it was there, and its process is gone.
        """
        limit_s = checked_timeout(name, timeout_s)
        session = current_session()
        try:
            entry = session.directory.lookup(address_of(checked_name(name)), or_forever(limit_s))
        except PeerNotFound as error:
            problem = f"nobody created it within {error.waited_s:.1f} s; {_what_there_is(session, name)}"
            raise ChannelNotFound(name, problem) from error
        except PeerDied as error:
            raise ChannelLost(name, str(error)) from error
        return cls(ChannelRef.from_entry(name, entry))

    @property
    def name(self) -> str:
        """Its name."""
        return self._ref.spec.name

    @property
    def maxsize(self) -> int:
        """How many items each of its queues holds; 0 is unbounded."""
        return self._ref.spec.maxsize

    @overload
    def put(
        self,
        item: Any,
        weight: float = 0,
        queue_name: QueueName = DEFAULT_QUEUE,
        async_op: Literal[False] = False,
        timeout_s: float | None = None,
        *,
        priority: int = 0,
        key: QueueName | None = None,
    ) -> None: ...
    @overload
    def put(
        self,
        item: Any,
        weight: float = 0,
        queue_name: QueueName = DEFAULT_QUEUE,
        *,
        async_op: Literal[True],
        timeout_s: float | None = None,
        priority: int = 0,
        key: QueueName | None = None,
    ) -> AsyncHandle[None]: ...
    def put(
        self,
        item: Any,
        weight: float = 0,
        queue_name: QueueName = DEFAULT_QUEUE,
        async_op: bool = False,
        timeout_s: float | None = None,
        *,
        priority: int = 0,
        key: QueueName | None = None,
    ) -> AsyncHandle[None] | None:
        """Put an item at the tail of a queue; done when the queue holds it.

        A full queue makes the put wait before the bytes of a large item move. Other queues and other
        producers are not held up.

        Args:
            item: any picklable object.
            weight: what it counts in `get_batch`, at least 0.
            queue_name: the queue; it appears with its first item.
            async_op: see the class, like the rest.
            timeout_s: seconds.
            priority: items of a higher one are taken first; in order within one. After eight that passed an older item,
                the oldest of all is next, so that none waits for ever.
            key: another name of `queue_name`.

        Raises:
            ChannelTimeout: there was no room in time.
            ChannelUnanswered: the channel's process did not answer; the item may be in the queue or not.
            ChannelClosed: the channel is closed; the item is still the caller's alone.
            CodecError: the item cannot be pickled.
        """
        queue = checked_queue_name(self._name, queue_name, key)
        operation = Operation("put", queue, checked_timeout(self._name, timeout_s))
        if priority != 0:
            operation.priority = checked_priority(self._name, priority)
        return self._put(item, weight, operation, async_op)

    def put_nowait(
        self,
        item: Any,
        weight: float = 0,
        queue_name: QueueName = DEFAULT_QUEUE,
        *,
        priority: int = 0,
        key: QueueName | None = None,
    ) -> None:
        """Put an item if there is room now.

        Raises:
            ChannelFull: there is none.
            ChannelUnanswered: the channel's process did not answer within 5 s; the item may be in the queue or not.
            ChannelClosed: the channel is closed.
        """
        queue = checked_queue_name(self._name, queue_name, key)
        operation = Operation("put", queue, None, wait=False)
        operation.priority = checked_priority(self._name, priority)
        self._put(item, weight, operation, False)

    @overload
    def get(
        self,
        queue_name: QueueName = DEFAULT_QUEUE,
        async_op: Literal[False] = False,
        timeout_s: float | None = None,
        *,
        key: QueueName | None = None,
    ) -> Any: ...
    @overload
    def get(
        self,
        queue_name: QueueName = DEFAULT_QUEUE,
        *,
        async_op: Literal[True],
        timeout_s: float | None = None,
        key: QueueName | None = None,
    ) -> AsyncHandle[Any]: ...
    def get(
        self,
        queue_name: QueueName = DEFAULT_QUEUE,
        async_op: bool = False,
        timeout_s: float | None = None,
        *,
        key: QueueName | None = None,
    ) -> Any:
        """Take the item at the head of a queue, when there is one and it is this getter's turn.

        Raises:
            ChannelTimeout: nothing came in time.
            ChannelClosed: the channel is closed, and the queue is drained.
            CodecError: the item cannot be read here, its class is missing, say. It is taken all the same.
        """
        queue = checked_queue_name(self._name, queue_name, key)
        return self._get(Operation("get", queue, checked_timeout(self._name, timeout_s)), async_op)

    def get_nowait(self, queue_name: QueueName = DEFAULT_QUEUE, *, key: QueueName | None = None) -> Any:
        """Take the item at the head of a queue if there is one now.

        Raises:
            ChannelEmpty: there is none, or getters that came before wait for it.
            ChannelUnanswered: the channel's process did not answer within 5 s; nothing was taken.
            ChannelClosed: the channel is closed, and the queue is drained.
        """
        queue = checked_queue_name(self._name, queue_name, key)
        return self._get(Operation("get", queue, None, wait=False), False)

    @overload
    def get_batch(
        self,
        batch_weight: float | None = None,
        queue_name: QueueName = DEFAULT_QUEUE,
        async_op: Literal[False] = False,
        timeout_s: float | None = None,
        *,
        max_items: int | None = None,
        max_bytes: int | None = None,
        min_items: int = 1,
        max_wait_s: float | None = None,
        key: QueueName | None = None,
        target_weight: float | None = None,
    ) -> Batch: ...
    @overload
    def get_batch(
        self,
        batch_weight: float | None = None,
        queue_name: QueueName = DEFAULT_QUEUE,
        *,
        async_op: Literal[True],
        timeout_s: float | None = None,
        max_items: int | None = None,
        max_bytes: int | None = None,
        min_items: int = 1,
        max_wait_s: float | None = None,
        key: QueueName | None = None,
        target_weight: float | None = None,
    ) -> AsyncHandle[Batch]: ...
    def get_batch(
        self,
        batch_weight: float | None = None,
        queue_name: QueueName = DEFAULT_QUEUE,
        async_op: bool = False,
        timeout_s: float | None = None,
        *,
        max_items: int | None = None,
        max_bytes: int | None = None,
        min_items: int = 1,
        max_wait_s: float | None = None,
        key: QueueName | None = None,
        target_weight: float | None = None,
    ) -> Any:
        """Take the first items of a queue whose weights reach `batch_weight`, all at once, as a list.

        Nothing is taken before the batch is ready: its weight is reached, one of its bounds is, or `max_wait_s` is
        over. Without a `batch_weight` it is what is there, as soon as that is `min_items`, and with `max_wait_s` as
        soon as a bound is reached too. An item heavier than the target, or larger than `max_bytes`, is a batch of its
        own. When the queue has ended, or the channel is closed, what is left comes as a last batch. The list's
        `complete` is False for this, and for what has not reached its weight when `max_wait_s` was over.

        Args:
            batch_weight: the weight that it has to reach.
            queue_name: the queue.
            async_op: see the class, like the rest.
            timeout_s: seconds.
            max_items: at most so many items; any number by default.
            max_bytes: at most so many bytes; any number by default.
            min_items: at least so many items.
            max_wait_s: how long a batch that has `min_items` waits for more, in seconds; None as long as it takes for
                its weight, and not at all without one.
            key: another name of `queue_name`.
            target_weight: another name of `batch_weight`.

        Raises:
            BatchTimeout: the batch was not ready in time, a ChannelTimeout.
            ChannelClosed: the queue has ended, or the channel is closed, and the queue is drained.
            BatchImpossible: the queue is full, and what it holds makes no such batch.
            BatchUndecodable: items cannot be read here, by a class that is missing, say. They are taken, like
                the others, which the error holds.
        """
        queue = checked_queue_name(self._name, queue_name, key)
        limits = checked_limits(self._name, self.maxsize, max_items, max_bytes, min_items, max_wait_s)
        target = checked_batch_weight(self._name, batch_weight, target_weight, limits)
        limit_s = checked_timeout(self._name, timeout_s)
        return self._get(Operation("get_batch", queue, limit_s, batch_weight=target, limits=limits), async_op)

    def shard(
        self,
        index: int,
        num_shards: int,
        *,
        policy: str = "round_robin",
        batch_weight: float | None = None,
        batch_items: int | None = None,
        cost: str | tuple[float, float] | None = None,
        equal_counts: bool = False,
        queue_name: QueueName = DEFAULT_QUEUE,
        key: QueueName | None = None,
    ) -> Shard:
        """Return one data-parallel rank's part of a queue, to be iterated: one batch a step.

        The channel divides each step among all ranks, which say the same here but for their `index`. So every rank sees
        the same number of batches, some perhaps empty, and the same end.

            for batch in channel.shard(self.rank, self.world_size, policy="balanced", batch_items=512):
                self.train(batch)

        Args:
            index: the rank, from 0.
            num_shards: how many ranks there are.
            policy: "round_robin", in turn as the items came; "least_loaded", each item to the rank that has the least
                to do; "balanced", Karmarkar and Karp's partition of the step.
            batch_weight: the weight of a step, of all ranks together.
            batch_items: its number of items. With neither, a step is what is there at `flush`, or when the queue ends.
            cost: what an item costs: None for its weight, "quadratic" for its square, (a, b) for
                a * weight + b * weight ** 2.
            equal_counts: of "balanced": ranks get the same number of items, or one less.
            queue_name: the queue.
            key: another name of `queue_name`.
        """
        queue = checked_queue_name(self._name, queue_name, key)
        plan = checked_plan(self._name, num_shards, policy, batch_weight, batch_items, cost, equal_counts)
        if type(index) is not int or not 0 <= index < num_shards:
            raise ChannelArgumentError(self._name, f"there is no shard {index!r} of {num_shards}")
        return Shard(lambda operation: self._get(operation, False), queue, index, plan)

    def peek(self, queue_name: QueueName = DEFAULT_QUEUE, *, key: QueueName | None = None) -> Any:
        """Return a copy of the item that the next getter would take, and leave it where it is.

        Raises:
            ChannelEmpty: there is none.
            ChannelUnanswered: the channel's process did not answer within 5 s.
            ChannelClosed: the queue has ended, or the channel is closed, and the queue is drained.
            CodecError: the item cannot be read here.
        """
        queue = checked_queue_name(self._name, queue_name, key)
        return self._connection().look(Operation("get", queue, None, wait=False), _load_copy)

    def drain(self, queue_name: QueueName = DEFAULT_QUEUE, *, key: QueueName | None = None) -> Batch:
        """Take everything that a queue holds now, which may be nothing.

        Raises:
            ChannelUnanswered: the channel's process did not answer within 5 s; nothing was taken.
            BatchUndecodable: items cannot be read here, see `get_batch`.
        """
        queue = checked_queue_name(self._name, queue_name, key)
        everything = wire.Limits(1, 0, 0, None)
        operation = Operation("get_batch", queue, None, wait=False, limits=everything)
        try:
            batch: Batch = self._get(operation, False)
        except (ChannelEmpty, ChannelClosed):
            return Batch()
        return batch

    def __iter__(self) -> Iterator[Any]:
        """Take the items of the default queue, until the channel is closed and drained."""
        while True:
            try:
                item = self.get()
            except ChannelClosed:
                return
            yield item

    async def __aiter__(self) -> AsyncIterator[Any]:
        """Take the items of the default queue, until the channel is closed and drained."""
        while True:
            try:
                item = await self.get(async_op=True)
            except ChannelClosed:
                return
            yield item

    def qsize(self, queue_name: QueueName = DEFAULT_QUEUE, *, key: QueueName | None = None) -> int:
        """Return how many items a queue holds.

        Raises:
            ChannelUnanswered: the channel's process did not answer within 5 s.
        """
        return self._query(queue_name, key).num_items

    def empty(self, queue_name: QueueName = DEFAULT_QUEUE, *, key: QueueName | None = None) -> bool:
        """Return whether a queue holds nothing.

        Raises:
            ChannelUnanswered: the channel's process did not answer within 5 s.
        """
        return self._query(queue_name, key).num_items == 0

    def full(self, queue_name: QueueName = DEFAULT_QUEUE, *, key: QueueName | None = None) -> bool:
        """Return whether a put to a queue would have to wait.

        Raises:
            ChannelUnanswered: the channel's process did not answer within 5 s.
        """
        return self._query(queue_name, key).is_full

    def stats(self) -> ChannelStats:
        """Return what went through the channel and what is in it.

        Raises:
            ChannelUnanswered: the channel's process did not answer within 5 s.
        """
        return ChannelStats.from_wire(self._connection().ask(wire.Stats(), wire.ChannelState))

    def end(
        self,
        queue_name: QueueName = DEFAULT_QUEUE,
        timeout_s: float | None = None,
        *,
        key: QueueName | None = None,
    ) -> None:
        """Say that nothing will be put into a queue any more, once this process's puts are over.

        What it holds is delivered, what is left of a batch as an incomplete one; after that, and for puts at once,
        ChannelClosed is raised, and iterating ends. Puts of other processes that wait for room still enter. A queue
        stays ended as long as there is the channel.

        Args:
            queue_name: the queue.
            timeout_s: how long puts of this process may take that still wait for room, in seconds.
            key: another name of `queue_name`.

        Raises:
            ChannelTimeout: they took longer; the queue has not ended.
            ChannelUnanswered: the channel's process did not answer within 5 s; the queue may have ended or not.
        """
        queue = checked_queue_name(self._name, queue_name, key)
        connection = self._connection()
        connection.finish_puts("end", checked_timeout(self._name, timeout_s))
        connection.ask(wire.EndQueue(queue))

    def flush(self, queue_name: QueueName = DEFAULT_QUEUE, *, key: QueueName | None = None) -> None:
        """Let batches take what a queue holds now, whether it reaches their weight or not; an incomplete one, then.

        Raises:
            ChannelTimeout, ChannelUnanswered: as of `end`.
        """
        queue = checked_queue_name(self._name, queue_name, key)
        connection = self._connection()
        connection.finish_puts("flush", ANSWER_S)
        connection.ask(wire.Flush(queue))

    def producer(self) -> Producer:
        """Be one of the channel's `producers` for the time of a `with` block.

        The channel ends, as if each queue were ended, when all of them have left their blocks. Leaving one waits for
        this process's puts. Who leaves by an exception, or dies, may be replaced for `successor_s` seconds: by another
        thread or process that enters such a block, first of all one of the same name (`rollout:3`).

            with channel.producer():
                for item in items:
                    channel.put(item)
        """
        return Producer(self._connection(), current_session().name)

    def close(self) -> None:
        """Refuse puts from now on, waiting ones too; getters take what is there, then get ChannelClosed.

        Raises:
            ChannelUnanswered: the channel's process did not answer within 5 s; it may be closed or not.
        """
        self._connection().ask(wire.Close())

    def delete(self, timeout_s: float | None = DELETE_TIMEOUT_S) -> None:
        """Close the channel, drop what it holds, end its process and free its name.

        What waits fails, with ChannelClosed or ChannelLost; later operations raise ChannelLost. To lose
        nothing, `close` it and take what is there first.

        Args:
            timeout_s: how long that may take, in seconds; None: as long as it takes.

        Raises:
            ChannelUnanswered: the channel's process did not answer in time.
        """
        limit_s = or_forever(checked_timeout(self._name, timeout_s))
        self._connection().ask(wire.Delete(), timeout_s=limit_s)

    def _query(self, queue_name: Any, key: Any) -> wire.QueueState:
        queue = checked_queue_name(self._name, queue_name, key)
        state: wire.QueueState = self._connection().ask(wire.Query(queue), wire.QueueState)
        return state

    def _put(
        self, item: Any, weight: float, operation: Operation, async_op: bool
    ) -> AsyncHandle[None] | None:
        operation.weight = checked_weight(self._name, weight)
        connection = self._connection()
        encoded = encode(item)
        if not async_op:
            connection.run(operation, encoded)
            return None
        return AsyncHandle(connection.start(operation, encoded), None, self._what(operation))

    def _get(self, operation: Operation, async_op: bool) -> Any:
        load = _load_all if operation.is_batch else _load_first
        connection = self._connection()
        if not async_op:
            return connection.run(operation, load=load)

        def take(items: list[Arrived]) -> Any:
            connection.look_after(operation)
            return load(items)

        return AsyncHandle(connection.start(operation), take, self._what(operation))

    def _connection(self) -> Connection:
        connection = self._cached
        if connection is None or connection.lost is not None:
            connection = self._cached = current_session().service(Connections).to(self._ref)
        return connection

    def _what(self, operation: Operation) -> Callable[[], str]:
        return lambda: f"{operation.kind} on channel '{self._name}', queue {operation.queue_name!r}"

    def __reduce__(self) -> tuple[type[Channel], tuple[ChannelRef]]:
        return Channel, (self._ref,)

    def __repr__(self) -> str:
        # What it holds is one question away; a repr asks nobody and moves nothing.
        return f"<Channel '{self._name}' maxsize={self.maxsize}>"


def _what_there_is(session: Session, name: str) -> str:
    try:
        known = channels_of(session)
    except CommError as error:
        return f"what there is is not known: {error}"
    hint = did_you_mean(name, known)
    there = f"there are {list_names(known)}" if known else "there is no channel"
    return f"{there}; {hint}" if hint else there


def _load_first(items: list[Arrived]) -> Any:
    return items[0].load()


def _load_copy(items: list[Arrived]) -> Any:
    return Arrived([bytearray(frame) for frame in items[0].frames()]).load()


def _load_all(items: list[Arrived]) -> Batch:
    values: list[Any] = []
    problems: list[tuple[int, str]] = []
    for place, item in enumerate(items):
        try:
            values.append(item.load())
        except CodecError as error:
            problems.append((place, str(error)))
    if problems:
        raise BatchUndecodable(problems, values)
    return items.batch(values) if isinstance(items, Delivery) else Batch(values)
