"""Waiting for what no event tells."""

import threading
import time

DEADLINE_S = 60.0


def wait_until(condition):
    """Return once the condition holds; it must in time."""
    deadline = time.monotonic() + DEADLINE_S
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline
        pause.wait(0.002)
