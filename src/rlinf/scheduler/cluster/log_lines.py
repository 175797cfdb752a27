"""Workers' log lines, shown by the driver's own logging."""

from __future__ import annotations

import logging
import sys

from rlinf.scheduler.events import Event, WorkerLogged

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
