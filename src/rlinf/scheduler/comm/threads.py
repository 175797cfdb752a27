"""Threads that may be started anywhere, on the I/O thread too."""

from __future__ import annotations

import _thread
from collections.abc import Callable
from typing import Any


def run_beside(function: Callable[..., object], *args: Any) -> None:
    """Run `function(*args)` in a thread of its own, which the end of the process does not wait for.

    Not by `threading`, whose own locks a user's thread may hold while a signal handler of its waits for the I/O thread.
    """
    _thread.start_new_thread(function, args)
