"""Calls whose ranks stream their values: `GroupStream`, and how the calling process takes what comes."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Generic, TypeVar

from rlinf_scheduler.checks import explains_calls
from rlinf_scheduler.comm import Buffer, Encoded, Messenger, RequestFuture
from rlinf_scheduler.comm.handle import AsyncHandle
from rlinf_scheduler.comm.promise import Promise, Wake
from rlinf_scheduler.comm.shm.payload import ReceivedPayload
from rlinf_scheduler.comm.waits import RESULT, Cause, Wait
from rlinf_scheduler.errors import PeerDied, ResultTimeout, SharedMemoryUnreadable, UnevenStreams, WorkerDied
from rlinf_scheduler.host import protocol
from rlinf_scheduler.host.timing import Reduce
from rlinf_scheduler.observe.reasons import explaining
from rlinf_scheduler.session import current_or_none
from rlinf_scheduler.worker.call import Call, CallAgain, RankOutcome, Target, next_number
from rlinf_scheduler.worker.result import FirstOf, GroupResult

R = TypeVar("R")
# How many values of a stream a rank may have computed ahead.
PREFETCH = 2


class ValueCell:
    """Where one value of one rank comes to; they are linked in the order of the values.

    The iterating thread holds the slot that it waits for, and goes on to the next one by one store: so an interruption
    neither loses a value nor gives it twice.

    Attributes:
        index: how many values stand before it.
        filled: done with the value, not decoded yet, or with None: there is no further one.
    """

    __slots__ = ("_next", "filled", "index")

    def __init__(self, index: int = 0) -> None:
        self.index = index
        self.filled: Promise[ReceivedPayload | None] = Promise()
        self._next: dict[None, ValueCell] = {}

    @property
    def next(self) -> ValueCell:
        """The slot behind it."""
        # One step, for both threads may be the first to ask.
        return self._next.get(None) or self._next.setdefault(None, ValueCell(self.index + 1))


class StreamCall(Call):
    """A call of a generator: its answer is the generator's end, and its values are asked for one by one.

    A rank has `PREFETCH` values at most asked for and not taken: further ones are not computed. Everything but making
    it is on the I/O thread.

    Args:
        targets: the ranks.
        encoded: the arguments: one for all ranks, or one a rank.
        heads: each rank's first slot.
        again: as of `Call`.
    """

    def __init__(
        self,
        messenger: Messenger,
        method: str,
        targets: Sequence[Target],
        encoded: Encoded | Sequence[Encoded],
        heads: Sequence[ValueCell],
        again: CallAgain | None = None,
    ) -> None:
        super().__init__(messenger, method, targets, encoded, "stream", again)
        # Slots whose values are on their way; and each rank's first one whose value was not asked for.
        self._open: set[ValueCell] = set()
        self._tails = list(heads)
        # Of each rank those that its process, which is gone, was asked for: the call says whether others are.
        self._unanswered: list[list[ValueCell]] = [[] for _ in heads]
        # How many values of each rank are asked for and have not come, and since when it is at the next of them.
        self._num_owed = [0] * len(heads)
        self._owed_since = [math.inf] * len(heads)

    def start(self) -> None:
        """Begin it on every rank, and ask for the first values."""
        super().start()
        self.taken_all([0] * len(self._targets))

    def go_on(self, target: Target) -> None:
        """A rank for whose process it waited has one."""
        super().go_on(target)
        if target.address in self.addresses:
            self.taken(self.addresses.index(target.address), 0)

    def _send(self, index: int) -> None:
        super()._send(index)
        if self._targets[index].endpoint is not None:
            slots, self._unanswered[index] = self._unanswered[index], []
            for slot in sorted(slots, key=attrgetter("index")):
                self._ask(index, slot)

    def taken(self, index: int, count: int) -> None:
        """So many values of a rank were taken: ask for what may be computed now."""
        while self._goes_on(index) and self._tails[index].index < count + PREFETCH:
            slot, self._tails[index] = self._tails[index], self._tails[index].next
            self._open.add(slot)
            self._num_owed[index] += 1
            if self._num_owed[index] == 1:
                self._owed_since[index] = time.monotonic()
            self._ask(index, slot)

    def taken_all(self, counts: Sequence[int]) -> None:
        """So many values of each rank were taken."""
        for index, count in enumerate(counts):
            self.taken(index, count)

    def owed_since(self, index: int) -> float:
        """Return since when a rank owes a value; one that waits until its values are taken owes nothing."""
        return self._owed_since[index] if self._goes_on(index) else super().owed_since(index)

    def _goes_on(self, index: int) -> bool:
        is_there = self._targets[index].endpoint is not None
        return is_there and self.outcomes[index] is None and self.aborted is None

    def _ask(self, index: int, slot: ValueCell) -> None:
        endpoint = self._targets[index].endpoint
        if endpoint is None or not self._goes_on(index):
            self._fill(index, slot, None)
            return
        wanted = protocol.Next(self._head.number, next_number())
        answer = self.messenger.request(endpoint, protocol.NEXT, wanted, reply_type=protocol.NextAnswer)
        answer.add_done_callback(partial(self._on_value, index, slot, wanted.item))

    def _on_value(self, index: int, slot: ValueCell, item: int, answer: RequestFuture) -> None:
        if isinstance(answer.exception(), PeerDied) and self.outcomes[index] is None:
            self._unanswered[index].append(slot)
        elif answer.exception() is not None:
            self._fill(index, slot, None)  # the call itself has failed, too, and says why
        elif isinstance(answer.result().head, protocol.Ended):
            # Its end comes at once; or the rank could not read the arguments, and has got them meanwhile.
            self._ask(index, slot)
        else:
            self._take_value(index, slot, item, answer.result().frames)

    def _take_value(self, index: int, slot: ValueCell, item: int, frames: list[Buffer]) -> None:
        try:
            self._fill(index, slot, self.messenger.payloads.receive(frames))
        except SharedMemoryUnreadable as error:
            self._ask_again(index, item, error, partial(self._on_bytes, index, slot, item))

    def _on_bytes(self, index: int, slot: ValueCell, item: int, answer: RequestFuture) -> None:
        error, address = answer.exception(), self.addresses[index]
        if error is None:
            self._take_value(index, slot, item, answer.result().frames)
            return
        # Whatever the call ends with: that it is the last one is not so.
        gone = f"value {slot.index} could not be read where it lay; it was computed, and is gone: {error}"
        slot.filled.set_exception(WorkerDied(address.group, address.rank, self.method, gone))
        self._fill(index, slot, None)

    def abort(self, error: WorkerDied) -> None:
        """End the wait with `error`: a rank died that this call may depend on."""
        super().abort(error)
        self._end_slots()

    def cancel(self) -> None:
        """Give it up: nobody waits any more, and the ranks leave it where they wait."""
        super().cancel()
        self._end_slots()

    def _note(self, index: int, outcome: RankOutcome) -> None:
        super()._note(index, outcome)
        for slot in (*self._unanswered[index], self._tails[index]):
            self._fill(index, slot, None)

    def _end_slots(self) -> None:
        """Nobody is to wait for a value any more, once the call was given up or has ended."""
        if self.aborted is not None:
            for slot in (*self._open, *self._tails):
                slot.filled.set_result(None)
            self._open.clear()

    def _fill(self, index: int, slot: ValueCell, value: ReceivedPayload | None) -> None:
        if slot in self._open:
            self._open.discard(slot)
            self._num_owed[index] -= 1
            self._owed_since[index] = time.monotonic() if self._num_owed[index] else math.inf
        slot.filled.by = str(self.addresses[index])
        slot.filled.set_result(value)


class _Step(FirstOf):
    """One step of an iteration over a stream: its wait says what it waits for.

    Args:
        promises: what ends it.
        title: what was called.
        missing: says which ranks have not given their values.
        began: when, on the monotonic clock.
        timeout_s: its deadline.
    """

    __slots__ = ("_began", "_missing", "_timeout_s", "_title")

    def __init__(
        self,
        promises: Sequence[Promise[Any]],
        title: str,
        missing: Callable[[], tuple[str, ...]],
        began: float,
        timeout_s: float | None,
    ) -> None:
        super().__init__(promises)
        self._title, self._missing, self._began, self._timeout_s = title, missing, began, timeout_s

    def cause(self) -> Cause:
        """Return what the wait is counted as."""
        return Cause(RESULT, f"iteration over {self._title}")

    def awaits(self) -> Wait:
        """Return what the iterating thread or task waits for; from any thread."""
        waited_s = time.monotonic() - self._began
        return Wait(RESULT, self.cause().operation, waited_s, self._timeout_s, self._missing())

    def wait_until(self, deadline: float | None) -> None:
        """Wait for its end.

        Raises:
            ResultTimeout: the deadline has passed.
        """
        with explaining(current_or_none(), self._timeout_s, self._began), self:
            if not self.wait_described(None if deadline is None else max(0.0, deadline - time.monotonic())):
                waited_s = time.monotonic() - self._began
                raise ResultTimeout(f"a value of {self._title}", waited_s, list(self._missing()))


@explains_calls
class GroupStream(Generic[R]):
    """The values of one call of a generator method, on several ranks.

        for actions in group.play(100):             # a list: one value of each rank, in rank order
            ...
        for rank, action in group.play(100).as_ready():
            ...
        for action in group.play(100).rank(0):
            ...

    The ranks begin at once and run ahead by two values at most: one whose values are not taken waits. Closing the
    stream, leaving its `with` block or dropping it ends the generators, each where it waits or at its next `yield`. A
    value that an interruption prevented from being returned is returned by the next step. For one thread at a time.

    Attributes:
        timeout_s: how long one step may take, in seconds; None: as long as every rank lives.
    """

    def __init__(self, call: StreamCall, result: GroupResult[Any], heads: Sequence[ValueCell]) -> None:
        """Used by the group."""
        self.timeout_s: float | None = None
        self._call = call
        self._result = result
        # The slots whose values are taken next.
        self._cursor = list(heads)
        self._is_closed = False
        self._when_dropped = Wake(partial(call.messenger.submit, call.cancel))

    # -- a value a rank --------------------------------------------------------------------------

    def __iter__(self) -> Iterator[list[R]]:
        """The lists of one value of each rank.

        Raises:
            WorkerError: a rank's generator raised, after it gave all its values; what others had not given by then
                is not waited for.
            WorkerDied: a rank's process is gone.
            UnevenStreams: some ranks ended before others.
            ResultTimeout: a step took longer than `timeout_s`; the next one goes on.
        """
        return self

    def __next__(self) -> list[R]:
        began = self._begin_step()
        while waits := self._row_waits():
            self._step(waits, self._cursor, began).wait_until(self._deadline(began))
        row = self._load_row()
        if row is None:
            raise StopIteration
        # A store and a return: nothing can come in between.
        self._cursor = row[1]
        return row[0]

    def __aiter__(self) -> AsyncIterator[list[R]]:
        """As `for`, without blocking the event loop."""
        return self

    async def __anext__(self) -> list[R]:
        began = self._begin_step()
        while waits := self._row_waits():
            with self._step(waits, self._cursor, began) as step:
                await AsyncHandle(step)
        row = self._load_row()
        if row is None:
            raise StopAsyncIteration
        self._cursor = row[1]
        return row[0]

    def _row_waits(self) -> list[Promise[Any]]:
        """What the next list waits for; nothing when it is there, or never will be."""
        slots = [self._cursor[place].filled for place in self._call.places]
        missing = [filled for filled in slots if not filled.done()]
        if not missing or self._is_closed or self._call.failed:
            return []
        return [missing[0]] if self._call.settled.done() else [missing[0], self._call.settled]

    def _load_row(self) -> tuple[list[R], list[ValueCell]] | None:
        """The next list and the slots behind it; None at the end."""
        if self._is_closed:
            return None
        places = self._call.places
        slots = [self._cursor[place].filled for place in places]
        arrived = [filled.result(0) if filled.done() else None for filled in slots]
        values = [each for each in arrived if each is not None]
        if len(values) == len(arrived):
            return [each.load() for each in values], [slot.next for slot in self._cursor]
        if not values or self._call.failed:
            self._result.wait()  # raises what a rank failed with
            return None
        addresses = [self._call.addresses[place] for place in places]
        ended = [address.rank for address, each in zip(addresses, arrived, strict=True) if each is None]
        self.close()
        raise UnevenStreams(self._call.title, ended, self._cursor[places[0]].index)

    # -- rank by rank ----------------------------------------------------------------------------

    def rank(self, rank: int) -> Iterator[R]:
        """The values of one rank.

        Args:
            rank: its number in the group.

        Raises:
            ValueError: it was not called, or left the group before it began.
            Otherwise as `__iter__`.
        """
        ranks = [address.rank for address in self._call.addresses]
        if rank not in ranks:
            raise self._not_called(rank)
        return self._values_of(rank, ranks.index(rank))

    def _values_of(self, rank: int, place: int) -> Iterator[R]:
        for _, value in self._each([place]):
            yield value
        if place not in self._call.places:  # it has left: that is no stream without values
            raise self._not_called(rank)

    def _not_called(self, rank: int) -> ValueError:
        ranks = [self._call.addresses[place].rank for place in self._call.places]
        return ValueError(f"{self._call.title} runs on ranks {ranks}, not on rank {rank}")

    def as_ready(self) -> Iterator[tuple[int, R]]:
        """The values of all ranks as they come, each with its rank; ranks may give different numbers of them.

        Raises: as `__iter__`, but for UnevenStreams.
        """
        return self._each(list(range(len(self._cursor))))

    def _each(self, indices: list[int]) -> Iterator[tuple[int, R]]:
        left = list(indices)
        while left and not self._is_closed:
            began = self._begin_step()
            slots = {index: self._cursor[index] for index in left}
            ready = [index for index, slot in slots.items() if slot.filled.done()]
            if not ready:
                ends = [slot.filled for slot in slots.values()]
                self._step(ends, list(slots.values()), began).wait_until(self._deadline(began))
            for index in ready:
                arrived = slots[index].filled.result(0)
                if arrived is None:
                    left.remove(index)
                    self._raise_failure()
                    continue
                value: R = arrived.load()
                pair = self._call.addresses[index].rank, value
                self._cursor[index] = slots[index].next
                yield pair

    def _raise_failure(self) -> None:
        if self._call.failed and not self._is_closed:
            self._result.wait()

    # -- its end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """End the generators, and this iteration; returns at once."""
        self._is_closed = True
        self._call.messenger.submit(self._call.cancel)

    def wait(self, timeout_s: float | None = None) -> list[Any]:
        """What each rank's generator returned; for after the last value.

        Raises: as `GroupResult.wait`.
        """
        return self._result.wait(timeout_s)

    def durations(self, reduce: Reduce = "max", timeout_s: float | None = None) -> dict[str, float]:
        """As `GroupResult.durations`; for after the last value."""
        return self._result.durations(reduce, timeout_s)

    def __enter__(self) -> GroupStream[R]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<GroupStream of {self._call.title}: {[slot.index for slot in self._cursor]} values taken>"

    def _begin_step(self) -> float:
        """What was taken makes room for further values."""
        self._result.note_read()
        counts = [slot.index for slot in self._cursor]
        self._call.messenger.submit(partial(self._call.taken_all, counts))
        return time.monotonic()

    def _deadline(self, began: float) -> float | None:
        return None if self.timeout_s is None else began + self.timeout_s

    def _step(self, ends: Sequence[Promise[Any]], slots: Sequence[ValueCell], began: float) -> _Step:
        """Return the present step, which one of these promises ends, and which needs the values of these slots."""
        return _Step(ends, self._call.title, partial(self._missing, slots), began, self.timeout_s)

    def _missing(self, slots: Sequence[ValueCell]) -> tuple[str, ...]:
        """Return the ranks whose values are not there, of those whose slots these are."""
        awaited_for = {slot for slot in slots if not slot.filled.done()}
        pairs = zip(self._call.addresses, self._cursor, strict=True)
        return tuple(str(address) for address, slot in pairs if slot in awaited_for)
