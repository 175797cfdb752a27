"""What is pressed on the keyboard while a command shows something that moves."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def pressed_keys() -> Iterator[Keys]:
    """A block in which each key is there as soon as it is pressed; nothing is echoed. Ctrl-C interrupts as ever."""
    descriptor = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else -1
    if descriptor < 0:
        yield Keys(-1)
        return
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield Keys(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


class Keys:
    """The keys that are pressed; none ever where the input is no terminal.

    Args:
        descriptor: the terminal's; -1 for none.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def quits(self, within_s: float) -> bool:
        """Wait for so many seconds; whether `q` is pressed meanwhile, or the terminal goes away."""
        until = time.monotonic() + within_s
        while True:
            left_s = max(0.0, until - time.monotonic())
            watched = [self._descriptor] if self._descriptor >= 0 else []
            if not select.select(watched, [], [], left_s)[0]:
                return False
            if os.read(self._descriptor, 64)[:1] in (b"q", b"Q", b""):
                return True
