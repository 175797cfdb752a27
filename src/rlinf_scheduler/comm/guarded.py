"""What runs on the I/O thread for others: a mistake is reported, and ends nothing but the wait that it belongs to."""

from __future__ import annotations

from collections.abc import Callable

from rlinf_scheduler.comm.reports import Reporter

logger = Reporter(__name__)


def ending(step: Callable[[], None], fail: Callable[[Exception], object]) -> Callable[[], None]:
    """`step`, to be handed over to the I/O thread; if it raises, `fail` ends the wait of whoever did that."""

    def run() -> None:
        try:
            step()
        except Exception as error:
            logger.exception("a step on the I/O thread failed")
            fail(error)

    return run


def run_guarded(callback: Callable[..., None], *args: object) -> None:
    """Run somebody's callback; its mistake is reported and goes no further."""
    try:
        callback(*args)
    except Exception:
        logger.exception("a callback on the I/O thread failed")
