"""What takes long is told of: by a line at the end of a terminal that is rewritten, and in the log once in a while."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TextIO

from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.threads import run_beside
from rlinf_scheduler.session import Session

PROGRESS_VARIABLE = "RLINF_PROGRESS"
# To the line's beginning; erase what stands there.
_ERASE = "\r\x1b[K"
_DEFAULT_WIDTH = 80


def is_wanted(stream: TextIO | None, environ: Mapping[str, str]) -> bool:
    """Whether somebody looks at `stream` who can be shown such a line: a terminal that can, no notebook, no CI."""
    if environ.get(PROGRESS_VARIABLE) == "0" or environ.get("CI") or environ.get("TERM") == "dumb":
        return False
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # it is closed
        return False


def width_of(stream: TextIO) -> int:
    """How many characters a line of the terminal has."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or _DEFAULT_WIDTH
    except (OSError, ValueError):
        return _DEFAULT_WIDTH


class TerminalLine:
    """The line at the end of standard error, whatever that is at the time; a service of the session.

    Threads of the library's alone use it, one after the other: none of them holds up a user's.
    """

    def __init__(self, session: Session) -> None:
        del session
        self._lock = threading.Lock()
        self._shown_on: TextIO | None = None
        self._shown = ""

    def show(self, text: str) -> None:
        """Let the line say something else, as much of it as the terminal is wide."""
        stream = sys.stderr
        width = width_of(stream) - 1  # in the last column some terminals begin a new line
        shown = text if len(text) <= width else text[: max(0, width - 1)] + "…"
        with self._lock:
            if (self._shown_on, self._shown) != (stream, shown):
                self._shown_on, self._shown = stream, shown
                _write(stream, f"{_ERASE}{shown}")

    def erase(self) -> None:
        """Take the line away, so that something else can be written there."""
        with self._lock:
            stream, self._shown_on, self._shown = self._shown_on, None, ""
            if stream is not None:
                _write(stream, _ERASE)


def write_text(stream: TextIO | None, text: str) -> None:
    """Write to a stream at once; what its encoding has no letter for is written as Python escapes it.

    Raises:
        OSError, ValueError: it cannot be written to, or is closed.
    """
    if stream is None:
        raise ValueError("this process has none")
    try:
        stream.write(text)
    except UnicodeEncodeError as error:
        stream.write(text.encode(error.encoding, "backslashreplace").decode(error.encoding))
    stream.flush()


def _write(stream: TextIO, text: str) -> None:
    with suppress(OSError, ValueError):  # the terminal is gone
        write_text(stream, text)


# -- in the log --------------------------------------------------------------------------------------


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
    """Something that may take long, in steps."""

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
