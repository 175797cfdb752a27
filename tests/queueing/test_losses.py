"""Items whose bytes are gone: which of them are lost, who is told, and what stays as it was."""

import pytest
from channel_sums import restore

from rlinf_scheduler.queueing.dead_letters import DeadLetters, MoveDead
from rlinf_scheduler.queueing.item import Item, SubscriptionName
from rlinf_scheduler.queueing.leases import Lapse, LeaseTerms, Settle
from rlinf_scheduler.queueing.messages import (
    Accept,
    Bury,
    Deliver,
    EndQueue,
    Get,
    Lose,
    Put,
    Reason,
    Refuse,
    Resend,
)
from rlinf_scheduler.queueing.shard_plan import ShardPlan
from rlinf_scheduler.queueing.sharding import WantedPart
from rlinf_scheduler.queueing.state import ChannelState
from rlinf_scheduler.queueing.stats import depths_of
from rlinf_scheduler.queueing.surveying import QueueSurvey
from rlinf_scheduler.queueing.taps import Subscribe
from rlinf_scheduler.queueing.wanted import Limits

TERMS = LeaseTerms(60.0, "actor:0")


def why(*gone):
    return lambda payload: "went" if payload in gone else ""


def put(state, *payloads, queue="q", **terms):
    for ticket, payload in enumerate(payloads):
        assert Accept("env", ticket) in state.apply(Put(ticket, queue), "env", Item(payload, 1, 10, **terms))


def delivered(out):
    (deliver,) = (each for each in out if isinstance(each, Deliver))
    return [item.payload for item in deliver.items]


def refused(out):
    return [(each.client, each.ticket, each.reason, each.state) for each in out if isinstance(each, Refuse)]


def test_one_getter_is_told_of_all_that_are_lost_and_the_next_goes_on():
    state = ChannelState()
    put(state, "a", "b", "c", "d")
    assert state.lose_items(why("a", "c")) == []
    assert QueueSurvey(state).num_items("q") == 2
    assert refused(state.apply(Get(1, "q"), "actor")) == [("actor", 1, Reason.LOST, "2 items went")]
    assert delivered(state.apply(Get(2, "q"), "actor")) == ["b"]
    assert (state.queues.tally.num_lost, state.queues.tally.lost_bytes, state.queues.tally.num_items) == (
        2,
        20,
        4,
    )


def test_a_getter_that_waits_is_told_at_once():
    state = ChannelState()
    put(state, "a", "b")
    state.apply(Get(1, "q", batch_weight=3), "actor")
    assert refused(state.lose_items(why("b"))) == [("actor", 1, Reason.LOST, "1 item went")]
    assert state.lose_items(why("b")) == []
    assert delivered(state.apply(Get(2, "q"), "actor")) == ["a"]


def test_a_queue_that_has_lost_something_stays_until_somebody_is_told():
    state = ChannelState()
    put(state, "a")
    state.lose_items(why("a"))
    assert [(depth.num_items, depth.num_lost) for depth in depths_of(state.queues)] == [(0, 1)]
    assert refused(state.apply(Get(1, "q", wait=False), "actor"))[0][2] is Reason.LOST
    assert depths_of(state.queues) == ()


def test_room_is_free_again():
    state = ChannelState(maxsize=1)
    put(state, "a")
    assert state.apply(Put(9, "q"), "env", Item("b", 1, 10)) == []
    assert state.lose_items(why("a")) == [Accept("env", 9)]


def test_an_unfinished_put_is_refused():
    state = ChannelState(maxsize=1)
    put(state, "a")
    state.apply(Put(9, "q"), "env", Item("b", 1, 10))
    assert refused(state.lose_items(why("b"))) == [("env", 9, Reason.LOST, "its item went")]
    assert state.queues.tally.num_lost == 0


def test_what_was_delivered_is_not_lost_if_it_is_confirmed():
    state = ChannelState()
    put(state, "a")
    state.apply(Get(1, "q"), "actor")
    assert state.lose_items(why("a")) == []
    state.confirm("actor", (1,))
    assert (state.queues.tally.num_lost, depths_of(state.queues)) == (0, ())


