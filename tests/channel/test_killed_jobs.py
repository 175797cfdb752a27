"""A whole job is killed at random moments: it trains on what its source gave, skips nothing, and has nothing twice."""

import itertools
import os
import random

import pytest

import training_job
from rlinf_scheduler.durable.checkpoint_files import load_job

# `KILLS=100 pytest tests/channel/test_killed_jobs.py` kills each job so many times.
KILLS = int(os.environ.get("KILLS", "5"))
# From the start of its processes on: it may not have begun, be restoring, training, or saving.
LIVES_S = (0.0, 0.9)


@pytest.mark.timeout(120 + 5 * KILLS)
@pytest.mark.parametrize("stages", [1, 2], ids=["one channel", "two channels and a worker between them"])
def test_a_job_that_is_killed_as_a_whole_trains_on_each_item_once(tmp_path, stages):
    folder, dice = tmp_path / "checkpoint", random.Random(stages)
    lengths, longest_s = [0], LIVES_S[1]
    for number in itertools.count():
        job = training_job.start(str(folder), stages, seed=number)
        try:
            job.join(dice.uniform(LIVES_S[0], longest_s))
            assert job.exitcode is None
        finally:
            training_job.kill(job)
        saved = load_job(folder, missing_ok=True)
        trained = saved.extra["trained"] if saved else []
        assert trained == list(range(len(trained)))
        lengths.append(len(trained))
        if number >= KILLS:
            if len(trained) > KILLS:
                break
            # On a busy machine it gets nowhere in that time.
            longest_s *= 2
    assert lengths == sorted(lengths)
    files = {name for name in os.listdir(folder) if not name.startswith(".")}
    named = {os.path.basename(path) for path in saved.channels.values()}
    assert named | {"checkpoint"} <= files
