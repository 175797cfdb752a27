"""The examples' trainings in short, without Ray: a rank of the rollout is killed, and every item is accounted for."""

import pytest

from forked_job import ForkedJob
from killed_ranks import EXAMPLES, Killer, Survival, report
from waits import wait_until

NUM_UPDATES = 4


@pytest.fixture
def job():
    job = ForkedJob()
    yield job
    job.close()


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_training_goes_on_when_a_rank_of_its_rollout_is_killed(job, example):
    outcome = Survival(example)
    job.session.bus.subscribe(outcome.hear)
    train, _ = EXAMPLES[example]
    train(job, outcome, lambda group: Killer(group, every_s=0.3, seconds=0.5, seed=1), NUM_UPDATES)
    assert not outcome.problems, report(outcome)
    assert (outcome.num_kills, outcome.num_steps) == (1, NUM_UPDATES)
    wait_until(lambda: len(outcome.returns) == 1)
    channels = 1
    wait_until(lambda: job.living == channels)
