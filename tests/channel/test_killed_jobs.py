"""A whole job is killed at random moments: it trains on what its source gave, skips nothing, and has nothing twice."""

import os
import random

import pytest

import training_job
from rlinf.scheduler.channel import load_job
from waits import wait_until

# `KILLS=100 pytest tests/channel/test_killed_jobs.py` kills each job so many times.
KILLS = int(os.environ.get("KILLS", "5"))
# From the start of its processes on: it may not have begun, be restoring, training, or saving.
LIVES_S = (0.0, 0.9)


def trained_in(folder):
    saved = load_job(folder, missing_ok=True)
    return saved.extra["trained"] if saved else []


@pytest.mark.timeout(120 + 5 * KILLS)
@pytest.mark.parametrize("stages", [1, 2], ids=["one channel", "two channels and a worker between them"])
def test_a_job_that_is_killed_as_a_whole_trains_on_each_item_once(tmp_path, stages):
    folder, dice = tmp_path / "checkpoint", random.Random(stages)
    lengths = []
    for number in range(KILLS):
        job = training_job.start(str(folder), stages, seed=number)
        try:
            job.join(dice.uniform(*LIVES_S))
            assert job.exitcode is None
        finally:
            training_job.kill(job)
        trained = trained_in(folder)
        assert trained == list(range(len(trained)))
        lengths.append(len(trained))
    assert lengths == sorted(lengths)
    job = training_job.start(str(folder), stages, seed=KILLS)
    try:
        wait_until(lambda: len(trained_in(folder)) > max(KILLS, lengths[-1]))
    finally:
        training_job.kill(job)
    assert trained_in(folder) == list(range(len(trained_in(folder))))
    saved = load_job(folder)
    files = {name for name in os.listdir(folder) if not name.startswith(".")}
    named = {os.path.basename(path) for path in saved.channels.values()}
    assert named | {"checkpoint"} <= files
