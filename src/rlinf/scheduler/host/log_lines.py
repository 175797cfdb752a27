"""Workers' log lines: they travel to the driver ahead of the results of their calls, and its own logging shows them."""

from __future__ import annotations

import logging
import sys

from rlinf.scheduler.comm import Request
from rlinf.scheduler.comm.failure import sendable
from rlinf.scheduler.events import Event, WorkerLogged
from rlinf.scheduler.host import protocol
from rlinf.scheduler.host.info import WorkerAddress
from rlinf.scheduler.session import Session

LOGGER_NAME = "rlinf.worker"


class _StandardError(logging.Handler):
    """Writes to whatever sys.stderr is now: it may be replaced, by a test or a notebook, at any time."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(self.format(record) + "\n")
        sys.stderr.flush()


_last_resort = _StandardError()
_last_resort.setFormatter(logging.Formatter("[%(worker)s] %(message)s"))


def show_log_line(event: Event) -> None:
    """Hand a worker's line to the driver's logger `rlinf.worker.<group>`.

    A program that has not set up logging would lose it (Python shows warnings only), so there it goes to standard
    error: a worker's lines are output of the job.
    """
    if not isinstance(event, WorkerLogged):
        return
    logger = logging.getLogger(f"{LOGGER_NAME}.{event.group}")
    configured = logger.hasHandlers()
    if configured and not logger.isEnabledFor(event.level):
        return
    worker = f"{event.group}:{event.rank}"
    text = f"[{worker}] {event.message}" if configured else event.message
    record = logger.makeRecord(logger.name, event.level, "", 0, text, (), None, extra={"worker": worker})
    if configured:
        logger.handle(record)
    else:
        _last_resort.handle(record)


def level_to_forward() -> int:
    """The lowest level of lines that workers send: INFO, or what the driver shows if that is lower."""
    logger = logging.getLogger(LOGGER_NAME)
    return min(logger.getEffectiveLevel(), logging.INFO) if logger.hasHandlers() else logging.INFO


def receive_log_lines(session: Session) -> None:
    """Show what workers log, in the driver, and tell whoever listens to its events."""

    def on_line(notice: Request) -> None:
        line: protocol.LogLine = notice.head
        event = WorkerLogged(line.group, line.rank, line.level, line.message)
        session.log_bus.emit(event)
        session.bus.emit(event)

    session.log_bus.subscribe(show_log_line)
    session.messenger.serve(protocol.LOG, on_line, protocol.LogLine)


class _Forwarder(logging.Handler):
    def __init__(self, session: Session, address: WorkerAddress) -> None:
        super().__init__()
        self._session = session
        self._address = address

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = sendable(self.format(record))
            line = protocol.LogLine(self._address.group, self._address.rank, record.levelno, text)
            self._session.messenger.notify(self._session.home, protocol.LOG, line)
        except Exception:  # noqa: BLE001 - as in all of logging: a line that cannot be written ends no work
            self.handleError(record)


def forward_logs(session: Session, address: WorkerAddress, level: int) -> None:
    """Send what this process logs under `rlinf.worker` at `level` or above to the job's home, the driver."""
    logger = logging.getLogger(LOGGER_NAME)
    logger.setLevel(level)
    logger.propagate = False
    logger.addHandler(_Forwarder(session, address))
