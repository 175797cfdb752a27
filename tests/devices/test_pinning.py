"""What arrives in shared memory is pinned, and a device never sees pages that are not those of the object."""

import gc
import logging
import multiprocessing
import random
import sys
import threading

import numpy as np
import pytest

from effort import tries
from pinned_home import Home, passed
from rlinf.testing.device_memory import PretendDevice
from rlinf.testing.pinned_pages import PAGE_BYTES
from rlinf_scheduler.comm.shm.holders import HolderTable
from rlinf_scheduler.devices.driver import DeviceUnusable
from rlinf_scheduler.devices.pinning import PinnedBlocks
from rlinf_scheduler.errors import ConfigError
from rlinf_scheduler.session import Session
from waits import wait_until

DEADLINE_S = 30.0
MIB = 1 << 20
DEVICE = "GPU-one"


@pytest.fixture
def home(new_messenger):
    def make(device=None, limit_bytes=64 * MIB, arena_bytes=16 * MIB):
        messenger = new_messenger("actor:0", arena_limit_bytes=arena_bytes)
        return Home(messenger, device or PretendDevice(DEVICE), limit_bytes)

    return make


def tell_a_story(home, seed):
    """Items of many sizes come and go, and pages are given back in between; how many the device saw as they are."""
    draw, kept, num_seen = random.Random(seed), [], 0
    for number in range(60):
        array = home.passed(draw.choice((1, 1, 2, 3)) * MIB + draw.randrange(3) * PAGE_BYTES, number)
        num_seen += home.seen(array)
        kept.append(array)
        del array
        while len(kept) > draw.randrange(4):
            kept.pop(draw.randrange(len(kept)))
        home.settled()
        if draw.random() < 0.2:
            home.trim()
    return num_seen


def test_a_device_sees_what_came_however_often_pages_are_given_back(home):
    one = home()
    assert tell_a_story(one, 1) > 55


def test_an_owner_that_gives_pinned_pages_back_is_found_by_that(home, monkeypatch):
    monkeypatch.setattr(HolderTable, "is_pinned", lambda _table, _index: False)
    assert tell_a_story(home(), 1) < 55


def test_a_block_is_pinned_once_for_all_that_comes_to_lie_there(home):
    one = home()
    pinned = []
    pin = one.device.pin
    one.device.pin = lambda *what: pinned.append(what) or pin(*what)
    for number in range(20):
        assert one.seen(one.passed(MIB, number % 256))
        one.settled()
        one.messenger.payloads.see_released_now()
    assert len(pinned) <= 2
    assert one.passed(PAGE_BYTES, 1)[0] == 1
    assert len(pinned) <= 2, "small ones are not"


def test_an_owner_that_needs_its_memory_gets_it_back(home):
    one = home(arena_bytes=8 * MIB)
    kept = [one.passed(2 * MIB, number) for number in range(3)]
    assert all(map(one.seen, kept))
    del kept
    one.settled()
    array = one.passed(7 * MIB, 9)
    assert array[-1] == 9
    assert not one.device.pinned or one.seen(array)


def test_what_is_only_pinned_goes_back_when_its_owner_is_idle(home):
    one = home()
    assert one.seen(one.passed(2 * MIB, 1))
    one.settled()
    one.trim()
    assert one.payloads.arena.keeps_pinned
    assert one.device.pinned
    one.settled()
    assert not one.device.pinned, "asked for, and not in use"
    one.trim()
    assert not one.payloads.arena.keeps_pinned
    assert one.payloads.arena.touched_bytes < MIB


class SlowDevice(PretendDevice):
    """A device that still copies what nobody waits for."""

    def __init__(self):
        super().__init__(DEVICE)
        self.asked, self.done = threading.Event(), threading.Event()

    def settle(self):
        self.asked.set()
        assert self.done.wait(DEADLINE_S)


def test_a_block_is_released_when_the_device_has_done_with_it(home):
    one = home(SlowDevice())
    assert one.seen(one.passed(2 * MIB, 1))
    assert one.device.asked.wait(DEADLINE_S), "whether it reads what was just dropped"
    one.trim()
    assert not one.payloads.arena.unused()
    assert one.seen(one.passed(3 * MIB, 2)), "without waiting for that"
    assert not one.device.done.is_set()
    one.device.done.set()
    one.settled()
    one.trim()
    assert one.payloads.arena.unused()


