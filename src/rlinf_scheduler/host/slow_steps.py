"""What takes long says in the log what it waits for: after some seconds, and again once in a while."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.threads import run_beside
from rlinf_scheduler.host.terminal_line import PROGRESS_VARIABLE

FIRST_AFTER_S = 5.0
AGAIN_AFTER_S = 10.0
_log = logging.getLogger(__name__)


def is_told(environ: Mapping[str, str]) -> bool:
    """Whether the log is to have such lines."""
    return environ.get(PROGRESS_VARIABLE) != "0"


class Reminder:
    """Says when a wait is to be told of (again)."""

    def __init__(self) -> None:
        self._due_s = FIRST_AFTER_S

    def is_due(self, waited_s: float) -> bool:
        """Whether a line is to be written, for a wait that goes on for so many seconds; 0 for none."""
        if waited_s < FIRST_AFTER_S:
            self._due_s = FIRST_AFTER_S
            return False
        if waited_s < self._due_s:
            return False
        self._due_s = waited_s + AGAIN_AFTER_S
        return True


class SlowStep:
    """Something that may take long, in steps.

    Args:
        what: it in words.

    Attributes:
        waits_for: what it waits for now, in words.
    """

    def __init__(self, what: str, waits_for: str) -> None:
        self.waits_for = waits_for
        self._what = what

    @contextmanager
    def told(self) -> Iterator[None]:
        """Write down what it waits for, until the block ends."""
        if not is_told(os.environ):
            yield
            return
        over: Promise[None] = Promise()
        try:
            with suppress(RuntimeError):  # no thread to be had: a line less is no reason to fail
                run_beside(self._tell, over)
            yield
        finally:
            over.set_result(None)

    def _tell(self, over: Promise[None]) -> None:
        began, pause_s = time.monotonic(), FIRST_AFTER_S
        while not over.wait(pause_s):
            _log.warning("%s: waiting for %s (%.0f s)", self._what, self.waits_for, time.monotonic() - began)
            pause_s = AGAIN_AFTER_S
