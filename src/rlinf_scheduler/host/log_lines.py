"""Workers' log lines: they travel to the driver ahead of the results of their calls, and its own logging shows them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

from rlinf_scheduler.addresses import WorkerAddress
from rlinf_scheduler.comm import Request
from rlinf_scheduler.events import Event, WorkerLogged, WorkerPrinted
from rlinf_scheduler.host import protocol
from rlinf_scheduler.host.bounded_lines import BoundedLines, Said
from rlinf_scheduler.host.output import ERR, OUT, LogFolder
from rlinf_scheduler.host.terminal_line import TerminalLine, write_text
from rlinf_scheduler.log_level import LOGGER_NAME, level_named
from rlinf_scheduler.session import Session

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
    """Have the buses of the job's home tell what workers log and print.

    Args:
        session: the home's.
        shows: whether it is shown there, too.
    """
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
