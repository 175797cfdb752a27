"""When a channel's process gives memory back to the system."""

from __future__ import annotations

import threading
from pathlib import Path

from rlinf_scheduler.channel.outbox import PEAK_BYTES, SMALL_BYTES, TRIM_AFTER_S, Heap

DEADLINE_S = 60.0  # of the three times that it is trimmed the last is after 42 s
SMALL = 16 << 10


def anonymous_bytes(pid):
    """How much memory of its own a process has."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("RssAnon")]
    return int(line.split()[1]) << 10


class Clock:
    """Calls back when the test says so."""

    def __init__(self):
        self.due = []
        self.delays_s = []

    def call_later(self, delay_s, callback):
        self.delays_s.append(delay_s)
        self.due.append(callback)

    def ring(self):
        due, self.due = self.due, []
        for callback in due:
            callback()


def heap():
    clock, trimmed = Clock(), threading.Semaphore(0)
    return clock, trimmed, Heap(clock.call_later, trimmed.release)


def ring_until_it_is_left_alone(clock, trimmed):
    """How often it was trimmed."""
    num_trims = 0
    while clock.due:
        clock.ring()
        num_trims += trimmed.acquire(timeout=DEADLINE_S)
    return num_trims


def test_after_a_peak_the_heap_is_trimmed_and_later_again_for_what_was_still_on_its_way():
    clock, trimmed, kept = heap()
    for held in (PEAK_BYTES, PEAK_BYTES // 2, PEAK_BYTES // 4, 0, 0):
        kept.note(held)
    assert ring_until_it_is_left_alone(clock, trimmed) == len(TRIM_AFTER_S)
    assert clock.delays_s == list(TRIM_AFTER_S)
    kept.note(0)
    assert not clock.due


def test_what_is_left_of_a_peak_is_looked_after_until_it_is_small():
    clock, trimmed, kept = heap()
    left = 2 * PEAK_BYTES
    kept.note(left)
    while left >= SMALL_BYTES:
        left //= 4
        kept.note(left)
        assert ring_until_it_is_left_alone(clock, trimmed)
    kept.note(0)
    assert not clock.due


def test_small_ups_and_downs_are_left_alone():
    clock, _, kept = heap()
    for held in (PEAK_BYTES - 1, 0, PEAK_BYTES - 1, 0):
        kept.note(held)
    assert not clock.due


def test_a_channel_that_fills_again_meanwhile_keeps_its_memory():
    clock, trimmed, kept = heap()
    kept.note(PEAK_BYTES)
    kept.note(0)
    kept.note(PEAK_BYTES)
    clock.ring()
    assert not trimmed.acquire(blocking=False)
    kept.note(0)
    assert ring_until_it_is_left_alone(clock, trimmed)


def test_the_process_of_a_channel_is_small_again_after_many_small_items(sockets):
    holder, channel = sockets.start_server()
    before = anonymous_bytes(holder.pid)
    item = bytes(SMALL)
    for _ in range(2 * PEAK_BYTES // SMALL):
        channel.put(item, async_op=True)
    channel.put(item)
    assert anonymous_bytes(holder.pid) > before + PEAK_BYTES
    while channel.drain():
        pass
    deadline = threading.Event()
    timer = threading.Timer(DEADLINE_S, deadline.set)
    timer.start()
    while anonymous_bytes(holder.pid) > before + PEAK_BYTES // 2:
        channel.qsize()
        assert not deadline.is_set()
    timer.cancel()
    holder.kill()