def test_what_was_delivered_and_did_not_arrive_is_refused_and_the_rest_goes_back():
    state = ChannelState()
    put(state, "a", "b", "c")
    state.apply(Get(1, "q", limits=Limits(3)), "actor")
    state.lose_items(why("b"))
    assert refused(state.apply(Resend(1), "actor")) == [("actor", 1, Reason.LOST, "1 item went")]
    assert delivered(state.apply(Get(2, "q", limits=Limits(2)), "actor")) == ["a", "c"]
    assert state.apply(Resend(1), "actor") == []


def test_what_a_dead_consumer_had_not_taken_is_lost_when_it_comes_back():
    state = ChannelState()
    put(state, "a", "b")
    state.apply(Get(1, "q"), "actor")
    state.lose_items(why("a"))
    assert state.queues.tally.num_lost == 0
    state.apply(Lose(), "actor")
    assert state.queues.tally.num_lost == 1
    assert refused(state.apply(Get(1, "q"), "other"))[0][3] == "1 item went"
    assert delivered(state.apply(Get(2, "q"), "other")) == ["b"]


@pytest.mark.parametrize("max_attempts", [0, 1])
@pytest.mark.parametrize("delay_s", [0, 5])
def test_what_is_on_lease_is_lost_if_it_is_given_back_and_is_no_dead_letter(max_attempts, delay_s):
    state = ChannelState(max_attempts=max_attempts)
    put(state, "a", "b")
    (deliver, _) = state.apply(Get(1, "q", limits=Limits(2), grant=TERMS), "actor")
    state.lose_items(why("a", "b"))
    generation = deliver.grant.generation
    state.apply(Settle(generation, [1], True), "actor")
    out = state.apply(Settle(generation, None, False, delay_s=delay_s), "actor")
    for each in out:
        if getattr(each, "after_s", None) == delay_s:
            state.apply(Lapse(each.generation))
    assert state.queues.tally.num_lost == 1
    assert [(depth.num_leased, depth.num_dead, depth.num_lost) for depth in depths_of(state.queues)] == [
        (0, 0, 1)
    ]


def test_a_lease_whose_items_did_not_arrive_is_no_attempt():
    state = ChannelState(max_attempts=1)
    put(state, "a", "b")
    state.apply(Get(1, "q", limits=Limits(2), grant=TERMS), "actor")
    state.lose_items(why("a"))
    assert refused(state.apply(Resend(1), "actor")) == [("actor", 1, Reason.LOST, "1 item went")]
    out = state.apply(Get(2, "q", grant=TERMS), "actor")
    assert delivered(out) == ["b"]
    assert out[0].grant.attempts == [1]


def test_a_dead_letter_is_lost_when_it_is_put_back():
    state = ChannelState(max_attempts=1)
    put(state, "a")
    (deliver, _) = state.apply(Get(1, "q", grant=TERMS), "actor")
    state.apply(Settle(deliver.grant.generation, None, False), "actor")
    state.lose_items(why("a"))
    (letter,) = state.policy(DeadLetters).of()
    assert (letter.item.lost, state.queues.tally.num_lost) == ("went", 0)
    state.apply(MoveDead(letter.number, True))
    assert state.queues.tally.num_lost == 1


def test_the_asker_of_a_lost_question_is_told():
    state = ChannelState()
    put(state, "a", question=("env", 7))
    out = state.lose_items(why("a"))
    assert out == [Bury("env", 7, 0, "", "went")]


def test_lost_items_of_groups_and_priorities_leave_their_places():
    state = ChannelState()
    put(state, "a", "b", group="g")
    put(state, "c", "d", priority=3)
    state.lose_items(why("a", "d"))
    state.apply(Get(1, "q"), "actor")
    assert delivered(state.apply(Get(2, "q"), "actor")) == ["c"]
    assert delivered(state.apply(Get(3, "q", group_size=1), "actor")) == ["b"]


