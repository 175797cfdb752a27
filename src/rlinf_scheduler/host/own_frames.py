"""Tracebacks of what a user's code raised begin in that code, not in what called it."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

E = TypeVar("E", bound=BaseException)

_FOLDER = f"{Path(__file__).parent}/"


def without_own_frames(error: E) -> E:
    """The error, its traceback without the first frames, which are of this package; as it is if all are."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code.co_filename.startswith(_FOLDER):
        traceback = traceback.tb_next
    return error if traceback is None else error.with_traceback(traceback)
