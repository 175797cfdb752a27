"""How long the steps of I/O threads take, in processor time: what others on the machine do is not counted."""

import gc
import time

import pytest

from rlinf_scheduler.comm import loop

_run_guarded = loop.run_guarded


class Steps:
    """The longest step since the last `forget`, of all I/O threads of this process.

    Attributes:
        longest_s: its processor time, in seconds.
        stood_s: the longest time that a step took on the clock, in seconds.
        culprit: what took so long.
    """

    def __init__(self):
        self.forget()

    def forget(self):
        self.longest_s = self.stood_s = 0.0
        self.culprit = None

    def run(self, callback, *args):
        began, began_at = time.thread_time(), time.monotonic()
        _run_guarded(callback, *args)
        took_s, stood_s = time.thread_time() - began, time.monotonic() - began_at
        self.stood_s = max(self.stood_s, stood_s)
        if took_s > self.longest_s:
            self.longest_s, self.culprit = took_s, callback


@pytest.fixture
def io_steps(monkeypatch):
    """Measures what the I/O threads of this process do."""
    steps = Steps()
    monkeypatch.setattr(loop, "run_guarded", steps.run)
    gc.collect()
    gc.disable()  # whose thread it happens to be that collects what all have left is no step's fault
    yield steps
    gc.enable()
