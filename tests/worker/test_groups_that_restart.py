"""Groups whose ranks compute together: one dies, all end, and all come back. Real processes, killed, without Ray."""

import re
import threading

import pytest
from returning_workers import Peer, Together
from test_returning_ranks import KILLED, TWO, Heard, groups_named

from rlinf.scheduler import Channel, PackedPlacementStrategy
from rlinf_scheduler.errors import ConfigError, WorkerDied, WorkerError
from rlinf_scheduler.events import WorkerGivenUp, WorkerLost, WorkerReturned
from waits import wait_until

ONE = PackedPlacementStrategy(2, 2)


def launch(job, name, *args, **options):
    return Together.create_group(*args).launch(job, TWO, name=name, on_failure="restart_group", **options)


def died(name, rank, method):
    return pytest.raises(WorkerDied, match=rf"rank {rank} of '{name}' died during {method}\(\): .*{KILLED}")


def test_a_rank_dies_in_a_collective_and_all_come_back_with_another_port(forked_job):
    heard = Heard(forked_job, "all")
    group = launch(forked_job, "all", ready_when="get_ready")
    assert group.meet().wait(60) == [2, 2]
    before = group.environment().wait(60)
    held = group.add(1)
    with died("all", 1, "add"):  # and not what the other one's collective fails with
        held.wait(60)
    assert {each.state for each in group.health()} <= {"restarting", "alive"}
    # A call that is made now waits for all of them; the second one computes with them.
    assert group.who().wait(60) == [(0, 1, True, 1), (1, 1, True, 1)]
    assert group.add().wait(60) == [2, 2]
    after = group.environment().wait(60)
    assert len({each["MASTER_PORT"] for each in after}) == 1
    assert before[0]["MASTER_PORT"] != after[0]["MASTER_PORT"]
    lost = {heard.next().rank: None, heard.next().rank: None}
    assert next(iter(lost)) == 1
    returned = [heard.next(), heard.next()]
    assert all(isinstance(each, WorkerReturned) and each.num_restarts == 1 for each in returned)
    group.terminate()


def test_a_call_that_retries_is_made_again_by_all_ranks(forked_job):
    group = launch(forked_job, "again")
    assert group.retrying().add(0, 2).wait(60) == [2, 2]
    assert group.who().wait(60) == [(0, 2, False, 1), (1, 2, False, 1)]


def test_a_failure_that_is_no_death_is_told_as_it_is(forked_job):
    group = launch(forked_job, "fails")
    with pytest.raises(WorkerError, match="no rank has died"):
        group.fail().wait(60)
    assert [each.state for each in group.health()] == ["alive", "alive"]
    # The other one waits for what never comes: by hand all of them are started anew.
    group.restart(0)
    assert [who[:2] for who in group.who().wait(60)] == [(0, 1), (1, 1)]


def test_a_rank_that_dies_while_all_come_back_is_no_end(forked_job, tmp_path):
    heard = Heard(forked_job, "often")
    marker = tmp_path / "rank 0 dies in its __init__ once"
    marker.touch()
    group = launch(forked_job, "often", str(marker))
    with died("often", 1, "die"):
        group.execute_on(1).die().wait(60)
    assert [who[:2] for who in group.who().wait(60)] == [(0, 1), (1, 1)]
    assert not marker.exists()
    group.terminate()
    events = [type(heard.next()) for _ in range(4)]
    assert events == [WorkerLost, WorkerLost, WorkerReturned, WorkerReturned]


def test_a_group_that_dies_too_often_is_given_up_as_a_whole(forked_job):
    heard = Heard(forked_job, "given up")
    group = launch(forked_job, "given up", "always", max_restarts=1)
    with died("given up", 1, "die"):
        group.execute_on(1).die().wait(60)
    cause = r"died: .*all of 'given up' are not started again: .*1 times .*max_restarts.*rank 0 died while"
    with pytest.raises(WorkerDied, match=re.compile(cause, re.DOTALL)):
        group.who().wait(60)
    assert [type(heard.next()) for _ in range(4)] == [WorkerLost] * 2 + [WorkerGivenUp] * 2
    assert {each.state for each in group.health()} == {"dead"}
    with pytest.raises(WorkerDied, match="on_failure='restart_group', the whole group ends with it"):
        group.execute_on(0).who()
    group.terminate()


def test_the_others_are_dead_for_their_own_reason(forked_job):
    group = launch(forked_job, "reasons")
    other = forked_job.session.messenger.peers
    (process_id,) = (
        rank.endpoint.process_id
        for rank in groups_named(forked_job, "reasons").ranks.values()
        if rank.address.rank == 0
    )
    with died("reasons", 1, "die"):
        group.execute_on(1).die().wait(60)
    group.who().wait(60)
    assert "all of 'reasons' starts anew with rank 1: process" in other.why_lost(process_id)


def test_terminate_ends_what_is_coming_back(forked_job):
    group = launch(forked_job, "ended", "always", max_restarts=99)
    with died("ended", 1, "die"):
        group.execute_on(1).die().wait(60)
    call = group.who()
    group.terminate()
    with pytest.raises(WorkerDied, match="the group was terminated"):
        call.wait(60)
    wait_until(lambda: forked_job.living == 0)


