"""What a program that configures no logging logs by `Worker.logger`: shown, as RLinf's own scheduler shows it."""

from __future__ import annotations

import logging
import sys

from rlinf_scheduler.log_level import LOGGER_NAME, level_named


def show_worker_log() -> None:
    """Show it on standard error from INFO on, or from the level that RLINF_LOG_LEVEL names.

    Only as long as nobody configures logging in this process, as ranks and most programs do: from then on that decides.

    Raises:
        ConfigError: RLINF_LOG_LEVEL names no level.
    """
    named = level_named()
    logger = logging.getLogger(LOGGER_NAME)
    if isinstance(logging.lastResort, _LastResort) or type(logger) is not logging.Logger:
        return
    logger.__class__ = _WorkerLogger
    logging.lastResort = _LastResort(logging.INFO if named is None else named, logging.lastResort)


class _WorkerLogger(logging.Logger):
    """That logger: as long as nobody has configured logging, `_LastResort` decides what of it is shown."""

    def getEffectiveLevel(self) -> int:  # noqa: N802 - as of `logging`
        shown = logging.lastResort
        if self.level or self.hasHandlers() or not isinstance(shown, _LastResort):
            return super().getEffectiveLevel()
        return shown.wanted

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - as of `logging`
        """Ask each time: logging that is configured meanwhile is not told to loggers."""
        return not self.disabled and self.manager.disable < level and level >= self.getEffectiveLevel()


class _LastResort(logging.Handler):
    """Takes what no handler takes; what is not of that logger goes where it would have gone."""

    def __init__(self, wanted: int, others: logging.Handler | None) -> None:
        super().__init__()
        self.wanted = wanted
        self._others = others
        self.setFormatter(logging.Formatter(logging.BASIC_FORMAT))

    def handle(self, record: logging.LogRecord) -> bool:
        if record.name != LOGGER_NAME:
            others = self._others
            return bool(others is not None and record.levelno >= others.level and others.handle(record))
        return bool(super().handle(record))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if sys.stderr is not None:
                sys.stderr.write(f"{self.format(record)}\n")
        except Exception:  # noqa: BLE001 - as in all of logging: a line that cannot be written ends no work
            self.handleError(record)
