"""Tells what a signal handler raised from what the code that it interrupted raised."""

from __future__ import annotations

import signal
from types import CodeType, TracebackType
from typing import Any


def raised_by_signal_handler(error: BaseException) -> bool:
    """Whether an installed signal handler raised `error`, in the middle of something that is not to blame for it."""
    handlers = _handlers()
    traceback: TracebackType | None = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code in handlers:
            return True
        traceback = traceback.tb_next
    return False


def _handlers() -> set[CodeType]:
    """The code of the signal handlers that are installed now."""
    codes = (_code(signal.getsignal(number)) for number in signal.valid_signals())
    return {code for code in codes if code is not None}


def _code(handler: Any) -> CodeType | None:
    handler = getattr(handler, "func", handler)  # of a functools.partial
    code = getattr(handler, "__code__", None) or getattr(type(handler).__call__, "__code__", None)
    return code if isinstance(code, CodeType) else None
