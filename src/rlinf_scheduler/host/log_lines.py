"""Workers' log lines: they travel to the driver ahead of the results of their calls, and its own logging shows them."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Callable

from rlinf_scheduler.addresses import WorkerAddress
from rlinf_scheduler.comm import Request
from rlinf_scheduler.events import Event, WorkerLogged, WorkerPrinted
from rlinf_scheduler.host import protocol
from rlinf_scheduler.host.output import ERR, OUT, LogFolder
from rlinf_scheduler.host.progress import TerminalLine, write_text
from rlinf_scheduler.log_level import LOGGER_NAME, level_named
from rlinf_scheduler.session import Session
from rlinf_scheduler.session.bus import EventBus

# -- as many as are read -----------------------------------------------------------------------------


MAX_UNHEARD_BYTES = 16 << 20
LOOK_S = 1.0
# Of a line, beside its text.
_LINE_BYTES = 100

Said = WorkerPrinted | WorkerLogged


class BoundedLines:
    """Hands lines to a bus as long as its listeners keep up; counts the others, and says so when they have.

    One thread uses it, which `call_later` calls back.

    Args:
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


# -- shown -------------------------------------------------------------------------------------------


_log = logging.getLogger(__name__)
_format = logging.Formatter("[%(worker)s] %(message)s").format


class Display:
    """Shows what workers print and log on the standard streams of this process, whatever these are at the time.

    Args:
        where: the folder that has all of it; "" if there is none.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        # The streams that could not be written to the last time.
        self._failing: set[str] = set()

    def show(self, event: Event) -> None:
        """Show a line; what happens besides is not shown."""
        if isinstance(event, WorkerPrinted):
            worker = f"{event.group}:{event.rank}"
            text = "".join(f"[{worker}] {line}\n" for line in event.lines)
            self._write(ERR if event.stream == ERR else OUT, text)
        elif isinstance(event, WorkerLogged):
            self._log(event)

    def _log(self, event: WorkerLogged) -> None:
        """Hand a worker's line to the driver's logger `rlinf.worker.<group>`.

        A program that has not set up logging would lose it (Python shows warnings only), so there it goes to standard
        error: a worker's lines are output of the job.
        """
        logger = logging.getLogger(f"{LOGGER_NAME}.{event.group}")
        configured = logger.hasHandlers()
        if configured and not logger.isEnabledFor(event.level):
            return
        worker = event.address
        text = f"[{worker}] {event.message}" if configured else event.message
        record = logger.makeRecord(logger.name, event.level, "", 0, text, (), None, extra={"worker": worker})
        if configured:
            logger.handle(record)
        else:
            self._write(ERR, _format(record) + "\n")

    def _write(self, name: str, text: str) -> None:
        try:
            write_text(getattr(sys, name), text)
        except (OSError, ValueError) as error:
            if name not in self._failing:
                self._failing.add(name)
                where = f"; it is in the files in {self._where}" if self._where else ""
                _log.warning("what workers write to sys.%s is not shown any more: %s%s", name, error, where)
        else:
            self._failing.discard(name)


def level_to_forward() -> int:
    """The lowest level of lines that workers send: RLINF_LOG_LEVEL; else INFO, or what the driver shows if lower.

    Raises:
        ConfigError: RLINF_LOG_LEVEL names no level.
    """
    named = level_named()
    if named is not None:
        return named
    logger = logging.getLogger(LOGGER_NAME)
    return min(logger.getEffectiveLevel(), logging.INFO) if logger.hasHandlers() else logging.INFO


def receive_log_lines(session: Session, *, shows: bool = True) -> None:
    """Have the buses of the job's home tell what workers log and print."""
    tell = bounded_lines(session)
    if shows:
        show_log_lines(session)

    def on_line(notice: Request) -> None:
        line: protocol.LogLine = notice.head
        tell(WorkerLogged(line.group, line.rank, line.level, line.message, line.below))

    def on_output(notice: Request) -> None:
        written: protocol.OutputLines = notice.head
        tell(WorkerPrinted(written.group, written.rank, tuple(written.lines), written.stream))

    session.messenger.serve(protocol.LOG, on_line, protocol.LogLine)
    session.messenger.serve(protocol.OUTPUT, on_output, protocol.OutputLines)


def bounded_lines(session: Session) -> Callable[[Said], None]:
    """What tells both buses of a process what workers say, as much of it as their listeners take."""

    def file_of(group: str, rank: int) -> str:
        folder = session.fact(LogFolder)
        return folder.file_of(WorkerAddress(group, rank)) if folder is not None else ""

    call_later = session.messenger.call_later
    listeners = [BoundedLines(bus, call_later, file_of) for bus in (session.log_bus, session.bus)]

    def tell(event: Said) -> None:
        for lines in listeners:
            lines.emit(event)

    return tell


def show_log_lines(session: Session) -> None:
    """Show in this process what its log bus tells of."""
    below = session.service(TerminalLine)
    folder = session.fact(LogFolder)
    display = Display(folder.path if folder is not None else "")

    def show(event: Event) -> None:
        below.erase()
        display.show(event)

    session.log_bus.subscribe(show)
