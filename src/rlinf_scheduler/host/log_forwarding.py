"""What a rank logs, on its way: to the job's home, and into the rank's file."""

from __future__ import annotations

import logging
import os
from functools import partial

from rlinf_scheduler.comm.failure import sendable
from rlinf_scheduler.host.line_sender import LineSender
from rlinf_scheduler.host.output import RankOutput
from rlinf_scheduler.log_level import LOGGER_NAME
from rlinf_scheduler.session import Session


class _Forwarder(logging.Handler):
    def __init__(self, session: Session, sender: LineSender, output: RankOutput | None) -> None:
        super().__init__()
        self._messenger = session.messenger
        self._sender = sender
        self._output = output
        self._pid = os.getpid()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = sendable(self.format(record))
            if os.getpid() != self._pid:  # a forked child: it has no part in the job, but the rank's output
                os.write(2, f"{record.levelname} {text}\n".encode())
                return
            if self._output is not None:
                self._output.note(f"{record.levelname} {text}")
            self._messenger.submit(partial(self._sender.send_log_line, record.levelno, text))
        except Exception:  # noqa: BLE001 - as in all of logging: a line that cannot be written ends no work
            self.handleError(record)


def forward_logs(
    session: Session, sender: LineSender, level: int, library_level: int, output: RankOutput | None
) -> None:
    """Send what this process logs to the job's home, the driver, and write it into the rank's file.

    Args:
        session: of this process.
        sender: what the job's home is sent lines with.
        level: the lowest level of what is logged under `rlinf.worker`.
        library_level: of what all other loggers say; 0: that is left alone.
        output: the rank's file, if it has one.
    """
    logger, root = logging.getLogger(LOGGER_NAME), logging.getLogger()
    for each in logger, root:  # of the process that has forked this one
        for handler in [handler for handler in each.handlers if isinstance(handler, _Forwarder)]:
            each.removeHandler(handler)
    logger.setLevel(level)
    logger.propagate = False
    logger.addHandler(_Forwarder(session, sender, output))
    if library_level:
        libraries = _Forwarder(session, sender, output)
        libraries.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        root.setLevel(library_level)
        root.addHandler(libraries)
