"""What ranks say on its way to the listeners: bounded, for a terminal may be stopped, or a pipe not be read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from rlinf_scheduler.events import WorkerLogged, WorkerPrinted
from rlinf_scheduler.session.bus import EventBus

MAX_UNHEARD_BYTES = 16 << 20
LOOK_S = 1.0
# Of a line, beside its text.
_LINE_BYTES = 100

Said = WorkerPrinted | WorkerLogged


class BoundedLines:
    """Hands lines to a bus as long as its listeners keep up; counts the others, and says so when they have.

    One thread uses it, which `call_later` calls back.

    Args:
        bus: where lines go.
        call_later: calls a function after so many seconds.
        file_of: where all lines of a group's rank are; "" if there is no such place.
    """

    def __init__(
        self,
        bus: EventBus,
        call_later: Callable[[float, Callable[[], None]], object],
        file_of: Callable[[str, int], str],
    ) -> None:
        self._bus = bus
        self._call_later = call_later
        self._file_of = file_of
        self._num_left_out: Counter[tuple[str, int]] = Counter()

    def emit(self, said: Said) -> None:
        """Hand over lines, or count them."""
        rank = said.group, said.rank
        lines = said.lines if isinstance(said, WorkerPrinted) else (said.message,)
        if self._bus.unheard_bytes < MAX_UNHEARD_BYTES:
            self._tell_left_out(rank)
            self._bus.emit(said, sum(len(line) + _LINE_BYTES for line in lines))
            return
        if not self._num_left_out:
            self._call_later(LOOK_S, self._look)
        self._num_left_out[rank] += len(lines)

    def _look(self) -> None:
        if self._bus.unheard_bytes < MAX_UNHEARD_BYTES:
            for rank in list(self._num_left_out):
                self._tell_left_out(rank)
        if self._num_left_out:
            self._call_later(LOOK_S, self._look)

    def _tell_left_out(self, rank: tuple[str, int]) -> None:
        number = self._num_left_out.pop(rank, 0)
        if number:
            self._bus.emit(left_out_lines(rank, number, self._file_of(*rank)))


def left_out_lines(rank: tuple[str, int], number: int, where: str) -> WorkerPrinted:
    """What is told in the place of so many lines of a group's rank; `where` has them, if that is not ""."""
    told = f"... {number:,} lines were left out: nobody read them in time"
    return WorkerPrinted(*rank, (told + (f"; they are in {where}" if where else ""),), "stderr")