class RefusingDevice(PretendDevice):
    def pin(self, address, size_bytes):
        raise DeviceUnusable("cuMemHostRegister says CUDA_ERROR_OUT_OF_MEMORY (2)")


def told(caplog):
    return [record.getMessage() for record in caplog.records if "is not pinned" in record.getMessage()]


def test_what_cannot_be_pinned_comes_all_the_same_and_is_said_once(home, caplog):
    one = home(RefusingDevice(DEVICE))
    with caplog.at_level(logging.WARNING):
        for number in range(5):
            assert one.passed(MIB, number)[7] == number
    [message] = told(caplog)
    assert "copied to devices more slowly: cuMemHostRegister says CUDA_ERROR_OUT_OF_MEMORY" in message
    one.settled()
    one.trim()
    assert not one.payloads.arena.keeps_pinned


def test_no_more_is_pinned_than_may_be_and_what_is_idle_makes_room(home, caplog):
    one = home(limit_bytes=4 * MIB)
    with caplog.at_level(logging.WARNING):
        kept = [one.passed(MIB, number) for number in range(3)]
        assert [one.seen(array) for array in kept] == [True] * 3
        assert not one.seen(one.passed(2 * MIB, 8))
    [message] = told(caplog)
    assert "3 of 4 MiB are pinned and in use (RLINF_PINNED_MIB" in message
    kept.clear()
    one.settled()
    assert one.seen(one.passed(3 * MIB, 9))
    assert sum(pages.size_bytes for pages in one.device.pinned.values()) <= 4 * MIB


def test_who_leaves_the_job_unpins_what_is_not_in_use_and_the_rest_when_it_is_dropped(home):
    one = home()
    kept, dropped = one.passed(MIB, 1), one.passed(2 * MIB, 2)
    assert len(one.device.pinned) == 2
    del dropped
    gc.collect()
    one.messenger.close()
    wait_until(lambda: len(one.device.pinned) == 1)
    assert one.seen(kept)
    del kept
    gc.collect()
    wait_until(lambda: not one.device.pinned)


@pytest.mark.interrupted
def test_an_interruption_at_any_moment_leaves_nothing_held_or_pinned(home, alarms, monkeypatch):
    # What is raised in a finalizer would be kept, with all that its frames refer to.
    monkeypatch.setattr(sys, "unraisablehook", lambda _raised: None)
    one, interrupting = home(), alarms(7, 0.003)
    for number in range(tries(150)):
        if interrupting.interrupt(lambda number=number: one.passed((1 + number % 3) * MIB, number % 256)):
            assert one.seen(one.passed(MIB, number % 256))
    assert interrupting.num_raised > 20

    def is_idle():
        one.settled()
        one.trim()
        return one.payloads.arena.unused() and not one.device.pinned

    wait_until(is_idle)


def drop_in_child(pipe, one, kept):
    same = int(kept[0][5])
    kept.clear()
    gc.collect()
    pipe.send((same, len(one.blocks._uses)))


def test_a_forked_child_reads_what_its_parent_got_and_asks_no_device(home):
    one = home()
    kept = [one.passed(MIB, 7)]
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=drop_in_child, args=(theirs, one, kept), daemon=True)
    process.start()
    assert ours.poll(DEADLINE_S)
    assert ours.recv() == (7, 0)
    process.join(DEADLINE_S)
    assert one.seen(kept[0])


def test_a_process_pins_what_it_is_told_to(monkeypatch, secret):
    monkeypatch.setenv("RLINF_PINNED_MIB", "64")
    with Session(secret, "actor:0") as session:
        assert isinstance(session.messenger.payloads.pin.__self__, PinnedBlocks)
        array = passed(session.messenger.payloads, np.full(MIB, 5, np.uint8))
        assert array[9] == 5, "without a device here, as it is"
    monkeypatch.setenv("RLINF_PINNED_MIB", "much")
    with pytest.raises(
        ConfigError, match="RLINF_PINNED_MIB is 'much'; it takes a whole number of MiB, 0 for no"
    ):
        Session(secret, "actor:0")
