"""Launching, failing and dying, with processes but without Ray."""

import importlib
import os
import queue
import signal
import sys
import threading
import types

import pytest
from ray_workers import (
    Dies,
    Forgetful,
    NeverReady,
    Probe,
    RaisesInInit,
)

import slow_errors
from alarms import alarms
from forked_job import ForkedProcess
from rlinf.scheduler import NodePlacementStrategy, PackedPlacementStrategy, Worker
from rlinf_scheduler.errors import (
    CodecError,
    ConfigError,
    DeviceMismatch,
    LaunchError,
    LaunchTimeout,
    WorkerDied,
)
from rlinf_scheduler.events import WorkerLost, WorkerStarted
from rlinf_scheduler.host import protocol
from rlinf_scheduler.worker import launch
from slow_errors import SlowError
from waits import DEADLINE_S, wait_until

__all__ = ["alarms"]


class Heard:
    """The ranks that were lost, in the order of the reports."""

    def __init__(self, job):
        self._events = queue.SimpleQueue()
        job.session.bus.subscribe(lambda event: isinstance(event, WorkerLost) and self._events.put(event))

    def next(self):
        event = self._events.get(timeout=60)
        return event.group, event.rank


@pytest.fixture
def pair(forked_job):
    return Probe.create_group().launch(forked_job, PackedPlacementStrategy(0, 1), name="pair")


def test_after_terminate_calls_say_so_and_the_name_is_free(forked_job, pair):
    pair.terminate()
    wait_until(lambda: forked_job.living == 0)
    with pytest.raises(WorkerDied, match="the group was terminated"):
        pair.add(1)
    again = Probe.create_group().launch(forked_job, PackedPlacementStrategy(0, 0), name="pair")
    assert again.add(1).wait(60) == [1]


def test_the_names_of_a_launch_that_failed_are_free_however_long_its_processes_take_to_end(
    forked_job, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setattr(ForkedProcess, "kill", lambda _process: None)
        with pytest.raises(LaunchTimeout):
            NeverReady.create_group(0).launch(
                forked_job, PackedPlacementStrategy(0, 0), name="twice", launch_timeout_s=2
            )
    again = Probe.create_group().launch(forked_job, PackedPlacementStrategy(0, 0), name="twice")
    assert again.add(1).wait(60) == [1]


@pytest.mark.interrupted
def test_a_terminate_that_was_interrupted_can_be_made_again(forked_job, pair, alarms, monkeypatch):
    monkeypatch.setattr("rlinf_scheduler.worker.supervision.STOP_GRACE_S", DEADLINE_S)
    pair.hold_the_process()
    wait_until(lambda: all(pair.is_held().wait(60)))  # so that the ranks do not end by themselves
    assert not alarms(seed=1, max_delay_s=0.2).interrupt(pair.terminate)
    assert forked_job.living == 2
    monkeypatch.setattr("rlinf_scheduler.worker.supervision.STOP_GRACE_S", 0.1)
    pair.terminate()
    wait_until(lambda: forked_job.living == 0)
    assert Probe.create_group().launch(forked_job, PackedPlacementStrategy(0, 0), name="pair").name == "pair"


def test_a_killed_rank_ends_pending_and_later_calls_of_all_ranks(forked_job, pair):
    heard = Heard(forked_job)
    waiting = pair.execute_on(0).wait_for_gate()
    dying = pair.die(1)
    for call in (dying, waiting):
        with pytest.raises(WorkerDied, match="rank 1 of 'pair' died"):
            call.wait(60)
    assert heard.next() == ("pair", 1)
    with pytest.raises(WorkerDied, match=r"rank 1 of 'pair' .* the whole group ends with it"):
        pair.execute_on(0).add(1)


def test_a_rank_whose_end_nobody_tells_is_dead_when_its_connection_is(monkeypatch, forked_job):
    """What watches processes may not reach the node that a rank was on."""
    monkeypatch.setattr("rlinf_scheduler.worker.supervision.UNSAID_GRACE_S", 0.05)
    forked_job.processes.watches = False
    pair = Probe.create_group().launch(forked_job, PackedPlacementStrategy(0, 1), name="pair")
    heard = Heard(forked_job)
    waiting = pair.execute_on(0).wait_for_gate()
    pair.execute_on(1).die(1)
    with pytest.raises(WorkerDied, match=r"rank 1 of 'pair' died .*its process has ended"):
        waiting.wait(60)
    assert heard.next() == ("pair", 1)
    monkeypatch.setattr("rlinf_scheduler.worker.supervision.STOP_GRACE_S", 0.0)  # nobody tells of its end


def test_a_process_that_dies_in_init_ends_the_launch_at_once(forked_job):
    with pytest.raises(LaunchError, match="rank 0 died while still in __init__"):
        Dies.create_group().launch(forked_job, placement_strategy=PackedPlacementStrategy(0, 0))


def test_a_rank_that_dies_when_it_is_ready_ends_a_launch_that_waits_for_others(forked_job):
    forked_job.session.bus.subscribe(
        lambda event: isinstance(event, WorkerStarted) and os.kill(event.pid, signal.SIGKILL)
    )
    with pytest.raises(LaunchError, match="rank 1 died while waiting for the other ranks"):
        NeverReady.create_group(0).launch(forked_job, PackedPlacementStrategy(0, 1), launch_timeout_s=40)
    wait_until(lambda: forked_job.living == 0)


@pytest.mark.parametrize("error", [ZeroDivisionError("by zero"), KeyboardInterrupt("again"), SystemExit(3)])
def test_what_init_raised_is_the_cause_of_the_launch_error_with_causes_of_its_own(forked_job, error):
    with pytest.raises(LaunchError) as caught:
        RaisesInInit.create_group(error).launch(forked_job, placement_strategy=NodePlacementStrategy([0]))
    raised = caught.value.__cause__
    assert (type(raised), raised.args) == (type(error), error.args)
    assert isinstance(raised.__cause__, LookupError)
    assert f"rank 0 failed in __init__: {type(error).__name__}: {error}" in caught.value.problem
    assert "LookupError: the cause" in str(caught.value)


def test_the_class_of_what_init_raised_is_read_by_who_launches(forked_job):
    slow_errors.readings.clear()
    with pytest.raises(LaunchError, match="rank 0 failed in __init__: SlowError: so") as caught:
        RaisesInInit.create_group(SlowError("so")).launch(forked_job, NodePlacementStrategy([0]))
    assert type(caught.value.__cause__) is SlowError
    assert isinstance(caught.value.__cause__.__cause__, LookupError)
    assert slow_errors.readings
    assert not any(slow_errors.readings)


def test_a_class_that_cannot_be_imported_there_is_told_in_the_words_of_the_import(forked_job, monkeypatch):
    module = types.ModuleType("only_in_the_driver")
    monkeypatch.setitem(sys.modules, "only_in_the_driver", module)
    module.Stranger = type("Stranger", (Worker,), {"__module__": "only_in_the_driver"})
    with pytest.raises(LaunchError) as caught:
        module.Stranger.create_group().launch(forked_job, placement_strategy=NodePlacementStrategy([0]))
    told = "rank 0 failed to import its class: ModuleNotFoundError: No module named 'only_in_the_driver'"
    assert caught.value.problem == told
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)
    assert caught.value.__cause__.name == "only_in_the_driver"
    assert "CodecError" not in str(caught.value)


