"""Of a rank that runs several calls at a time, the path of a step has the one that the step waited for."""

import pytest
from timed_workers import CHANNEL, Collector, Learner

from rlinf.scheduler import Channel, PackedPlacementStrategy
from rlinf_scheduler.observe.report import ask_report
from waits import wait_until

DEADLINE_S = 60.0
NUM_STEPS, BATCH, EACH_S = 6, 2, 0.03


@pytest.fixture
def steps(job):
    """Makes steps of items that one thread of a rank puts, while another one works all the time for nobody."""
    rollout = Collector.create_group().launch(
        job, PackedPlacementStrategy(0, 0), name="collector", max_concurrency=2
    )
    actor = Learner.create_group().launch(job, PackedPlacementStrategy(0, 0), name="learner")
    channel, end = Channel.create(CHANNEL), Channel.create("end")

    def run():
        busy = rollout.keep_busy("end")
        for _ in range(NUM_STEPS):
            updating = actor.update(BATCH)
            # What is there already would not be waited for.
            wait_until(lambda: "waits  learner:0" in str(channel.explain()))
            rollout.collect(BATCH, EACH_S).wait(DEADLINE_S)
            updating.wait(DEADLINE_S)
        report = ask_report(job.session, "learner.update")
        end.put(None)
        busy.wait(DEADLINE_S)
        return report

    yield run
    rollout.terminate()
    actor.terminate()


def test_the_path_follows_the_thread_that_put_the_items(steps):
    path = [(part.group, part.what) for part in steps().step.path]
    assert ("collector", "collect: simulate") in path
    assert not [what for _, what in path if "keep_busy" in what]