def after_its_launch(job, name, then):
    """Have `then` called when the first successor is ready, and only then taken; it, and what became of it later."""
    successors, unwanted, seen = groups_named(job, name)._successors, [], []
    start = successors._start

    def started(before, given_up, anew):
        seen.extend(
            (each.exited.done(), job.session.messenger.peers.why_lost(each.endpoint.process_id))
            for each in unwanted
        )
        ranks = start(before, given_up, anew)
        if not unwanted:
            unwanted.extend(ranks)
            then()
            assert given_up.wait(60)
        return ranks

    successors._start = started
    return unwanted, seen


def test_a_rank_that_is_back_when_all_begin_anew_has_ended_before_they_come(forked_job):
    def on_failure(lost):
        return "restart" if lost.rank else "restart_group"

    group = Together.create_group().launch(forked_job, TWO, name="both", on_failure=on_failure)
    _, seen = after_its_launch(forked_job, "both", forked_job.processes.started[0].kill)
    with died("both", 1, "die"):
        group.execute_on(1).die().wait(60)
    assert [who[:2] for who in group.retrying().who().wait(60)] == [(0, 1), (1, 1)]
    ((has_ended, why),) = seen
    assert has_ended
    assert "nobody wants it" in why
    group.terminate()


def test_who_ends_a_group_waits_for_what_has_just_come_back(forked_job):
    group = launch(forked_job, "late")
    supervision, ending = groups_named(forked_job, "late"), []

    def end():
        thread = threading.Thread(target=group.terminate)
        thread.start()
        ending.append(thread)

    unwanted, _ = after_its_launch(forked_job, "late", end)
    with died("late", 1, "die"):
        group.execute_on(1).die().wait(60)
    wait_until(lambda: ending)
    ending[0].join(60)
    assert [each for each in supervision.ranks.values() if each in unwanted] == unwanted
    assert all(each.exited.done() for each in unwanted)


def test_what_the_others_had_on_lease_comes_back_too(forked_job):
    channel = Channel.create("prompts")
    group = launch(forked_job, "leases", "", "prompts")
    channel.put("item")
    group.execute_on(0).lease_and_hold()
    wait_until(lambda: channel.qsize() == 0)
    with died("leases", 1, "die"):
        group.execute_on(1).die().wait(60)
    with channel.lease(timeout_s=60) as lease:
        assert (lease.item, lease.attempt) == ("item", 2)


def test_weights_of_a_group_before_are_none_of_it_after_and_readers_are_told(forked_job):
    group = launch(forked_job, "shards")
    peer = Peer.create_group().launch(forked_job, ONE, name="reader")
    group.publish(7).wait(60)
    assert peer.fetch().wait(60) == [7]
    waiting = peer.fetch(8)
    with died("shards", 1, "die"):
        group.execute_on(1).die().wait(60)
    assert waiting.wait(60) == ["PeerDied"]
    group.execute_on(0).publish(2).wait(60)
    assert peer.fetch(8).wait(60) == ["WeightsReplaced"]
    group.execute_on(1).publish(2).wait(60)
    assert peer.fetch().wait(60) == [2]
    group.publish(3).wait(60)
    assert peer.fetch(3).wait(60) == [3]


def test_readers_are_told_too_where_the_number_is_there_again(forked_job):
    group = launch(forked_job, "numbers")
    peer = Peer.create_group().launch(forked_job, ONE, name="other-reader")
    group.publish(4).wait(60)
    assert peer.fetch().wait(60) == [4]
    with died("numbers", 1, "die"):
        group.execute_on(1).die().wait(60)
    group.publish(5).wait(60)
    assert peer.fetch(5).wait(60) == ["WeightsReplaced"]
    assert peer.fetch(5).wait(60) == [5]
    assert peer.fetch(5).wait(60) == [5]


def test_a_group_of_one_rank_is_another_launch_too(forked_job):
    group = Together.create_group().launch(forked_job, ONE, name="alone", on_failure="restart_group")
    peer = Peer.create_group().launch(forked_job, ONE, name="its-reader")
    group.publish(4).wait(60)
    assert peer.fetch(num_ranks=1).wait(60) == [4]
    with died("alone", 0, "die"):
        group.die().wait(60)
    group.publish(5).wait(60)
    assert peer.fetch(5, 1).wait(60) == ["WeightsReplaced"]
    assert peer.fetch(5, 1).wait(60) == [5]


def test_parts_of_a_step_that_was_not_done_are_there_again_for_all_ranks(forked_job):
    channel = Channel.create("groups")
    for item in range(8):
        channel.put(item)
    channel.end()
    plan = {"policy": "round_robin", "batch_items": 4}
    group = launch(forked_job, "parts", "", "groups")
    first = group.take(plan).wait(60)
    assert first == [(0, [0, 2]), (0, [1, 3])]
    with died("parts", 1, "die"):
        group.execute_on(1).die().wait(60)
    assert group.take(plan).wait(60) == first
    assert group.take(plan).wait(60) == [(1, [4, 6]), (1, [5, 7])]


def test_options_about_ranks_that_come_back_are_taken_and_words_are_checked(forked_job):
    with pytest.raises(ConfigError, match="did you mean 'restart_group'"):
        Together.create_group().launch(forked_job, TWO, name="x", on_failure="restart_groups")
