"""Callbacks of others on the I/O thread: their mistakes are reported, and end nothing."""

from __future__ import annotations

from collections.abc import Callable

from rlinf.scheduler.comm.reports import Reporter

logger = Reporter(__name__)


def run_guarded(callback: Callable[..., None], *args: object) -> None:
    """Run somebody's callback; its mistake is reported and goes no further."""
    try:
        callback(*args)
    except Exception:
        logger.exception("a callback on the I/O thread failed")
