"""A worker's log lines travel to the launching process, ahead of the results of the calls that wrote them."""

from __future__ import annotations

import logging

from rlinf.scheduler.cluster.log_lines import LOGGER_NAME
from rlinf.scheduler.comm import Endpoint, Messenger
from rlinf.scheduler.errors import CommError
from rlinf.scheduler.worker import protocol
from rlinf.scheduler.worker.info import WorkerAddress


class _Forwarder(logging.Handler):
    def __init__(self, messenger: Messenger, launcher: Endpoint, address: WorkerAddress) -> None:
        super().__init__()
        self._messenger = messenger
        self._launcher = launcher
        self._address = address

    def emit(self, record: logging.LogRecord) -> None:
        line = [self._address.group, self._address.rank, record.levelno, self.format(record)]
        try:
            self._messenger.notify(self._launcher, protocol.LOG, line)
        except CommError:
            self.handleError(record)


def forward_logs(messenger: Messenger, launcher: Endpoint, address: WorkerAddress, level: int) -> None:
    """Send what this process logs under `rlinf.worker` at `level` or above to the launching process."""
    logger = logging.getLogger(LOGGER_NAME)
    logger.setLevel(level)
    logger.propagate = False
    logger.addHandler(_Forwarder(messenger, launcher, address))
