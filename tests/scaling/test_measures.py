"""How much a group is waited for and has to spare, read off what the processes of a job say."""

from functools import partial

import pytest
from msgspec.structs import replace

from rlinf_scheduler.comm.waits import CHANNEL, RESULT, Wait
from rlinf_scheduler.observe.graph import graph_of
from rlinf_scheduler.observe.process_stats import Activity, JobActivity
from rlinf_scheduler.observe.time_service import JobTimes
from rlinf_scheduler.observe.time_sheets import CallSum, TimeSheet, WaitSum
from rlinf_scheduler.planning.scaling import ScalingSample
from rlinf_scheduler.queueing.stats import ChannelStats, QueueDepth, QueueStats, QueueUser
from rlinf_scheduler.scaling.measures import sample_between, times_so_far


def times(now, *sheets):
    return JobTimes(tuple(sheets), now=now)


def sheet(process, lived_s, running_s=0.0, *waits):
    """A process whose waits are (kind, who ended it, seconds)."""
    calls = (CallSum("work", 1, running_s),)
    sums = tuple(WaitSum("work", "", kind, "get", "items", by, 1, seconds) for kind, by, seconds in waits)
    return TimeSheet(process, lived_s, calls, (), sums)


def test_who_waits_most_counts_and_only_waits_that_the_group_has_ended():
    before = times(10.0, sheet("rollout:0", 10.0), sheet("actor:0", 10.0), sheet("critic:0", 10.0))
    actor = sheet(
        "actor:0",
        20.0,
        10.0,
        ("channel", "rollout:0", 4.0),
        ("channel", "env:0", 3.0),
        ("result", "rollout:0", 2.0),
    )
    after = times(
        20.0,
        sheet("rollout:0", 20.0, 10.0),
        actor,
        sheet("critic:0", 20.0, 10.0, ("channel", "rollout:0", 1.0)),
    )
    for by, waited_for in (("queue_wait", 0.4), ("result_wait", 0.2)):
        so_far = [times_so_far(each, "rollout", by) for each in (before, after)]
        assert sample_between(*so_far, "rollout").waited_for == pytest.approx(waited_for)


def test_what_it_waits_itself_and_is_not_called_is_to_spare():
    before = times(0.0, sheet("rollout:0", 0.0), sheet("rollout:1", 0.0))
    # Ten seconds of two ranks, of which calls ran for half, and waited for two seconds.
    after = times(10.0, sheet("rollout:0", 10.0, 10.0, ("channel", "actor:0", 2.0)), sheet("rollout:1", 10.0))
    so_far = [times_so_far(each, "rollout", "queue_wait") for each in (before, after)]
    assert sample_between(*so_far, "rollout") == ScalingSample(10.0, 0.0, pytest.approx(0.6))


def test_ranks_that_come_and_that_have_gone_are_looked_at_for_as_long_as_they_lived():
    before = times(0.0, sheet("actor:0", 0.0), sheet("rollout:0", 5.0, 5.0))
    after = times(10.0, sheet("actor:0", 10.0), sheet("rollout:0", 10.0, 10.0), sheet("rollout:1", 5.0, 5.0))
    so_far = [times_so_far(each, "rollout", "queue_wait") for each in (before, after)]
    assert sample_between(*so_far, "rollout").spare == pytest.approx(0.0)


def sampled(*looks, by="queue_wait", graph=None):
    """What is seen of 'rollout' between the last two of some looks."""
    before, so_far = None, None
    for look in looks:
        before, so_far = so_far, times_so_far(look, "rollout", by, so_far, graph)
    return sample_between(before, so_far, "rollout")


def waits(seconds):
    return "channel", "rollout:0", seconds


ROLLOUT = [sheet("rollout:0", 100.0, 50.0), sheet("rollout:0", 105.0, 52.5)]


def test_a_rank_that_is_killed_takes_its_times_along_and_that_says_nothing_of_the_others():
    before = times(
        100.0, ROLLOUT[0], sheet("actor:0", 100.0, 90.0), sheet("actor:1", 100.0, 90.0, waits(2.0))
    )
    after = times(105.0, ROLLOUT[1], sheet("actor:0", 105.0, 94.0, waits(0.1)))
    assert sampled(before, after) == ScalingSample(105.0, pytest.approx(0.02), pytest.approx(0.5))


