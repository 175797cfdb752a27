"""Calls that their caller gives up: the ranks leave them where they wait, and the group can be used again."""

import asyncio
import threading

import pytest

from local_group import DEADLINE_S
from rlinf.scheduler import Worker
from rlinf_scheduler.errors import CallCancelled, WorkerError
from waits import wait_until


class Waiter(Worker):
    def __init__(self):
        super().__init__()
        self.inside, self.gate, self.left = threading.Event(), threading.Event(), []
        self.ran = 0

    def note(self, value):
        self.ran += 1
        return value

    def wait_for_mail(self):
        self.inside.set()
        try:
            self.recv("calc", 1 - self.rank)
        except asyncio.CancelledError:
            self.left.append("mail")
            raise

    def wait_for_mail_with_a_handle(self):
        handle = self.recv("calc", 1 - self.rank, async_op=True)
        self.inside.set()
        handle.wait()

    def one_fails_and_the_other_waits_for_it(self):
        if self.rank == 1:
            raise ValueError("rank 1 cannot")
        return self.recv("calc", 1)

    def clean_up_by_waiting(self):
        try:
            self.inside.set()
            self.recv("calc", 1 - self.rank)
        finally:
            self.send("bye", "calc", self.rank)
            self.left.append(self.recv("calc", self.rank, timeout_s=DEADLINE_S))

    def compute(self):
        self.inside.set()
        while not self.cancelled:
            self.gate.wait(0.001)
        return "stopped by itself"

    def hold(self):
        self.inside.set()
        self.gate.wait(DEADLINE_S)
        return "done"

    async def sleep(self):
        self.inside.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.left.append("sleep")

    async def wait_in_a_thread(self):
        await asyncio.to_thread(self.wait_for_mail)


@pytest.fixture
def group(job):
    return job.launch(Waiter, 2)


def begun(group):
    for worker in group.workers:
        assert worker.inside.wait(DEADLINE_S)


@pytest.mark.parametrize(
    "method", ["wait_for_mail", "wait_for_mail_with_a_handle", "sleep", "wait_in_a_thread"]
)
def test_a_call_that_waits_ends_on_all_ranks_and_the_group_goes_on(group, method):
    call = getattr(group, method)()
    begun(group)
    call.cancel()
    with pytest.raises(CallCancelled, match=rf"calc\.{method}\(\) was cancelled"):
        call.wait(DEADLINE_S)
    ends = call.results(return_exceptions=True, timeout_s=DEADLINE_S)
    assert [(type(end), end.rank) for end in ends] == [(CallCancelled, 0), (CallCancelled, 1)]
    assert group.note(5).wait(DEADLINE_S) == [5, 5]


def test_after_one_rank_failed_the_others_can_be_freed(group):
    call = group.one_fails_and_the_other_waits_for_it()
    with pytest.raises(WorkerError, match="rank 1 cannot"):
        call.wait(DEADLINE_S)
    call.cancel()
    first, second = call.results(return_exceptions=True, timeout_s=DEADLINE_S)
    assert type(first) is CallCancelled
    assert "rank 1 cannot" in str(second)
    with pytest.raises(WorkerError, match="rank 1 cannot"):
        call.wait(DEADLINE_S)
    assert group.note(5).wait(DEADLINE_S) == [5, 5]


def test_what_cleans_up_may_wait(group):
    call = group.clean_up_by_waiting()
    begun(group)
    call.cancel()
    call.results(return_exceptions=True, timeout_s=DEADLINE_S)
    assert [worker.left for worker in group.workers] == [["bye"], ["bye"]]


def test_a_call_that_stands_in_line_is_never_run(group):
    held = group.hold()
    begun(group)
    queued = group.note(1)
    queued.cancel()
    ends = queued.results(return_exceptions=True, timeout_s=DEADLINE_S)
    assert [type(end) for end in ends] == [CallCancelled] * 2
    for worker in group.workers:
        worker.gate.set()
    assert held.wait(DEADLINE_S) == ["done", "done"]
    assert group.note(2).wait(DEADLINE_S) == [2, 2]
    assert [worker.ran for worker in group.workers] == [1, 1]


def test_a_call_that_computes_can_look_whether_it_is_cancelled(group):
    call = group.compute()
    begun(group)
    assert not group.workers[0].cancelled
    call.cancel()
    assert call.results(return_exceptions=True, timeout_s=DEADLINE_S) == ["stopped by itself"] * 2


def test_a_call_that_is_over_cannot_be_cancelled(group):
    call = group.note(3)
    assert call.wait(DEADLINE_S) == [3, 3]
    call.cancel()
    assert call.wait(DEADLINE_S) == [3, 3]
    wait_until(lambda: not group.loops[0]._jobs)


def test_a_cancellation_at_any_moment_leaves_nothing_behind(group):
    for round_number in range(150):
        call = group.note(round_number) if round_number % 2 else group.wait_for_mail()
        threading.Event().wait((round_number % 10) * 1e-4)
        call.cancel()
        call.results(return_exceptions=True, timeout_s=DEADLINE_S)
    assert group.note(7).wait(DEADLINE_S) == [7, 7]
    wait_until(lambda: not any(loop._jobs for loop in group.loops))
