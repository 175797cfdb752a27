"""Ranks that record what comes to them: real processes, killed, and run again alone."""

import os
import shutil
import signal

import numpy as np
import pytest
from recorded_ranks import Rollout

from rlinf.scheduler import Channel, PackedPlacementStrategy
from rlinf.testing import Replay
from rlinf_scheduler.errors import LaunchError, WorkerDied
from rlinf_scheduler.tape.recorded_rank import RecordedRank
from waits import wait_until

TWO, ONE = PackedPlacementStrategy(0, 1), PackedPlacementStrategy(0, 0)


def launch(job, folder, strategy=TWO, **options):
    return Rollout.create_group(3).launch(job, strategy, name="rollout", record=folder, **options)


def test_a_rank_that_was_killed_is_run_again_to_where_it_was(forked_job, tmp_path):
    prompts = Channel.create("prompts")
    group = launch(forked_job, tmp_path, seed=5)
    for number in range(8):
        prompts.put(np.full(1000, number))
    group.take(2, {"noise": np.ones(3)}).wait(60)
    assert list(group.execute_on(0).count(2)) == [[0], [1]]
    group.execute_on(0).take_async().wait(60)
    group.execute_on(1).say("to the first one").wait(60)
    group.execute_on(0).hear().wait(60)
    group.share([3, 1]).wait(60)
    inputs, pids = group.get("inputs").wait(60), group.pid().wait(60)
    endless = group.execute_on(0).take_for_ever()
    wait_until(lambda: prompts.stats().num_getters == 1)  # it waits for more than there is
    os.kill(pids[0], signal.SIGKILL)
    with pytest.raises(WorkerDied):
        endless.wait(60)
    # What came after we had looked: it was written before the rank could use it.
    with Replay(tmp_path, "rollout:0", check=True) as replay:
        told = list(replay.run())
        assert [line.partition(": ")[2] for line in told] == ["done"] * len(told)
        assert str(replay.worker.inputs[: len(inputs[0])]) == str(inputs[0])
        assert len(replay.worker.inputs) == len(inputs[0]) + 3
        assert replay.worker.seed == group_seed(tmp_path)
        assert "call 8, take_for_ever(): get 4 of prompts 'default'" in replay.notes[-1]
    with Replay(tmp_path, "rollout:1", check=True) as replay:
        list(replay.run())
        assert str(replay.worker.inputs) == str(inputs[1])


def group_seed(folder):
    recorded = RecordedRank(folder, "rollout:0")
    recorded.close()
    assert recorded.began.seeds_generators
    return recorded.began.seed


def test_each_process_of_a_rank_has_a_recording_and_nobody_writes_over_one(forked_job, tmp_path, monkeypatch):
    monkeypatch.setenv("RLINF_RECORD", str(tmp_path))
    monkeypatch.setenv("RLINF_RECORD_MIB", "1")  # of this process: the ranks' server was there before
    Channel.create("prompts").put("what it caught up with")
    group = launch(forked_job, None, ONE, on_failure="restart", ready_when="catch_up")
    pid = group.pid().wait(60)[0]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: (tmp_path / "rollout-0.1.rec").exists())
    assert group.retrying().pid().wait(60) != [pid]
    group.take(0, bytes(1 << 20)).wait(60)  # which has no room
    group.terminate()
    with Replay(tmp_path / "rollout-0.1.rec") as replay:
        assert [line.partition(": ")[0] for line in replay.run()] == [
            "__init__",
            "call 1, catch_up()",
            "call 2, pid()",
        ]
        assert replay.worker.inputs[-1] == "what it caught up with"
    with pytest.raises(LaunchError, match="there is a recording of that name already"):
        launch(forked_job, None, ONE)
    shutil.rmtree(tmp_path)
