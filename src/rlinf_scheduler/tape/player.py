"""Answers the operations of a rank that is run again from what was recorded of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from rlinf_scheduler.comm.codec import Encoded
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.errors import ReplayDiffers, ReplayEnded
from rlinf_scheduler.tape.order import Order, ReplayedPromise
from rlinf_scheduler.tape.rank_tape import digest_of
from rlinf_scheduler.tape.recorded_rank import RecordedCall, RecordedOperation, RecordedRank, describe_call
from rlinf_scheduler.tape.tape import YIELDED, Tape
from rlinf_scheduler.tape.work import Places, Work, current_work, working_at

T = TypeVar("T")


def _as_it_is(brought: T) -> T:
    return brought


class Player(Tape):
    """What was recorded of a rank, operation by operation.

    In each lane, the first operation of a kind on a subject has what the first one had then, the second one what the
    second had, and so on.

    Args:
        recorded: the rank.
        checks: what is given away is compared with what was then.
    """

    def __init__(self, recorded: RecordedRank, *, checks: bool = False) -> None:
        self.recorded = recorded
        self._checks = checks
        self._places = Places()
        # How many of each were asked for, in the lane that is checked at its end.
        self._asked: dict[tuple[str, str, str], int] = {}
        self._orders: dict[str, Order] = {}

    def take(self, operation: str, subject: str) -> tuple[Any, list[bytearray]]:
        """What the operation brought: what is said of it, and its bytes.

        Raises:
            ReplayEnded: nothing was recorded of it.
            BaseException: what it had raised.
        """
        found = self._next(operation, subject)
        self._order().leave(found.place.number)
        return self.recorded.brought(found)

    def promised(
        self, operation: str, subject: str, load: Callable[[Any], Any] = _as_it_is, *, now: bool = False
    ) -> Promise[Any]:
        """The end of an operation that was begun: what `load` makes of what `take` returns, or what that raises.

        Args:
            operation: such as "get".
            subject: of what.
            load: see above.
            now: it counts as had at once: nobody says that it is taken.
        """
        order = self._order()
        try:
            found = self._next(operation, subject)
        except ReplayEnded as error:
            return _ended(ReplayedPromise(order, None), error)
        promise: ReplayedPromise[Any] = ReplayedPromise(order, found.place.number)
        if now or found.noted.failed:
            order.leave(found.place.number)
        promise.set_from(lambda: load(self.recorded.brought(found)))
        return promise

    def given(
        self, operation: str, subject: str, given: Callable[[], Encoded] | None = None
    ) -> Promise[None]:
        """The end of an operation that gives something away; see `give`.

        Raises:
            ReplayDiffers: at once.
        """
        order = self._order()
        try:
            then = self._give(operation, subject, given)
        except ReplayEnded as error:
            return _ended(ReplayedPromise(order, None), error)
        promise: ReplayedPromise[None] = ReplayedPromise(order, then.place.number)

        def brought() -> None:
            self.recorded.brought(then)

        promise.set_from(brought)
        return promise

    def give(self, operation: str, subject: str, given: Callable[[], Encoded] | None = None) -> None:
        """Something is given away: nobody gets it.

        Args:
            operation: such as "put".
            subject: of what.
            given: makes what is given, if that can be compared.

        Raises:
            ReplayDiffers: it is something else than was given then.
            ReplayEnded: nothing was recorded of it.
            BaseException: what it had raised.
        """
        self.recorded.brought(self._give(operation, subject, given))

    def _give(self, operation: str, subject: str, given: Callable[[], Encoded] | None) -> RecordedOperation:
        then = self._next(operation, subject)
        self._order().leave(then.place.number)
        wanted = then.noted.digest
        if self._checks and given is not None and wanted is not None:
            found = digest_of(given())
            if found != wanted:
                number = then.noted.place + 1
                problem = f"it gives {_described(found)} where it gave {_described(wanted)}"
                raise ReplayDiffers(f"{self._where()}: {operation} {number} to {subject}", problem)
        return then

    def run(self, operation: str, subject: str, function: Callable[[], T]) -> T:
        """Return what the function returned then, or raise it."""
        del function
        result: T = self.take(operation, subject)[0]
        return result

    @contextmanager
    def calling(self, call: RecordedCall) -> Iterator[Work]:
        """A block in which a call is run again.

        Raises:
            ReplayDiffers: it has ended, as it had then, and has not asked for all that it had.
        """
        with working_at(Work(call.began.lane)) as work:
            yield work
            if self._checks and call.ended is not None:
                self._check_all_asked(call)

    def num_values(self, call: RecordedCall) -> int:
        """How many values a call that streams had given."""
        return len(self.recorded.operations(call.began.lane).get(YIELDED, ()))

    def _next(self, operation: str, subject: str) -> RecordedOperation:
        work = current_work()
        place = self._places.next(work, operation, subject)
        key = (work.lane, operation, subject)
        self._asked[key] = max(place + 1, self._asked.get(key, 0))
        known = self.recorded.operations(work.lane).get((operation, subject), {})
        found = known.get(place)
        if found is None:
            there = f"it had ended {len(known)} of these" if known else self._what_else(operation, work.lane)
            raise ReplayEnded(f"{self._where()}: {operation} {place + 1} of {subject}", there)
        return found

    def _order(self) -> Order:
        """Of the lane of this thread or task."""
        lane = current_work().lane
        if lane not in self._orders:
            kinds = self.recorded.operations(lane).items()
            # Values of streams are asked for by nobody here.
            numbers = (
                each.place.number for what, known in kinds if what != YIELDED for each in known.values()
            )
            self._orders[lane] = Order(numbers)
        return self._orders[lane]

    def _what_else(self, operation: str, lane: str) -> str:
        others = sorted(
            f"{name} of {subject}" for name, subject in self.recorded.operations(lane) if name == operation
        )
        return f"it had none of these, but {', '.join(others)}" if others else "it had none of these"

    def _check_all_asked(self, call: RecordedCall) -> None:
        lane = call.began.lane
        for (operation, subject), known in self.recorded.operations(lane).items():
            num_asked = self._asked.get((lane, operation, subject), 0)
            if num_asked < len(known) and (operation, subject) != YIELDED:
                where = f"{describe_call(call.began)}: {operation} of {subject}"
                raise ReplayDiffers(where, f"it did so {num_asked} times, and {len(known)} times then")

    def _where(self) -> str:
        lane = current_work().lane
        for call in self.recorded.calls:
            if call.began.lane == lane:
                return describe_call(call.began)
        return lane


def _ended(promise: ReplayedPromise[T], error: ReplayEnded) -> ReplayedPromise[T]:
    promise.set_exception(error)
    return promise


def _described(digest: tuple[int, int]) -> str:
    checksum, size_bytes = digest
    return f"{size_bytes:,} bytes (CRC-32 {checksum:08x})"
