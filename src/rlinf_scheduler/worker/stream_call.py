"""A call whose ranks stream their values, as the calling process's I/O thread sees it."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial

from rlinf_scheduler.comm import Buffer, Encoded, Messenger, Reply
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.shm.payload import ReceivedPayload
from rlinf_scheduler.errors import SharedMemoryUnreadable, WorkerDied
from rlinf_scheduler.host import protocol
from rlinf_scheduler.worker.call import Call, RankOutcome, Target, next_number


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

    A rank has `prefetch` values at most asked for and not taken: further ones are not computed. Everything but making
    it is on the I/O thread.

    Args:
        targets: the ranks.
        encoded: the arguments: one for all ranks, or one a rank.
        heads: each rank's first slot.
    """

    def __init__(
        self,
        messenger: Messenger,
        method: str,
        targets: Sequence[Target],
        encoded: Encoded | Sequence[Encoded],
        heads: Sequence[ValueCell],
        prefetch: int,
    ) -> None:
        super().__init__(messenger, method, targets, encoded, "stream")
        self._prefetch = prefetch
        # Slots whose values are on their way; and each rank's first one whose value was not asked for.
        self._open: set[ValueCell] = set()
        self._tails = list(heads)
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

    def taken(self, index: int, count: int) -> None:
        """So many values of a rank were taken: ask for what may be computed now."""
        while self._goes_on(index) and self._tails[index].index < count + self._prefetch:
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

    def _on_value(self, index: int, slot: ValueCell, item: int, answer: Future[Reply]) -> None:
        if answer.exception() is not None:
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

    def _on_bytes(self, index: int, slot: ValueCell, item: int, answer: Future[Reply]) -> None:
        if answer.exception() is not None:
            self._fill(index, slot, None)
        else:
            self._take_value(index, slot, item, answer.result().frames)

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
        self._fill(index, self._tails[index], None)

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
