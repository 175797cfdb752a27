"""A channel inside one process: no server and no copies, and each process that has it has queues of its own."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Never, TypeVar

from rlinf_scheduler.channel.arguments import DEFAULT_QUEUE, checked_timeout, checked_weight
from rlinf_scheduler.channel.batch import Batch, GroupBatch
from rlinf_scheduler.channel.channel import Channel as Channel
from rlinf_scheduler.channel.inspecting import NUM_SHOWN, shown
from rlinf_scheduler.channel.operation import ANSWER_S, NO_TERMS, ChannelOperation
from rlinf_scheduler.channel.refusals import deleted_error, ending_error
from rlinf_scheduler.channel.spec import ChannelSpec
from rlinf_scheduler.comm.forking import on_fork_in_child
from rlinf_scheduler.comm.handle import AsyncHandle
from rlinf_scheduler.comm.loop import IoLoop, ending
from rlinf_scheduler.comm.operation import Deliveries, OperationPromise
from rlinf_scheduler.comm.promise import Promise, PromiseRef
from rlinf_scheduler.comm.reports import on_io_thread
from rlinf_scheduler.comm.waits import CHANNEL, OTHER, Cause, Wait, awaited
from rlinf_scheduler.errors import (
    ChannelArgumentError,
    ChannelEmpty,
    ChannelError,
    ChannelLost,
    ChannelUnanswered,
)
from rlinf_scheduler.queueing.client import Ending
from rlinf_scheduler.queueing.item import Item, QueueName
from rlinf_scheduler.queueing.messages import (
    Accept,
    Close,
    Deliver,
    EndQueue,
    Flush,
    Instruction,
    Linger,
    Reason,
    Refuse,
    Ripen,
    Withdraw,
)
from rlinf_scheduler.queueing.state import ChannelState
from rlinf_scheduler.queueing.stats import ChannelStats, counts_of, depths_of
from rlinf_scheduler.queueing.surveying import QueueSurvey
from rlinf_scheduler.wording import counted


class LocalChannel(Channel):
    """A channel for the threads and tasks of one process, with the same queues: `Channel.create(name, local=True)`.

    It needs no cluster. What is put is what is got, the very object, not a copy. A process that gets the channel as an
    argument, or in anything that it unpickles, has it with queues of its own, which begin empty: what one call of a
    rank puts there, a later call of that rank gets. They last until the process ends, or deletes them.

    It has `put`, `get`, `get_batch`, `get_group` with all their options but slots, `drain`, `peek`, `qsize`, `empty`,
    `full`, `stats`, `end`, `flush`, `close`, `delete`, and iteration. What a server is needed for is refused.
    """

    def __init__(self, spec: ChannelSpec) -> None:
        self._spec = spec
        self._name = spec.name
        self._clock: Callable[[], float] | None = None

    @property
    def is_local(self) -> bool:
        """Whether it is a channel inside one process: True."""
        return True

    @property
    def maxsize(self) -> int:
        """How many items each of its queues holds; 0 is unbounded."""
        return self._spec.maxsize

    def qsize(self, queue_name: QueueName = DEFAULT_QUEUE, *, key: QueueName | None = None) -> int:
        """Return how many items a queue holds, in this process."""
        queue = self._queue(queue_name, key)
        return self._queues.ask("qsize", lambda state: QueueSurvey(state).num_items(queue), queue)

    def empty(self, queue_name: QueueName = DEFAULT_QUEUE, *, key: QueueName | None = None) -> bool:
        """Return whether a queue holds nothing, in this process."""
        return self.qsize(queue_name, key=key) == 0

    def full(self, queue_name: QueueName = DEFAULT_QUEUE, *, key: QueueName | None = None) -> bool:
        """Return whether a put to a queue would have to wait."""
        queue = self._queue(queue_name, key)
        return self._queues.ask("full", lambda state: QueueSurvey(state).is_full(queue), queue)

    def peek(self, queue_name: QueueName = DEFAULT_QUEUE, *, key: QueueName | None = None) -> Any:
        """Return the item that the next getter would take, and leave it where it is.

        Raises:
            ChannelEmpty: there is none.
        """
        queue = self._queue(queue_name, key)
        found = self._queues.ask("peek", lambda state: QueueSurvey(state).first_items(queue, 1), queue)
        if not found:
            raise ChannelEmpty(self._name, f"queue {queue!r} has nothing")
        return found[0].payload

    def stats(self) -> ChannelStats:
        """Return what went through the channel and what is in it, in this process; sizes in bytes are not known."""
        return self._queues.ask(
            "stats", lambda state: counts_of(state.queues).listing(depths_of(state.queues))
        )

    def end(
        self,
        queue_name: QueueName = DEFAULT_QUEUE,
        timeout_s: float | None = None,
        *,
        key: QueueName | None = None,
    ) -> None:
        """Say that nothing will be put into a queue any more: what it holds is delivered, then ChannelClosed raised.

        Puts that wait for room still enter; nothing is waited for, so `timeout_s` has no effect.
        """
        checked_timeout(self._name, timeout_s)
        self._queues.change("end", EndQueue(self._queue(queue_name, key)))

    def flush(self, queue_name: QueueName = DEFAULT_QUEUE, *, key: QueueName | None = None) -> None:
        """Let batches take what a queue holds now, whether it reaches their weight or not."""
        self._queues.change("flush", Flush(self._queue(queue_name, key)))

    def close(self) -> None:
        """Refuse puts from now on, waiting ones too; getters take what is there, then get ChannelClosed."""
        self._queues.change("close", Close())

    def delete(self, timeout_s: float | None = None) -> None:
        """Drop what this process has of the channel; what waits fails with ChannelLost, and so do later operations."""
        checked_timeout(self._name, timeout_s)
        self._queues.delete()

    @property
    def _now(self) -> Callable[[], float]:
        now = self._clock
        if now is None:
            now = self._clock = self._queues.now
        return now

    @property
    def _queues(self) -> LocalQueues:
        return channel_queues(self._spec)

    def _put(
        self, item: Any, weight: float, operation: ChannelOperation, async_op: bool
    ) -> AsyncHandle[None] | None:
        operation.channel = self._name
        operation.weight = checked_weight(self._name, weight)
        if async_op:
            return AsyncHandle(self._queues.start(operation, item), None, operation.describe)
        self._queues.run(operation, item, _only_item)
        return None

    def _get(self, operation: ChannelOperation, async_op: bool) -> Any:
        operation.channel = self._name
        load: Callable[[Local], Any] = Local.batch if operation.is_batch else _only_item
        queues = self._queues
        if not async_op:
            return queues.run(operation, None, load)
        return AsyncHandle(queues.start(operation), partial(queues.take, operation, load), operation.describe)

    def _iteration_get(self) -> ChannelOperation:
        # Its items are of this process, which is to finish what it has.
        return ChannelOperation("get", DEFAULT_QUEUE, None, self._now)

    def _use(self, slot: object, operation: ChannelOperation) -> None:
        raise self._refusal("put(slot=)", "slots")

    def _connection(self) -> Never:
        problem = "a local channel has no server, which this needs: create it without local="
        raise ChannelArgumentError(self._name, problem)

    def _refusal(self, operation: str, what: str) -> ChannelArgumentError:
        problem = f"{operation}: a local channel has no {what}; one that a process holds has: create it without local="
        return ChannelArgumentError(self._name, problem)

    def __reduce__(self) -> tuple[Any, ...]:
        return LocalChannel, (self._spec,)

    def __str__(self) -> str:
        """Return what its queues hold, and the first items of the default queue; or that it is deleted."""
        try:
            return f"local channel '{self._name}': {self._queues.ask('str', _described)}"
        except ChannelLost as error:
            return f"local {error}"

    def __repr__(self) -> str:
        return f"<LocalChannel '{self._name}' maxsize={self.maxsize}>"


def _described(state: ChannelState) -> str:
    stats = counts_of(state.queues)
    text = f"{counted(stats.num_items, 'item')} in {counted(stats.num_queues, 'queue')}"
    items = QueueSurvey(state).first_items(DEFAULT_QUEUE, NUM_SHOWN)
    return text + shown([item.payload for item in items], QueueSurvey(state).num_items(DEFAULT_QUEUE))


def _only_item(delivered: Local) -> Any:
    return delivered.items[0]


def _refused(operation: str, what: str) -> Callable[..., Never]:
    def refuse(self: LocalChannel, *_args: object, **_options: object) -> Never:
        raise self._refusal(operation, what)

    refuse.__name__ = operation
    refuse.__doc__ = f"Raise ChannelArgumentError: a local channel has no {what}."
    return refuse


for _base in Channel.__mro__:
    for _name, _what in vars(_base).get("_of_server", ()):
        setattr(LocalChannel, _name, _refused(_name, _what))
Channel._make_local = LocalChannel


T = TypeVar("T")

# All operations are of one client: this process.
_HERE = "here"

_queues: dict[str, LocalQueues] = {}
_loops: list[IoLoop] = []
_starting = threading.RLock()


class Local(NamedTuple):
    """Items that were delivered.

    Attributes:
        versions: of the policy that they were made with; empty where nobody said any.
        complete: the batch is what was asked for.
        group: that the items belong to; None where no group was asked for.
    """

    items: list[Any]
    versions: tuple[int | None, ...]
    complete: bool
    group: Any

    def batch(self) -> Batch:
        """Return them as the caller of `get_batch` or `get_group` gets them."""
        if self.group is not None:
            return GroupBatch(self.items, self.complete, self.group)
        batch = Batch(self.items, self.complete)
        batch.versions = self.versions
        return batch


def _awaits(local: dict[str, Any]) -> Wait | None:
    return LocalQueues.awaits(local["self"], local["operation"])


class LocalQueues:
    """The queues of one local channel in this process.

    Users' threads hand operations over and wait, as with a channel that a server holds: whatever interrupts them, an
    item is in its queue or its taker's. `channel_queues` finds them.

    Args:
        loop: the thread that owns them.

    Attributes:
        now: the clock of that thread, in seconds.
    """

    def __init__(self, spec: ChannelSpec, loop: IoLoop) -> None:
        self.now = loop.now
        self._spec = spec
        self._loop = loop
        self._state = ChannelState(spec.maxsize)
        self._operations: dict[int, ChannelOperation] = {}
        self._expired: set[int] = set()
        self._dropped: deque[PromiseRef] = deque()
        self._deliveries = Deliveries(self, loop.call_later)
        self._deleted = False

    # -- users' threads --------------------------------------------------------------------------

    @awaited(_awaits)
    def run(self, operation: ChannelOperation, item: Any, load: Callable[[Local], Any]) -> Any:
        """Run an operation until it is over; of a put, `load` is not called."""
        self._check_may_block()
        operation.promise_to(Promise())
        operation.blocks = True
        try:
            self._hand_over(operation, item)
            value = delivered = self._end_of(operation)
            if operation.kind != "put":
                value = load(delivered)
            # A store and a return: nothing can come in between. Before them, the items go back.
            operation.taken = True
            return value  # noqa: TRY300 - see above
        except BaseException:
            if not operation.taken:
                operation.dropped = True
                self._loop.submit(partial(self._withdraw, operation))
            raise

    def start(self, operation: ChannelOperation, item: Any = None) -> OperationPromise:
        """Start an operation; its end comes to the promise. A put goes on without it, a get does not."""
        operation.owner = self
        if operation.kind == "put":
            promise = OperationPromise(operation)
            operation.promise_to(promise)
        else:
            promise = OperationPromise(operation, is_watched=True)
            operation.promise_to(promise, self._dropped)
        self._hand_over(operation, item)
        return promise

    def take(self, operation: ChannelOperation, load: Callable[[Local], T], delivered: Local) -> T:
        """Turn a handle's result into what its caller receives, and count it as taken."""
        self._loop.submit(partial(self._deliveries.touch, operation))
        return load(delivered)

    def ask(self, what: str, question: Callable[[ChannelState], T], queue: QueueName | None = None) -> T:
        """Ask the queues something, after everything that was handed over before."""
        self._check_may_block()
        answer: Promise[T] = Promise()
        self._loop.submit(ending(partial(self._answer, question, answer), answer.set_exception))
        if not answer.wait(ANSWER_S):
            raise ChannelUnanswered(
                self._spec.name, queue, what, ANSWER_S, "the thread of local channels is busy"
            )
        return answer.result(0)

    def change(self, what: str, operation: EndQueue | Flush | Close) -> None:
        """Have the queues do something, and wait until they have."""
        self.ask(what, lambda state: self._carry_out(state.apply(operation)))

    def delete(self) -> None:
        """Drop what they hold; what waits fails, and so does what is asked later, in this process."""
        self.ask("delete", self._delete)

    def awaits(self, operation: ChannelOperation) -> Wait:
        """Return what the caller of an operation waits for; from any thread."""
        text = f"{operation.kind}('{self._spec.name}'), which is local"
        return Wait(OTHER, text, operation.waited_s, operation.timeout_s)

    def cause(self, operation: ChannelOperation) -> Cause:
        """Return the cause under which that wait is counted."""
        return Cause(CHANNEL, operation.kind, self._spec.name)

    def explain(self, error: BaseException, limit_s: float | None, waited_s: float) -> None:
        """Add nothing: nobody but this process can end such a wait."""

    def wake(self) -> None:
        """Have what was dropped be looked at."""
        self._loop.submit(self._look)

    def withdraw(self, operation: ChannelOperation, promise: OperationPromise) -> None:
        """Give one up."""
        self._loop.submit(partial(self._withdraw, operation))
        if not self._loop.is_current():
            promise.wait(ANSWER_S)

    def _end_of(self, operation: ChannelOperation) -> Any:
        promise = operation.find_promise()
        return None if promise is None else promise.result()

    def _hand_over(self, operation: ChannelOperation, item: Any) -> None:
        self._loop.submit(partial(self._begin, operation, item))

    def _check_may_block(self) -> None:
        if on_io_thread():
            problem = "a callback on an I/O thread cannot wait for it; use async_op=True"
            raise ChannelError(self._spec.name, problem)

    # -- the thread that owns them ---------------------------------------------------------------

    def _begin(self, operation: ChannelOperation, item: Any) -> None:
        self._look()
        if self._deleted:
            self._fail(operation, deleted_error(self._spec.name))
            return
        ticket = operation.ticket
        self._operations[ticket] = operation
        try:
            instructions = self._event(operation, item)
        except ValueError as error:
            del self._operations[ticket]
            self._fail(operation, ChannelArgumentError(self._spec.name, str(error)))
            return
        self._carry_out(instructions)
        left_s = operation.left_s if operation.wait else None
        if left_s is not None and ticket in self._operations:
            operation.timer = self._loop.call_later(left_s, partial(self._expire, operation))

    def _event(self, operation: ChannelOperation, item: Any) -> list[Instruction]:
        entering = None
        if operation.kind == "put":
            said = operation.item or NO_TERMS
            entering = Item(item, operation.weight, priority=said.priority, group=said.group)
            entering.version = said.version
        return self._state.apply(operation.opening(), _HERE, entering)

    def _carry_out(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Deliver):
                self._deliver(instruction)
            elif isinstance(instruction, Accept):
                self._finish(instruction.ticket, lambda promise: promise.set_result(None))
            elif isinstance(instruction, Refuse):
                self._refuse(instruction)
            elif isinstance(instruction, Ripen):
                ripen = partial(self._ripen, instruction.ticket)
                self._loop.call_later(instruction.after_s, ripen)

    def _deliver(self, delivery: Deliver) -> None:
        operation = self._operations.pop(delivery.ticket)
        operation.stop_clock()
        promise = operation.find_promise()
        if promise is None or operation.dropped:
            self._carry_out(self._state.apply(Withdraw(operation.ticket), _HERE))
            return
        self._deliveries.add(operation)
        items = delivery.items
        versions = tuple(item.version for item in items)
        said = versions if any(version is not None for version in versions) else ()
        promise.set_result(Local([item.payload for item in items], said, delivery.complete, delivery.group))
        if operation.blocks:
            self._deliveries.expect(operation)
            if not self._deliveries.looks_soon:
                self._deliveries.wake()
        else:
            self._deliveries.look_later()

    def _refuse(self, refused: Refuse) -> None:
        operation = self._operations.get(refused.ticket) or self._deliveries.forget(refused.ticket)
        if operation is None:
            return
        name = self._spec.name
        if refused.ticket in self._expired:
            self._expired.discard(refused.ticket)
            error = ending_error(name, operation, Ending.TIMED_OUT, refused.state)
            self._finish(refused.ticket, lambda promise: promise.set_exception(error))
        elif refused.reason is Reason.CANCELLED:
            self._finish(refused.ticket, lambda promise: promise.set_cancelled())
        else:
            about = refused.reason.value, refused.state
            error = ending_error(name, operation, Ending.REFUSED, about)
            self._finish(refused.ticket, lambda promise: promise.set_exception(error))

    def _finish(self, ticket: int, complete: Callable[[Promise[Any]], None]) -> None:
        operation = self._operations.pop(ticket, None)
        if operation is None:
            return
        operation.stop_clock()
        promise = operation.find_promise()
        if promise is not None:
            complete(promise)
            if not operation.blocks:
                operation.let_go()

    def _fail(self, operation: ChannelOperation, error: BaseException) -> None:
        promise = operation.find_promise()
        if promise is not None:
            promise.set_exception(error)

    def _expire(self, operation: ChannelOperation) -> None:
        if operation.ticket in self._operations:
            self._expired.add(operation.ticket)
            self._withdraw(operation)

    def _withdraw(self, operation: ChannelOperation) -> None:
        self._deliveries.forget(operation.ticket)
        self._carry_out(self._state.apply(Withdraw(operation.ticket), _HERE))

    def _ripen(self, ticket: int) -> None:
        self._carry_out(self._state.apply(Linger(ticket), _HERE))

    def look_at(self, operation: ChannelOperation) -> None:
        """Confirm what an operation brought if its caller has it, and give it back if nobody wants it."""
        if operation.is_taken:
            self._deliveries.forget(operation.ticket)
            self._carry_out(self._state.confirm(_HERE, (operation.ticket,)))
        elif not operation.is_awaited:
            self._withdraw(operation)

    def catch_up(self) -> None:
        """Give up, or give back, what was dropped."""
        while self._dropped:
            ticket = self._dropped.popleft().ticket
            operation = self._operations.get(ticket) or self._deliveries.find(ticket)
            if operation is not None:
                self.look_at(operation)

    def note_arrived(self, tickets: list[int]) -> None:
        """Nobody else is to know."""

    def flush(self) -> None:
        """Nothing is sent."""

    def _look(self) -> None:
        """See what became of items that were delivered: they are somebody's now, or go back."""
        if self._dropped:
            self.catch_up()
        self._deliveries.look()

    def _answer(self, question: Callable[[ChannelState], T], answer: Promise[T]) -> None:
        self._look()
        if self._deleted:
            answer.set_exception(deleted_error(self._spec.name))
        else:
            answer.set_result(question(self._state))

    def _delete(self, state: ChannelState) -> None:
        self._deleted = True
        state.clear()
        self._deliveries.clear()
        for ticket in list(self._operations):
            self._finish(ticket, lambda promise: promise.set_exception(deleted_error(self._spec.name)))


def channel_queues(spec: ChannelSpec) -> LocalQueues:
    """Return the queues that a local channel has in this process, which begin empty in each."""
    found = _queues.get(spec.channel_id)
    if found is None:
        found = _queues.setdefault(spec.channel_id, LocalQueues(spec, _loop()))
    return found


def _loop() -> IoLoop:
    with _starting:
        if not _loops:
            on_fork_in_child(_forget)
            loop = IoLoop("rlinf-local-channels")
            loop.start()
            _loops.append(loop)
        return _loops[0]


def _forget() -> None:
    """A forked child has none of its parent's threads: its local channels begin empty, as in any other process."""
    global _starting
    _starting = threading.RLock()
    _queues.clear()
    for loop in _loops:
        loop.abandon()
    _loops.clear()