def test_a_process_is_looked_at_anew_from_its_first_call_on():
    before = times(100.0, ROLLOUT[0], sheet("actor:0", 100.0))
    after = times(105.0, ROLLOUT[1], sheet("actor:0", 0.2, 0.2, waits(0.1)))
    assert sampled(before, after).waited_for == pytest.approx(0.02)
    idle = times(100.0, sheet("rollout:0", 100.0)), times(105.0, sheet("rollout:0", 0.1, 0.1))
    assert sampled(*idle).spare == pytest.approx(0.98)


def test_who_did_not_answer_once_is_no_new_one_the_next_time():
    actor = [sheet("actor:0", 100.0, 90.0, waits(80.0)), sheet("actor:0", 110.0, 99.0, waits(80.1))]
    looks = times(100.0, ROLLOUT[0], actor[0]), times(105.0, ROLLOUT[1]), times(110.0, ROLLOUT[1], actor[1])
    assert sampled(*looks[:2]).waited_for == 0.0
    assert sampled(*looks).waited_for == pytest.approx(0.01)
    assert sampled(*looks).spare == 0.0, "nobody knows what it did"


def test_a_call_that_waits_beside_one_that_works_leaves_nothing_to_spare():
    before = times(0.0, sheet("rollout:0", 0.0))
    after = times(10.0, sheet("rollout:0", 10.0, 20.0, ("channel", "actor:0", 10.0)))
    assert sampled(before, after).spare == pytest.approx(0.0)


QUEUES = (
    QueueStats(QueueDepth("default"), putters=(QueueUser("rollout:0", 9, 0.1),)),
    QueueStats(QueueDepth("rewards"), putters=(QueueUser("env:0", 9, 0.1),)),
)
GRAPH = graph_of(
    JobActivity(
        (
            Activity("Channels:0", 1, "node0", channels=(ChannelStats(name="items", shown=QUEUES),)),
            *(Activity(name, 1, "node0") for name in ("rollout:0", "env:0")),
        )
    )
)


def get(queue, since_s):
    return Wait(CHANNEL, "get('items')", since_s, None, ("Channels:0",), "items", queue, detail="get")


def result(peer, since_s):
    return Wait(RESULT, "rollout.make()", since_s, None, (peer,))


def actor_that(lived_s, *open_waits, ended=()):
    told = sheet("actor:0", lived_s, lived_s, *ended)
    return replace(told, waiting=open_waits)


@pytest.mark.parametrize(
    ("by", "open_wait", "share"),
    [
        ("queue_wait", partial(get, "'default'"), 1.0),
        ("queue_wait", partial(get, "'rewards'"), 0.0),
        ("queue_wait", partial(result, "rollout:0"), 0.0),
        ("result_wait", partial(result, "rollout:0"), 1.0),
        ("result_wait", partial(result, "env:0"), 0.0),
    ],
)
def test_a_wait_that_goes_on_counts_for_who_could_end_it(by, open_wait, share):
    looks = [times(at, ROLLOUT[0], actor_that(at, open_wait(at - 60.0))) for at in (100.0, 105.0, 110.0)]
    assert sampled(*looks, by=by, graph=GRAPH).waited_for == pytest.approx(share)
    begun = (
        times(100.0, ROLLOUT[0], actor_that(100.0)),
        times(110.0, ROLLOUT[0], actor_that(110.0, open_wait(4.0))),
    )
    assert sampled(*begun, by=by, graph=GRAPH).waited_for == pytest.approx(0.4 * share)


def test_what_counted_while_a_wait_went_on_does_not_count_again_when_it_ends():
    looks = (
        times(100.0, ROLLOUT[0], actor_that(100.0, get("'default'", 60.0))),
        times(110.0, ROLLOUT[0], actor_that(110.0, ended=[waits(61.0)])),
    )
    assert sampled(*looks, graph=GRAPH).waited_for == pytest.approx(0.1)


def test_a_wait_of_which_nothing_was_known_counts_for_the_time_between_two_looks_alone():
    looks = (
        times(100.0, ROLLOUT[0], actor_that(100.0)),
        times(110.0, ROLLOUT[0], actor_that(110.0, ended=[waits(61.0)])),
    )
    assert sampled(*looks).waited_for == 1.0


def test_a_long_wait_that_is_new_to_the_group_counts_for_its_own_process_alone():
    before = times(100.0, ROLLOUT[0], sheet("actor:0", 100.0, 100.0), sheet("actor:1", 100.0, 90.0))
    long = actor_that(105.0, get("'default'", 90.0))
    after = times(105.0, ROLLOUT[1], long, sheet("actor:1", 105.0, 94.0))
    assert sampled(before, after, graph=GRAPH).waited_for == pytest.approx(0.5)
