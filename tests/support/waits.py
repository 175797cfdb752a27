"""Waiting for what no event tells."""

import threading
import time

DEADLINE_S = 60.0


def seen(look, is_there):
    """What a look finds, once it is what is waited for; else what the last one found is told."""
    found = []

    def looks_right():
        found[:] = [look()]
        return is_there(found[0])

    try:
        wait_until(looks_right)
    except AssertionError as error:
        raise AssertionError(str(found[0])) from error
    return found[0]


def wait_until(condition):
    """Return once the condition holds; it must in time."""
    deadline = time.monotonic() + DEADLINE_S
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline
        pause.wait(0.002)
