"""Signals in the middle of fetch and publish: no half version, no handle and no name that cannot be used again."""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from alarms import Interrupted
from rlinf_scheduler.comm.codec import copying
from rlinf_scheduler.errors import NameTaken, WeightsError, WeightsMismatch
from rlinf_scheduler.weights.fetch import FetchedWeights
from weights_job import DEADLINE_S, parked, wait_until
from weights_peers import numbers_in, state

A_DAY_S = 86_400.0

pytestmark = pytest.mark.interrupted


@pytest.mark.parametrize("machine", ["here", "there"])
def test_an_interrupted_fetch_leaves_no_half_version_and_can_be_waited_for_again(job, alarms, machine):
    actor, rollout = job.member("actor:0"), job.member("rollout:0", machine)
    alarm, into = alarms(1, max_delay_s=0.002), state(-1)
    for version in range(200):
        actor.publish("policy", state(version), version)
        handle = rollout.fetch("policy", into, timeout_s=DEADLINE_S)
        if not alarm.interrupt(handle.wait):
            assert len(numbers_in(into)) == 1
        assert handle.wait() == version
        assert numbers_in(into) == {version}
    assert alarm.num_raised > 20


def test_a_second_interruption_while_a_version_is_copied_leaves_a_handle_that_copies_it_again(
    job, monkeypatch
):
    actor, rollout = job.member("actor:0"), job.member("rollout:0")
    actor.publish("policy", state(1), 1)
    into, num_copies = state(-1), 0
    copy = copying._copy

    def interrupted(copies):
        nonlocal num_copies
        if threading.current_thread() is not threading.main_thread():  # the version is still on its way here
            copy(copies)
            return
        for each in copies:
            num_copies += 1
            copy([each])
            if num_copies in (3, 5):
                raise Interrupted

    monkeypatch.setattr(copying, "_copy", interrupted)
    handle = rollout.fetch("policy", into, timeout_s=DEADLINE_S)
    with pytest.raises(Interrupted):
        handle.wait()
    assert len(numbers_in(into)) == 2
    assert handle.wait() == 1
    assert numbers_in(into) == {1}


@pytest.mark.parametrize("fits", [True, False])
def test_an_interruption_after_a_version_was_written_leaves_a_handle_that_ends_as_it_did(
    job, monkeypatch, fits
):
    actor, rollout = job.member("actor:0"), job.member("rollout:0")
    actor.publish("policy", state(1), 1)
    into, write, num_written = state(-1), FetchedWeights.write, 0

    def interrupted(delivery, writer):
        nonlocal num_written
        num_written += 1
        try:
            return write(delivery, writer)
        finally:
            if num_written == 1:
                raise Interrupted

    monkeypatch.setattr(FetchedWeights, "write", interrupted)
    handle = rollout.fetch("policy", into, timeout_s=DEADLINE_S)
    assert handle.settled.exception(DEADLINE_S) is None
    if not fits:
        into["layer.0"].flags.writeable = False
    with pytest.raises(Interrupted):
        handle.wait()
    if fits:
        assert handle.wait() == 1
    else:
        with pytest.raises(WeightsMismatch, match="cannot be written to"):
            handle.wait()
    assert num_written == 2


def test_an_interrupted_publish_arrives_as_a_whole_or_not_at_all(job, alarms):
    actor, rollout = job.member("actor:0"), job.member("rollout:0")
    alarm, into, newest = alarms(2, max_delay_s=0.001), state(-1), 0
    actor.publish("policy", state(0), 0)
    for version in range(1, 200):
        weights = state(version)
        published = alarm.interrupt(
            lambda weights=weights, version=version: actor.publish("policy", weights, version)
        )
        there = rollout.fetch("policy", into, timeout_s=DEADLINE_S).wait()
        assert numbers_in(into) == {there}
        # What was interrupted may still come, after it was asked for first.
        assert there == version if published else newest <= there <= version
        newest = there
    actor.publish("policy", state(1000), 1000)
    assert rollout.fetch("policy", into, timeout_s=DEADLINE_S).wait() == 1000
    assert alarm.num_raised > 20


def test_a_publisher_that_was_interrupted_while_it_took_its_name_has_it(job, monkeypatch):
    actor, other, rollout = job.member("actor:0"), job.member("actor:1"), job.member("rollout:0")
    begin_to_put = actor._begin_to_put

    def interrupted(*args):
        begin_to_put(*args).result(DEADLINE_S)
        raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(actor, "_begin_to_put", interrupted)
        with pytest.raises(Interrupted):
            actor.publish("policy", state(1), 1)
    with pytest.raises(NameTaken):
        other.publish("policy", state(1), 1)
    actor.publish("policy", state(2), 2)
    assert rollout.fetch("policy", state(-1), timeout_s=DEADLINE_S).wait() == 2


