"""A worker's log lines travel to the driver, ahead of the results of the calls that wrote them."""

from __future__ import annotations

import logging

from rlinf.scheduler.cluster.log_lines import LOGGER_NAME
from rlinf.scheduler.comm import Endpoint, Messenger
from rlinf.scheduler.worker import protocol
from rlinf.scheduler.worker.info import WorkerAddress

MAX_LINE_CHARS = 100_000


class _Forwarder(logging.Handler):
    def __init__(self, messenger: Messenger, directory: Endpoint, address: WorkerAddress) -> None:
        super().__init__()
        self._messenger = messenger
        self._directory = directory
        self._address = address

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = sendable(self.format(record))
            line = protocol.LogLine(self._address.group, self._address.rank, record.levelno, text)
            self._messenger.notify(self._directory, protocol.LOG, line)
        except Exception:  # noqa: BLE001 - as in all of logging: a line that cannot be written ends no work
            self.handleError(record)


def sendable(text: str, limit: int = MAX_LINE_CHARS) -> str:
    """The text as a message's head can carry it: no half surrogate pairs, and not endless."""
    cut = text if len(text) <= limit else f"{text[:limit]} ... ({len(text) - limit} characters more)"
    return cut.encode("utf-8", "backslashreplace").decode()


def forward_logs(messenger: Messenger, directory: Endpoint, address: WorkerAddress, level: int) -> None:
    """Send what this process logs under `rlinf.worker` at `level` or above to the driver, where the directory is."""
    logger = logging.getLogger(LOGGER_NAME)
    logger.setLevel(level)
    logger.propagate = False
    logger.addHandler(_Forwarder(messenger, directory, address))