def test_parts_that_no_rank_has_shrink_and_one_rank_is_told():
    state = ChannelState()
    plan = ShardPlan(2, "round_robin", batch_items=4)
    state.apply(Get(1, "q", grant=WantedPart(plan, 0)), "rank0")
    put(state, "a", "b", "c", "d")
    state.lose_items(why("a", "b"))
    assert refused(state.apply(Get(1, "q", grant=WantedPart(plan, 1)), "rank1")) == [
        ("rank1", 1, Reason.LOST, "1 item went")
    ]
    assert delivered(state.apply(Get(2, "q", grant=WantedPart(plan, 1)), "rank1")) == ["d"]
    # The first rank has its part, whatever happened since.
    assert state.queues.tally.num_lost == 1
    state.apply(Lose(), "rank0")
    assert refused(state.apply(Get(1, "q", grant=WantedPart(plan, 0)), "again0")) == [
        ("again0", 1, Reason.LOST, "1 item went")
    ]
    assert delivered(state.apply(Get(2, "q", grant=WantedPart(plan, 0)), "again0")) == ["c"]
    assert state.queues.tally.num_lost == 2


def test_a_part_that_did_not_arrive_is_refused_and_comes_again_without_what_is_lost():
    state = ChannelState()
    plan = ShardPlan(1, batch_items=2)
    state.apply(Get(1, "q", grant=WantedPart(plan, 0)), "rank")
    put(state, "a", "b")
    state.lose_items(why("a"))
    assert refused(state.apply(Resend(1), "rank")) == [("rank", 1, Reason.LOST, "1 item went")]
    assert delivered(state.apply(Get(2, "q", grant=WantedPart(plan, 0)), "rank")) == ["b"]


def test_the_end_of_a_queue_comes_after_its_losses():
    state = ChannelState()
    put(state, "a")
    state.apply(EndQueue("q"))
    state.lose_items(why("a"))
    assert refused(state.apply(Get(1, "q"), "actor"))[0][2] is Reason.LOST
    assert refused(state.apply(Get(2, "q"), "actor"))[0][2] is Reason.ENDED


def test_the_end_of_a_queue_comes_after_its_losses_also_for_those_who_have_enough_on_lease():
    state = ChannelState(max_leased=1)
    put(state, "a", queue="elsewhere")
    state.apply(Get(1, "elsewhere", grant=TERMS), "actor")
    assert state.apply(Get(2, "q", batch_weight=5, grant=TERMS), "actor") == []
    assert state.apply(Get(3, "q", grant=TERMS), "actor") == []
    put(state, "b")
    state.apply(EndQueue("q"))
    told = refused(state.lose_items(why("b")))
    assert told[0] == ("actor", 2, Reason.LOST, "1 item went")
    assert [each[1:3] for each in told[1:]] == [(3, Reason.ENDED)]


def test_what_is_lost_is_counted_in_a_record_also_what_would_be_when_it_came_back():
    state = ChannelState()
    put(state, "a", "b", "c", "d")
    state.apply(Get(1, "q"), "actor")
    state.apply(Get(2, "q", grant=LeaseTerms(1.0)), "actor")
    state.lose_items(why("a", "b", "c"))
    assert state.queues.tally.num_lost == 1
    snapshot = state.snapshot(at_rest=True)
    assert (snapshot.data.num_lost, snapshot.data.lost_bytes) == (3, 30)
    twin = ChannelState()
    restore(twin, snapshot)
    assert (
        twin.queues.tally.num_lost,
        twin.queues.tally.lost_bytes,
        twin.queues.tally.num_items,
        QueueSurvey(twin).num_items("q"),
    ) == (3, 30, 4, 1)
    as_it_is = state.snapshot().data
    assert (as_it_is.num_lost, as_it_is.lost_bytes) == (1, 10)


def test_what_a_subscriptions_shard_has_lost_is_counted_where_it_was_put_alone():
    state = ChannelState()
    state.apply(Subscribe(1, "log", None), "reader")
    put(state, "a")
    assert delivered(
        state.apply(
            Get(1, SubscriptionName("log"), grant=WantedPart(ShardPlan(1, batch_items=1), 0)), "reader"
        )
    ) == ["a"]
    state.lose_items(why("a"))
    assert state.queues.tally.num_lost == state.snapshot(at_rest=True).data.num_lost == 1
