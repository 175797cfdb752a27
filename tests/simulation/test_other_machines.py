"""A seed tells the same story on any machine, at any time: clocks, limits, process ids and paths change nothing."""

from __future__ import annotations

import os
import resource
import threading
import time
import traceback
from random import Random

import pytest

from rlinf_scheduler.channel import spec
from rlinf_scheduler.comm import waits
from rlinf_scheduler.observe.timekeeping import TIMES
from simulator import simulate

CLOCKS = [
    (time, "monotonic"),
    (time, "perf_counter"),
    (time, "time"),
    (waits, "now"),
    (TIMES, "now"),
    (time, "monotonic_ns"),
    (time, "perf_counter_ns"),
    (time, "time_ns"),
]


class OtherMachine:
    """What this thread hears of another machine, with clocks that jump, also back; other threads go on."""

    def __init__(self, monkeypatch):
        self._monkeypatch = monkeypatch
        self._teller = threading.get_ident()
        self._draw = Random(0)

    def replace(self, owner, name, answer):
        real = getattr(owner, name)

        def ask(*args):
            if threading.get_ident() != self._teller:
                return real(*args)
            return answer(*args)

        self._monkeypatch.setattr(owner, name, ask)

    def move(self, pid):
        for owner, name in CLOCKS:
            is_whole = name.endswith("_ns")
            self.replace(owner, name, lambda is_whole=is_whole: self._jump(is_whole))
        self.replace(os, "getpid", lambda: pid)
        self.replace(resource, "getrlimit", lambda _which: (20, 20))
        self.replace(spec, "memory_bytes", lambda: 1 << 30)
        formatted = traceback.format_exception
        self.replace(
            traceback, "format_exception", lambda error: [f"in {'a/long/way/' * 9}", *formatted(error)]
        )

    def _jump(self, is_whole):
        at_s = self._draw.choice((0, 1e-3, 1, 1e3, 1e6, 1e9)) * self._draw.random()
        return int(at_s * 1e9) if is_whole else at_s


# Stories that are others once a digit of a process id, a limit, a clock or the path of the sources has reached them.
@pytest.mark.parametrize(
    ("pid", "seeds"), [(321, (157, 171, 211, 213, 269)), (4_000_000, (2, 5, 12, 40, 41))]
)
def test_the_same_story_is_told_on_another_machine_whose_clocks_jump(pid, seeds, monkeypatch):
    here = [simulate(seed).digest for seed in seeds]
    OtherMachine(monkeypatch).move(pid)
    assert [simulate(seed).digest for seed in seeds] == here
