"""Taking items until it is said what became of them: items on lease, as their consumer holds them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from types import TracebackType
from typing import Any, ClassVar, TypeVar, Unpack

from rlinf_scheduler.channel import control_wire
from rlinf_scheduler.channel.access import ChannelAccess, OfServer
from rlinf_scheduler.channel.arguments import DEFAULT_QUEUE, checked_seconds, checked_timeout, or_forever
from rlinf_scheduler.channel.batch import Batch, BatchLimitOptions, Delivery
from rlinf_scheduler.channel.batches import checked_batch_weight, checked_group_size, checked_limits
from rlinf_scheduler.channel.connection import ChannelConnection
from rlinf_scheduler.channel.copies import read_at, read_until_done
from rlinf_scheduler.channel.lease_operation import DeadLetter, LeaseOperation, extend, settle
from rlinf_scheduler.channel.question import refuse_questions
from rlinf_scheduler.checks import explains_calls
from rlinf_scheduler.comm.codec.interruptions import raised_by_signal_handler
from rlinf_scheduler.comm.failure import sendable
from rlinf_scheduler.comm.handle import AsyncHandle
from rlinf_scheduler.comm.operation import OperationPromise
from rlinf_scheduler.comm.promise import ConsumedFlag
from rlinf_scheduler.errors import ChannelArgumentError, ChannelClosed, ChannelError, CommError, LeaseExpired
from rlinf_scheduler.observe.timekeeping import ACK, TIMES
from rlinf_scheduler.queueing.item import QueueName
from rlinf_scheduler.queueing.leases import Extend, LeaseTerms, OnLease, Settle
from rlinf_scheduler.session import current_session

R = TypeVar("R")
LEASE_S = 60.0
LEFT = "the loop was left before it was acknowledged"
MAX_REASON = 500


@explains_calls
class Lease:
    """Items of a queue that their consumer has on lease: `with channel.lease() as lease: train(lease.item)`.

    They are acknowledged at the end of the block, or before by `ack`; and given back when the block ends by an error,
    or before by `nack`. What is settled, or extended, when the lease is over raises LeaseExpired, also at the end of
    the block: then another consumer has the items, or will have them.

    Attributes:
        items: in order, as what `get_batch` returns.
        attempts: for each of them, how often it was given out, this time included.
        generation: which lease of the channel it is. A later one has a higher number, so that whoever stores results
            may refuse late ones.
    """

    def __init__(
        self,
        connection: ChannelConnection,
        operation: LeaseOperation,
        items: Batch,
        attempts: list[int],
        generation: int,
        origins: Sequence[tuple[str, int] | None] = (),
    ) -> None:
        self.items = items
        self.attempts = attempts
        self.generation = generation
        self._connection = connection
        self._operation = operation
        self._origins = origins
        self._name = connection.ref.spec.name
        self._left = set(range(len(attempts)))
        self._why_over = ""

    @property
    def item(self) -> Any:
        """The item of a lease that asked for one.

        Raises:
            ChannelArgumentError: it asked for a batch.
        """
        if self._operation.is_batch:
            raise ChannelArgumentError(self._name, "this lease is of a batch; its items are in `items`")
        return self.items[0]

    @property
    def attempt(self) -> int:
        """How often the item was given out, 1 the first time; of a batch, the item that was given out most often."""
        return max(self.attempts)

    @property
    def num_left(self) -> int:
        """How many items are neither acknowledged nor given back."""
        return len(self._left)

    def ack(self, *, only: int | Collection[int] | None = None, async_op: bool = False) -> Any:
        """Say that items are done with: the channel forgets them.

        Args:
            only: the places in `items` that are meant; None for all that are not settled.
            async_op: return a handle at once.

        Raises:
            LeaseExpired: they are not on lease any more.
            ChannelArgumentError: they were acknowledged or given back before.
            ChannelUnanswered: the channel's process did not answer within 5 s.
        """
        places = self._places(only)
        return self._settle("ack", places, Settle(self.generation, places, True), async_op)

    def nack(
        self,
        delay_s: float = 0,
        *,
        only: int | Collection[int] | None = None,
        reason: str = "it was given back",
        async_op: bool = False,
    ) -> Any:
        """Give items back to the head of their queue.

        Args:
            delay_s: for how long nobody gets them, in seconds.
            only: the places in `items` that are meant; None for all that are not settled.
            reason: why; a dead letter tells the last one.
            async_op: return a handle at once.

        Raises:
            LeaseExpired, ChannelArgumentError, ChannelUnanswered: as of `ack`.
        """
        wait_s = checked_seconds(self._name, "delay_s", delay_s, may_be_zero=True)
        places = self._places(only)
        message = Settle(self.generation, places, False, wait_s, sendable(str(reason), MAX_REASON))
        return self._settle("nack", places, message, async_op)

    def release(self) -> None:
        """Give back what is left as if it had not been given out: this was no attempt. Before a `break`, say."""
        self._places(None)
        self._left.clear()
        self._connection.drop(self._operation)

    def extend(self, seconds: float) -> None:
        """Let the lease last so long from now, at least, even if this process hangs or the work takes longer.

        Raises:
            LeaseExpired: it is over.
            ChannelArgumentError: everything in it was acknowledged or given back.
            ChannelUnanswered: the channel's process did not answer within 5 s.
        """
        for_s = checked_seconds(self._name, "seconds", seconds)
        self._places(None)
        answer = extend(self._connection, self._operation, Extend(self.generation, for_s))
        self._check(self._connection.requests.answer_to(answer, "extend"))

    @property
    def channel_name(self) -> str:
        """Of which channel it is."""
        return self._name

    def is_of(self, connection: ChannelConnection) -> bool:
        """Whether it came by a connection."""
        return self._connection is connection

    def expired(self, why: str) -> LeaseExpired:
        """The error of what is done with it from now on: it is over."""
        self._left.clear()
        self._why_over = why
        return self._expired()

    def _give_back(self, reason: str) -> None:
        """Give back what is left without waiting for an answer."""
        message = Settle(self.generation, sorted(self._left), False, 0, sendable(reason, MAX_REASON))
        settle(self._connection, self._operation, message, True)
        self._operation.taken = True
        self._left.clear()

    def _places(self, only: int | Collection[int] | None) -> list[int]:
        if self._why_over:
            raise self._expired()
        if only is None:
            if not self._left:
                raise ChannelArgumentError(self._name, "everything in this lease was settled before")
            return sorted(self._left)
        places = _checked_places(self._name, only, len(self.attempts))
        settled = [place for place in places if place not in self._left]
        if settled:
            raise ChannelArgumentError(self._name, f"items {settled} of this lease were settled before")
        return places

    def _settle(self, what: str, places: list[int], message: Settle, async_op: bool) -> Any:
        is_last = len(places) == len(self._left)
        answer = settle(self._connection, self._operation, message, is_last)
        # Handed over: whatever interrupts this now, these are not given back.
        self._left.difference_update(places)
        if message.done and self._operation.copies:
            for place in places:
                for end in self._operation.copies.pop(place, ()):
                    end()
        if message.done and TIMES.span_file is not None:
            TIMES.note_moved(ACK, TIMES.now(), what, self._name, self._origins_of(places))
        if is_last:
            # Said: that nobody keeps it any more says nothing.
            self._operation.taken = True
        if async_op:
            text = f"{what} on channel '{self._name}', queue {self._operation.queue_name!r}"
            return AsyncHandle(answer, self._check, text)
        self._check(self._connection.requests.answer_to(answer, what))
        return None

    def _origins_of(self, places: Iterable[int]) -> tuple[tuple[str, int], ...]:
        if len(self._origins) != len(self.attempts):  # not all were told
            return ()
        found = (self._origins[place] for place in places)
        return tuple(origin for origin in found if origin is not None)

    def _check(self, reply: Any) -> None:
        if reply.head.problem:
            raise self.expired(reply.head.problem)

    def _expired(self) -> LeaseExpired:
        return LeaseExpired(self._name, self._operation.queue_name, self._why_over)

    def __repr__(self) -> str:
        queue = f"channel '{self._name}', queue {self._operation.queue_name!r}"
        return f"<Lease {self.generation} of {queue}: {self.num_left} of {len(self.attempts)} items left>"


class LeaseContext:
    """A lease that lasts as long as a `with` block, or `async with`; what `Channel.lease` returns.

    It alone keeps what says that somebody wants the items: whatever interrupts the block, also on its way in or out, it
    is dropped, and they go back.

    Args:
        connection: to the channel.
        operation: the get.
        load: makes items of what came.
    """

    def __init__(
        self, connection: ChannelConnection, operation: LeaseOperation, load: Callable[[Delivery], Batch]
    ) -> None:
        self._connection = connection
        self._operation: LeaseOperation | None = operation
        self._load = load
        self._promise: OperationPromise | None = None
        self._lease: Lease | None = None
        self._takes_questions = False

    def __getattr__(self, name: str) -> Any:
        if hasattr(Lease, name) or name in ("items", "attempts", "generation"):
            message = f"a lease has its '{name}' once it is entered: with channel.lease(...) as lease"
            raise AttributeError(message)
        message = f"'{type(self).__name__}' object has no attribute '{name}'"
        raise AttributeError(message)

    def of_questions(self) -> LeaseContext:
        """It, for who answers; any other takes no question."""
        self._takes_questions = True
        return self

    def __enter__(self) -> Lease:
        """Wait for the items.

        Raises:
            ChannelTimeout, BatchTimeout: they were not there in time.
            ChannelClosed: the queue has ended, or the channel is closed, and nothing is left that may come back.
            CodecError, BatchUndecodable: they cannot be read here, and were given back.
        """
        operation = self._begin()
        try:
            self._promise = self._connection.hold(operation)
            return self._open(operation, self._promise.result(0))
        except BaseException as error:
            self._leave(operation, error)
            raise

    def __exit__(self, _kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        lease = self._opened()
        try:
            if error is None and lease.num_left:
                lease.ack()
        except BaseException as failure:
            error = failure
            raise
        finally:
            self._leave(lease._operation, error)

    async def __aenter__(self) -> Lease:
        """Wait for the items; see `__enter__`."""
        operation = self._begin()
        try:
            self._promise = self._connection.start(operation)
            # Waiting for it takes nothing.
            delivery: Delivery = await AsyncHandle(self._promise, None, "lease", ConsumedFlag())
            return self._open(operation, delivery)
        except BaseException as error:
            self._leave(operation, error)
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        lease = self._opened()
        try:
            if error is None and lease.num_left:
                await lease.ack(async_op=True)
        except BaseException as failure:
            error = failure
            raise
        finally:
            self._leave(lease._operation, error)

    def begin(self, opened: Callable[[Lease], R]) -> AsyncHandle[R]:
        """Ask for the items; the handle of what `opened` makes of the lease."""
        operation = self._begin()

        def load(delivery: Delivery) -> R:
            try:
                return opened(self._open(operation, delivery))
            except BaseException as error:
                self._leave(operation, error)
                raise

        promise = self._promise = self._connection.start(operation)
        # Waiting for it takes nothing.
        return AsyncHandle(promise, load, operation.describe, ConsumedFlag())

    def decline(self) -> None:
        """Give everything back at once; this was no attempt."""
        lease = self._opened()
        self._connection.drop(lease._operation)
        self._promise = None

    def _begin(self) -> LeaseOperation:
        operation, self._operation = self._operation, None
        if operation is None:
            problem = "a lease is entered once; ask for another one"
            raise ChannelArgumentError(self._connection.ref.spec.name, problem)
        return operation

    def _open(self, operation: LeaseOperation, delivery: Delivery) -> Lease:
        about = OnLease(*delivery.told.grant)
        origins = delivery.told.origins or ()
        lease = Lease(self._connection, operation, Batch(), about.attempts, about.generation, origins)
        self._lease = lease
        self._connection.note_moved(operation, delivery)
        lease.items = self._load(delivery)
        if not self._takes_questions:
            try:
                refuse_questions(self._connection.ref.spec.name, lease.items)
            except ChannelArgumentError:
                self._lease = None  # this was no attempt
                raise
        return lease

    def _opened(self) -> Lease:
        if self._lease is None:
            raise ChannelArgumentError(self._connection.ref.spec.name, "this lease was not entered")
        return self._lease

    def _leave(self, operation: LeaseOperation, error: BaseException | None) -> None:
        """Give back what is left; what is not the fault of the items is no attempt."""
        with suppress(CommError, ChannelError):  # what has failed is more important
            if (
                error is not None
                and self._lease is not None
                and self._lease.num_left
                and _is_about_items(error)
            ):
                self._lease._give_back(LEFT if isinstance(error, GeneratorExit) else _in_words(error))
            elif error is not None:
                self._connection.drop(operation)
        self._promise = None


def _is_about_items(error: BaseException) -> bool:
    """Whether an attempt has failed: an interruption, or a task that was cancelled, says nothing about the items."""
    # A loop is left where an interruption would not be heard: no time is to be lost there.
    return isinstance(error, GeneratorExit) or (
        isinstance(error, Exception) and not raised_by_signal_handler(error)
    )


def _in_words(error: BaseException) -> str:
    try:
        return f"{type(error).__qualname__}: {error}"
    except Exception:  # noqa: BLE001 - its own __str__ may fail
        return type(error).__qualname__


class LeaseLoop:
    """An iterator of leases, as `Channel.leases` returns it, for `for` and `async for`.

    Each lease is acknowledged when the next one is asked for, and given back when the loop is left before.

    Args:
        make: makes the next lease, not entered.
    """

    def __init__(self, make: Callable[[], LeaseContext]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Lease]:
        """Give leases until the queue ends."""
        while True:
            with ExitStack() as block:
                try:
                    lease = block.enter_context(self._make())
                except ChannelClosed:
                    return
                yield lease
                del lease

    async def __aiter__(self) -> AsyncIterator[Lease]:
        """Give leases until the queue ends."""
        while True:
            async with AsyncExitStack() as block:
                try:
                    lease = await block.enter_async_context(self._make())
                except ChannelClosed:
                    return
                yield lease
                del lease


def _copies(items: Delivery) -> Delivery:
    """Give what came in messages memory of its own; what lies in shared memory has it."""
    for place, item in enumerate(items):
        if item.block is None:
            items[place] = item.copied()
    return items


def _checked_places(channel: str, places: Any, num_items: int) -> list[int]:
    """Return the places of some items of a lease, each once; one may be said as a number."""
    chosen = [places] if isinstance(places, int) else list(places)
    for place in chosen:
        if type(place) is not int or not 0 <= place < num_items:
            problem = f"this lease has items 0 to {num_items - 1}; {place!r} is none of their places"
            raise ChannelArgumentError(channel, problem)
    if not chosen:
        raise ChannelArgumentError(
            channel, "say which items are meant; without `only` it is all that are left"
        )
    return sorted(set(chosen))


class LeaseOptions(BatchLimitOptions, total=False):
    """What `Channel.lease` takes besides the queue."""

    batch_weight: float | None
    group_size: int | None
    ttl_s: float
    work_deadline_s: float | None
    sticky: bool
    timeout_s: float | None
    key: QueueName | None
    target_weight: float | None


class Leasing(ChannelAccess):
    """The part of `Channel` whose items come back unless they are acknowledged."""

    _of_server: ClassVar[OfServer] = (("lease", "leases"), ("leases", "leases"), ("dead_letters", "leases"))

    def lease(
        self,
        queue_name: QueueName = DEFAULT_QUEUE,
        *,
        batch_weight: float | None = None,
        max_items: int | None = None,
        max_bytes: int | None = None,
        min_items: int = 1,
        max_wait_s: float | None = None,
        group_size: int | None = None,
        ttl_s: float = LEASE_S,
        work_deadline_s: float | None = None,
        sticky: bool = False,
        timeout_s: float | None = None,
        key: QueueName | None = None,
        target_weight: float | None = None,
    ) -> LeaseContext:
        """Return what takes an item, a batch or a group for the time of a `with` block; the channel keeps it till then.

            with channel.lease() as lease:
                train(lease.item)

        At the end of the block it is acknowledged, and forgotten. If the block ends by an exception, or this process
        dies, it comes back at the head of its queue, and is given to the next consumer: each item is given out at
        least once, and only first deliveries are in order. So it is where this process hangs or is stopped for
        `ttl_s`. As long as it lives it keeps the lease alive by itself, for at most `work_deadline_s`.

        Args:
            queue_name: the queue.
            batch_weight: for a batch, as in `get_batch`, like the next four. Without any of them it is one item.
            max_items: at most so many items.
            max_bytes: at most so many bytes.
            min_items: at least so many items.
            max_wait_s: how long a batch that has `min_items` waits for more, in seconds.
            group_size: for a group, as `get_group`, instead of a batch.
            ttl_s: how long the items stay with a process that is not heard of, in seconds.
            work_deadline_s: how long they stay with one that lives and does not come to an end, in seconds; None as
                long as it takes.
            sticky: of items that were put with a `group`, those of which this process had one last come to it before
                others, while it waits for one item; as long as others have not waited for more than a second. Nothing
                waits for a process that does not ask.
            timeout_s: how long to wait for them, in seconds.
            key: another name of `queue_name`.
            target_weight: another name of `batch_weight`.

        Raises (when the block is entered):
            ChannelTimeout: nothing came in time; BatchTimeout for a batch.
            ChannelClosed: the queue has ended, or the channel is closed, and nothing is left or can come back.
            BatchImpossible: as of `get_batch`.
            CodecError: the item cannot be read here, and was given back; BatchUndecodable for a batch.

        Raises (when it ends):
            LeaseExpired: the items are not on lease any more; others have them, or will.
        """
        queue = self._queue(queue_name, key)
        limits = checked_limits(self._name, self.maxsize, max_items, max_bytes, min_items, max_wait_s)
        target = None
        if batch_weight is not None or target_weight is not None:
            target = checked_batch_weight(self._name, batch_weight, target_weight, limits)
        limit_s = checked_timeout(self._name, timeout_s)
        operation = LeaseOperation("lease", queue, limit_s, self._now)
        operation.batch_weight, operation.limits = target, limits
        if group_size is not None:
            if target is not None or limits is not None:
                raise ChannelArgumentError(self._name, "a lease is of a batch, or of a group_size")
            operation.group_size = checked_group_size(self._name, self.maxsize, group_size)
        operation.terms = LeaseTerms(
            checked_seconds(self._name, "ttl_s", ttl_s), current_session().name, bool(sticky)
        )
        if work_deadline_s is not None:
            work_deadline_s = checked_seconds(self._name, "work_deadline_s", work_deadline_s)
        operation.keep_s = or_forever(work_deadline_s)

        def load(items: Delivery) -> Batch:
            # What a consumer writes into items on lease is not to be seen by who has them next.
            with read_until_done(operation.copies):
                return self._load_all(_copies(items), read_at)

        return LeaseContext(self._connection(), operation, load)

    def leases(self, queue_name: QueueName = DEFAULT_QUEUE, **options: Unpack[LeaseOptions]) -> LeaseLoop:
        """Return one lease after the other, until the queue ends, for `for` and `async for`.

            for lease in channel.leases():
                train(lease.item)

        Each is acknowledged when the next one is asked for. What the loop is left with before, by an error or by
        `break`, is given back, unless it was acknowledged (`lease.ack()`). That counts as an attempt, for a loop cannot
        tell why it is left; `lease.release()` before a `break` makes it none.

        Args:
            queue_name: the queue.
            options: those of `lease`.

        Raises (while it is iterated):
            ChannelTimeout, LeaseExpired and others: as of `lease`.
        """
        self.lease(queue_name, **options)  # what is wrong with them is said at once
        return LeaseLoop(lambda: self.lease(queue_name, **options))

    def dead_letters(
        self, queue_name: QueueName | None = None, *, key: QueueName | None = None
    ) -> list[DeadLetter]:
        """Return the items that were given out `max_attempts` times and never acknowledged; they stay where they are.

        Args:
            queue_name: of which queue; None for all.
            key: another name of `queue_name`.

        Raises:
            ChannelUnanswered: the channel's process did not answer within 5 s.
        """
        queue = None
        if queue_name is not None or key is not None:
            queue = self._queue(DEFAULT_QUEUE if queue_name is None else queue_name, key)
        connection = self._connection()
        letters: control_wire.DeadNotes = connection.requests.ask(
            control_wire.ListDead(queue), control_wire.DeadNotes
        )
        return [DeadLetter(connection, letter) for letter in letters.letters]