def test_a_signal_handler_may_publish_while_another_version_is_published(job):
    actor, rollout = job.member("actor:0"), job.member("rollout:0")
    in_handler = [0]
    for name in ("policy", "reference"):
        actor.publish(name, state(0, elements=100), 0)

    def publish(_number, _frame):
        version = len(in_handler)
        in_handler.append(version)
        actor.publish("reference", state(version, num_tensors=1, elements=100), version)
        signal.setitimer(signal.ITIMER_REAL, 0.001)

    before = signal.signal(signal.SIGALRM, publish)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        for version in range(1, 200):
            actor.publish("policy", state(version), version)
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)  # its handler sets the timer anew
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(in_handler) > 5
    assert rollout.fetch("policy", state(-1), timeout_s=DEADLINE_S).wait() == 199


def test_threads_that_publish_at_once_leave_the_newest_version(job):
    actor, rollout = job.member("actor:0"), job.member("rollout:0")
    refused = []

    def publish(first):
        for version in range(first, 60, 3):
            try:
                actor.publish("policy", state(version), version)
            except WeightsError as error:
                refused.append(str(error))

    threads = [threading.Thread(target=publish, args=(first,)) for first in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    into = state(-1)
    assert rollout.fetch("policy", into, timeout_s=DEADLINE_S).wait() == 59
    assert numbers_in(into) == {59}
    assert all("versions grow" in text for text in refused)


def test_large_weights_are_written_once_by_the_publishing_thread_and_received_where_they_are_to_lie(
    job, monkeypatch
):
    actor, rollout = job.member("actor:0"), job.member("rollout:0", "there")
    writers = []
    for name in ("actor:0", "rollout:0"):
        payloads = job.messengers[name].payloads
        pack = payloads.pack

        def note(*args, pack=pack, **options):
            writers.append(threading.current_thread().name)
            return pack(*args, **options)

        monkeypatch.setattr(payloads, "pack", note)
    for version in range(3):
        actor.publish("policy", state(version), version)
        rollout.fetch("policy", state(-1), timeout_s=DEADLINE_S).wait()
    assert writers == ["MainThread"] * 3


def test_a_fetch_that_is_interrupted_while_it_waits_leaves_nothing_at_its_publisher(job, alarms):
    actor, rollout = job.member("actor:0"), job.member("rollout:0")
    actor.publish("policy", state(1), 1)
    alarm = alarms(5, max_delay_s=0.003)
    for _ in range(50):
        alarm.interrupt(
            lambda: rollout.fetch("policy", state(-1, elements=10), min_version=2, timeout_s=A_DAY_S).wait()
        )
    wait_until(lambda: not parked(job), job.driver)
    actor.publish("policy", state(2), 2)
    assert rollout.fetch("policy", state(-1), min_version=2, timeout_s=DEADLINE_S).wait() == 2


def test_a_signal_handler_fetches_from_elsewhere_while_its_thread_is_handing_work_to_an_executor(
    job, monkeypatch
):
    actor, rollout = job.member("actor:0"), job.member("rollout:0", "there")
    actor.publish("policy", state(1), 1)
    fetched = []

    def fetch(_number, _frame):
        fetched.append(rollout.fetch("policy", state(-1), timeout_s=DEADLINE_S).wait(DEADLINE_S))

    start = threading.Thread.start

    def signal_and_start(thread):
        monkeypatch.setattr(threading.Thread, "start", start)
        os.kill(os.getpid(), signal.SIGUSR1)
        start(thread)

    before = signal.signal(signal.SIGUSR1, fetch)
    try:
        with ThreadPoolExecutor(1) as executor:
            # `submit` starts its thread while it holds a lock that all executors share.
            monkeypatch.setattr(threading.Thread, "start", signal_and_start)
            executor.submit(int)
        assert fetched == [1]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_an_interrupted_stream_goes_on_behind_the_tensor_that_it_was_about_to_give(job, alarms):
    actor, rollout = job.member("actor:0"), job.member("rollout:0")
    actor.publish("policy", state(3), 3)
    alarm = alarms(1, max_delay_s=0.001)
    for _ in range(200):
        stream, got = rollout.stream("policy", bucket_bytes=500_000, timeout_s=DEADLINE_S), {}
        alarm.interrupt(lambda: got.update(stream))  # noqa: B023 - it is called here
        got.update(stream)
        assert numbers_in(got) == {3}
        assert len(got) >= len(state(3)) - 1
    assert alarm.num_raised > 20
