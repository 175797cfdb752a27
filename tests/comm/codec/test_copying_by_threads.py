"""Copies that several threads share are whole, wait for nobody who has not begun, and keep nothing."""

import queue
import sys
import threading
import time
import weakref

import numpy as np
import pytest

from rlinf_scheduler.comm.codec import copying
from rlinf_scheduler.comm.codec.copying import BATCH_BYTES, PARALLEL_BYTES, copy_all
from rlinf_scheduler.errors import CommTimeout

DEADLINE_S = 60.0


@pytest.fixture
def four_cores(monkeypatch):
    monkeypatch.setattr(copying.os, "sched_getaffinity", lambda _pid: set(range(4)))


@pytest.fixture
def no_helpers(monkeypatch):
    """Threads that are to help get no processor until the test ends, and end with it."""
    threads, ends = set(), threading.Event()

    def stand(_jobs):
        threads.add(threading.get_ident())
        ends.wait(DEADLINE_S)

    monkeypatch.setattr(copying, "_jobs", {})
    monkeypatch.setattr(copying._Jobs, "_run", stand)
    yield
    ends.set()
    while threads & sys._current_frames().keys():
        time.sleep(0)


def arrays(sizes):
    """Random sources of these sizes, and targets with a byte of 0 at either end of each."""
    random = np.random.default_rng(7)
    sources = [random.integers(1, 256, size, np.uint8) for size in sizes]
    return sources, [np.zeros(size + 2, np.uint8) for size in sizes]


def copied(sources, targets):
    copy_all([(target[1:-1], source) for source, target in zip(sources, targets, strict=True)])
    return all(
        np.array_equal(target[1:-1], source) and target[0] == target[-1] == 0
        for source, target in zip(sources, targets, strict=True)
    )


@pytest.mark.parametrize(
    "sizes",
    [
        [],
        [0],
        [1],
        [PARALLEL_BYTES - 1],
        [PARALLEL_BYTES],
        [PARALLEL_BYTES + 4097],
        [3 * PARALLEL_BYTES],
        [BATCH_BYTES - 1, 2 * BATCH_BYTES + 1, 0, 3],
        [10_000] * 1000,
    ],
    ids=lambda sizes: f"{len(sizes)} of {sum(sizes)}",
)
def test_all_arrives_wherever_it_is_cut(sizes, four_cores):
    assert copied(*arrays(sizes))


@pytest.mark.parametrize(
    "sizes",
    [[BATCH_BYTES - 1, 2 * BATCH_BYTES - 1], [100, BATCH_BYTES] * 4, [3 * PARALLEL_BYTES], [1000] * 10_000],
)
def test_what_is_shared_is_cut_so_that_no_thread_has_most_of_it(sizes):
    sources, targets = arrays(sizes)
    batches = copying._batches(
        [(target[1:-1], source) for target, source in zip(targets, sources, strict=True)]
    )
    shares = [sum(len(source) for _, source in batch) for batch in batches]
    assert sum(shares) == sum(sizes)
    assert 0 < max(shares) < 2 * BATCH_BYTES


def test_threads_that_get_no_processor_hold_up_nobody(four_cores, no_helpers):
    assert copied(*arrays([PARALLEL_BYTES, 100]))


def test_what_a_thread_cannot_copy_is_raised_where_it_was_asked_for(four_cores):
    source, target = np.zeros(PARALLEL_BYTES, np.uint8), np.zeros(PARALLEL_BYTES, np.uint8)
    target.setflags(write=False)
    with pytest.raises(ValueError, match="read-only"):
        copy_all([(target, source)])


def test_nothing_keeps_the_memory_afterwards(four_cores):
    (source,), (target,) = arrays([PARALLEL_BYTES])
    refs = weakref.ref(source), weakref.ref(target)
    copy_all([(target[1:-1], source)])
    del source, target
    assert [ref() for ref in refs] == [None, None]


def test_a_thread_that_does_not_end_its_batch_is_waited_for_until_a_deadline(four_cores, monkeypatch):
    (source,), (target,) = arrays([PARALLEL_BYTES])
    caller, goes_on, begun, copy = threading.get_ident(), threading.Event(), threading.Event(), copying._copy

    def stuck(copies):
        if threading.get_ident() == caller:
            begun.wait(DEADLINE_S)
        else:
            begun.set()
            goes_on.wait(DEADLINE_S)
        copy(copies)

    monkeypatch.setattr(copying, "_copy", stuck)
    monkeypatch.setattr(copying, "BATCH_TIMEOUT_S", 0.01)
    with pytest.raises(
        CommTimeout, match="copy of large memory with 'threads of this process that copy' not done"
    ):
        copy_all([(target[1:-1], source)])
    goes_on.set()


def test_a_thread_that_was_stopped_with_its_process_is_not_late():
    """The first wait after a stop is over at once, however short the copy would have been."""

    class JustContinued:
        def __init__(self):
            self.answers = [queue.Empty(), ValueError("of the copy")]

        def get(self, timeout):
            assert timeout < copying.BATCH_TIMEOUT_S / 10
            answer = self.answers.pop(0)
            if isinstance(answer, queue.Empty):
                raise answer
            return answer

    assert isinstance(copying._told(JustContinued()), ValueError)
