"""What all processes of a job on one machine have in shared memory together."""

import multiprocessing
import os
import signal
import time

import numpy as np
import pytest

import arena_peers
from rlinf_scheduler.comm.shm import arena as arenas
from rlinf_scheduler.comm.shm.arena import Arena, Trimmer
from rlinf_scheduler.comm.shm.ledger import PREFIX, Ledger

DEADLINE_S = 60.0
MIB = 1 << 20


@pytest.fixture
def new_ledger(tmp_path):
    ledgers = []

    def make(limit_bytes=100, job="job"):
        ledgers.append(Ledger(tmp_path, job, limit_bytes, time.monotonic))
        return ledgers[-1]

    yield make
    for ledger in ledgers:
        ledger.close()


def files(directory):
    return [path.name for path in directory.iterdir()]


def test_all_together_take_no_more_than_the_limit(new_ledger):
    one, other = new_ledger(), new_ledger()
    assert one.charge(60)
    assert not other.charge(41)
    assert other.charge(40)
    assert not one.charge(1)
    other.charge(-10)
    assert one.charge(10)


def test_jobs_have_limits_of_their_own(new_ledger):
    assert new_ledger(job="a").charge(100)
    assert new_ledger(job="b").charge(100)


def test_the_last_one_removes_the_file(new_ledger, tmp_path):
    one, other = new_ledger(), new_ledger()
    one.close()
    assert files(tmp_path) == [PREFIX + "job"]
    other.close()
    assert files(tmp_path) == []
    one.close()
    assert one.charge(1000)  # nobody asks any more


def test_what_a_process_took_that_closed_is_free(new_ledger):
    one, other = new_ledger(), new_ledger()
    assert one.charge(100)
    one.close()
    assert other.charge(100)


def _take(pipe, directory, size_bytes):
    ledger = Ledger(directory, "job", 100, time.monotonic)
    pipe.send(ledger.charge(size_bytes))
    pipe.recv()


@pytest.fixture
def taker(tmp_path):
    """Starts processes that take so many bytes, and live on."""
    context = multiprocessing.get_context("forkserver")
    started = []

    def start(size_bytes):
        ours, theirs = context.Pipe()
        process = context.Process(target=_take, args=(theirs, tmp_path, size_bytes), daemon=True)
        process.start()
        started.append((process, ours))
        assert ours.poll(DEADLINE_S)
        return process, ours.recv()

    yield start
    for process, pipe in started:
        pipe.close()
        process.kill()
        process.join(DEADLINE_S)


def test_what_a_killed_process_took_is_free(new_ledger, taker):
    ledger = new_ledger()
    process, took = taker(80)
    assert took
    assert not ledger.charge(50)
    os.kill(process.pid, signal.SIGSTOP)
    assert not ledger.charge(50)  # it lives
    process.kill()
    process.join(DEADLINE_S)
    assert ledger.charge(50)


def test_what_others_take_meanwhile_is_looked_through_for_the_dead(new_ledger):
    ledger = new_ledger()
    with arena_peers.changing(1 << 12) as memory:
        ledger._taken = memory.view(np.int64)
        deadline = time.monotonic() + 0.3
        while time.monotonic() < deadline:
            ledger._forget_dead()


def test_after_all_were_killed_the_next_process_of_any_job_removes_the_file(taker, new_ledger, tmp_path):
    processes = [taker(10)[0] for _ in range(2)]
    for process in processes:
        process.kill()
        process.join(DEADLINE_S)
    assert files(tmp_path) == [PREFIX + "job"]
    new_ledger(job="another")
    assert files(tmp_path) == [PREFIX + "another"]


def test_a_file_that_is_removed_while_it_is_opened_is_made_anew(new_ledger, tmp_path, monkeypatch):
    first = new_ledger()
    opened = os.open

    def open_and_lose(path, *args):
        fd = opened(path, *args)
        monkeypatch.undo()
        first.close()
        return fd

    monkeypatch.setattr(os, "open", open_and_lose)
    second, third = new_ledger(), new_ledger()
    assert files(tmp_path) == [PREFIX + "job"]
    assert second.charge(60)
    assert not third.charge(60)


def test_an_arena_says_which_of_its_two_limits_leaves_no_room(new_ledger):
    homes = [arena_peers.Inline() for _ in range(2)]
    one, other = (Arena(arena_peers.OWNER, 8 * MIB, home, new_ledger(10 * MIB)) for home in homes)
    kept = [one.allocate(MIB) for _ in range(7)]
    assert one.use_beside(MIB).startswith("7 of 8 MiB of this process's shared memory")
    kept += [other.allocate(MIB) for _ in range(2)]
    assert other.use_beside(MIB) == (
        "9 of 10 MiB of shared memory that all processes of the job may have on this machine are in use, "
        "2 MiB by this one"
    )
    one.close()
    other.close()


def test_two_arenas_together_stay_within_the_limit_of_the_machine(new_ledger):
    homes = [arena_peers.Inline() for _ in range(2)]
    one, other = (Arena(arena_peers.OWNER, 8 * MIB, home, new_ledger(10 * MIB)) for home in homes)
    kept = [one.allocate(MIB) for _ in range(8)]
    assert None not in kept
    assert [block is not None for block in [other.allocate(MIB) for _ in range(1)]] == [True]
    more = [other.allocate(MIB) for _ in range(3)]
    assert more[2] is None
    # What is free only is given back for others when its owner needs room or has nothing to do.
    kept.clear()
    while one.trim():
        pass
    assert one.is_short()
    assert not one.is_short()
    more.append(other.allocate(MIB))
    assert more[-1] is not None
    one.close()
    other.close()


def test_what_is_refused_to_one_process_another_does_not_keep_warm(new_ledger, monkeypatch):
    monkeypatch.setattr(arenas, "LOOK_AFTER_S", 0.01)
    homes = [arena_peers.Threaded() for _ in range(2)]
    one, other = (Arena(arena_peers.OWNER, 8 * MIB, home, new_ledger(10 * MIB)) for home in homes)
    try:
        trimmer = Trimmer(homes[0], one)
        kept = [one.allocate(MIB, wait_s=DEADLINE_S) for _ in range(8)]
        assert None not in kept
        used = kept.pop()
        used.memory[:] = 7
        kept.clear()  # seven are free, and warm
        homes[0].submit(trimmer.begin)
        blocks = [other.allocate(MIB, wait_s=DEADLINE_S) for _ in range(8)]
        assert None not in blocks
        assert (used.memory == 7).all()
        assert one.touched_bytes < 2 * MIB
    finally:
        for home, arena in zip(homes, (one, other), strict=True):
            home.run(arena.close)
            home.close()


def test_as_long_as_nobody_is_refused_free_blocks_stay_warm(new_ledger):
    home = arena_peers.Inline()
    one, other = (Arena(arena_peers.OWNER, 8 * MIB, home, new_ledger(16 * MIB)) for _ in range(2))
    for size_bytes in (MIB, 4 * MIB):
        places = {one.allocate(size_bytes).memory.ctypes.data for _ in range(100)}
        assert len(places) == 1
    kept = other.allocate(8 * MIB)
    assert kept is not None
    assert not one.is_short()
    # Beyond its own limit, an arena asks nobody for anything.
    assert other.allocate(8 * MIB) is None
    assert not one.is_short()
    one.close()
    other.close()