def test_a_module_that_changes_what_its_rank_sees_ends_the_launch_with_both_sides(
    forked_job, tmp_path, monkeypatch
):
    changes = "import os\nif 'RANK' in os.environ:\n    os.environ['CUDA_VISIBLE_DEVICES'] = '0'\n"
    worker = "from rlinf.scheduler import Worker\nclass Stubborn(Worker):\n    pass\n"
    (tmp_path / "stubborn.py").write_text(changes + worker)
    monkeypatch.syspath_prepend(str(tmp_path))
    stubborn = importlib.import_module("stubborn").Stubborn
    with pytest.raises(LaunchError) as caught:
        stubborn.create_group().launch(forked_job, PackedPlacementStrategy(1, 1))
    assert "rank 0 failed to see its devices: DeviceMismatch" in caught.value.problem
    assert isinstance(caught.value.__cause__, DeviceMismatch)
    assert (caught.value.__cause__.planned, caught.value.__cause__.seen) == (("1",), ("0 (SIMULATED--0)",))


def test_an_argument_that_cannot_be_sent_is_an_error_before_anything_starts(forked_job):
    with pytest.raises(CodecError, match="lock"):
        Probe.create_group(threading.Lock()).launch(forked_job, name="unsendable")


def test_a_launch_that_is_late_says_which_rank_waits_for_what(forked_job, monkeypatch):
    assign, reached = launch._Launch._assign, [protocol.READY, protocol.CONSTRUCTING]

    def assign_long_ago(launching):
        assign(launching)
        wait_until(lambda: [state for _, state in launching._reached()] == reached)
        launching._started_at -= DEADLINE_S

    monkeypatch.setattr(launch._Launch, "_assign", assign_long_ago)
    strategy = PackedPlacementStrategy(0, 1)
    with pytest.raises(LaunchTimeout, match=r"rank 1 on node 0 .*: still in __init__") as caught:
        NeverReady.create_group(1).launch(
            forked_job, placement_strategy=strategy, launch_timeout_s=DEADLINE_S
        )
    assert "rank 0" not in str(caught.value)


def test_a_class_that_forgets_super_init_works(forked_job):
    group = Forgetful.create_group().launch(forked_job, placement_strategy=NodePlacementStrategy([1]))
    assert group.find().wait(60) == [0]
    group.terminate()


def test_with_ignore_the_living_ranks_go_on(forked_job):
    strategy = PackedPlacementStrategy(0, 1)
    group = Probe.create_group().launch(
        forked_job, placement_strategy=strategy, name="tolerant", on_failure="ignore"
    )
    with pytest.raises(WorkerDied):
        group.execute_on(1).die(1).wait(60)
    assert group.execute_on(0).add(1).wait(60) == [1]
    with pytest.raises(WorkerDied):
        group.execute_on(1).add(1).wait(60)
    group.terminate()


@pytest.mark.parametrize("arguments", [{"on_failure": "pray"}, {"max_concurrency": 0}, {"name": "a:b"}])
def test_bad_launch_options_are_refused_before_anything_starts(forked_job, arguments):
    with pytest.raises(ConfigError):
        Probe.create_group().launch(forked_job, **arguments)
