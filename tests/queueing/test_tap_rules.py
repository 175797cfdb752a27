"""The rules of subscriptions, one by one, on the state machine alone."""

from __future__ import annotations

import pytest
from channel_sums import is_over, restore

from rlinf_scheduler.queueing.dead_letters import DeadLetters
from rlinf_scheduler.queueing.item import Item, SubscriptionName
from rlinf_scheduler.queueing.leases import LeaseTerms, Settle
from rlinf_scheduler.queueing.messages import (
    Accept,
    Close,
    Deliver,
    EndAll,
    EndQueue,
    Fill,
    Flush,
    Get,
    Grant,
    Lose,
    Put,
    Reason,
    Refuse,
    Withdraw,
)
from rlinf_scheduler.queueing.state import ChannelState
from rlinf_scheduler.queueing.stats import depths_of
from rlinf_scheduler.queueing.surveying import QueueSurvey, SurveyContext
from rlinf_scheduler.queueing.taps import GiveUpTap, Subscribe, Taps, TapTerms, Unsubscribe, Vacate
from rlinf_scheduler.queueing.wanted import Limits

Q = "default"
LOG = SubscriptionName("log")


def tapped(terms=TapTerms(Q), **options):  # noqa: B008
    state = ChannelState(**options)
    assert state.apply(Subscribe(1, "log", *terms), "reader") == []
    return state


def put(state, *names, queue=Q, **about):
    """What follows from puts; their tickets are numbers that no other put has."""
    begin = state.queues.tally.num_items * 100
    return [
        instruction
        for place, name in enumerate(names)
        for instruction in state.apply(Put(begin + place, queue), "producer", Item(name, **about))
    ]


def delivered(instructions):
    return [
        (each.client, [item.payload for item in each.items])
        for each in instructions
        if isinstance(each, Deliver)
    ]


def accepted(instructions):
    return [each.ticket for each in instructions if isinstance(each, Accept)]


def refused(instructions):
    return [(each.client, each.reason) for each in instructions if isinstance(each, Refuse)]


def take_all(state, queue, client="taker"):
    """Everything that a queue gives now."""
    taken, ticket = [], 1000
    while found := delivered(state.apply(Get(ticket, queue, wait=False), client)):
        taken += found[0][1]
        state.confirm(client, (ticket,))
        ticket += 1
    return taken


# -- what it sees -----------------------------------------------------------------------------------


def test_consumers_and_a_subscription_both_get_each_item():
    state = tapped()
    put(state, "a", "b")
    assert take_all(state, Q) == ["a", "b"]
    assert take_all(state, LOG) == ["a", "b"]


def test_the_payload_is_the_same_object():
    payload = object()
    state = tapped()
    state.apply(Put(1, Q), "producer", Item(payload))
    (main,), (seen,) = state.apply(Get(1, Q), "c"), state.apply(Get(1, LOG), "r")
    assert main.items[0].payload is seen.items[0].payload is payload
    assert main.items[0].shared
    assert seen.items[0].shared


def test_what_was_accepted_before_is_not_seen():
    state = ChannelState()
    put(state, "early")
    state.apply(Subscribe(1, "log", Q), "reader")
    put(state, "late")
    assert take_all(state, LOG) == ["late"]
    assert take_all(state, Q) == ["early", "late"]


def test_what_comes_back_to_its_queue_is_not_seen_again():
    state = tapped()
    put(state, "a")
    state.apply(Get(1, Q), "c")
    state.apply(Withdraw(1), "c")
    assert take_all(state, LOG) == ["a"]
    assert take_all(state, Q) == ["a"]


def test_a_reader_that_waits_gets_an_item_as_it_enters():
    state = tapped()
    assert state.apply(Get(1, LOG), "r") == []
    assert delivered(put(state, "a")) == [("r", ["a"])]


def test_several_subscriptions_each_see_everything():
    state = tapped()
    state.apply(Subscribe(1, "stats", Q), "other")
    put(state, "a", "b")
    assert (
        take_all(state, LOG) == take_all(state, SubscriptionName("stats")) == take_all(state, Q) == ["a", "b"]
    )


def test_members_of_one_subscription_share_its_items():
    state = tapped()
    assert state.apply(Subscribe(1, "log", Q), "second") == []
    state.apply(Get(1, LOG), "reader")
    state.apply(Get(1, LOG), "second")
    assert delivered(put(state, "a", "b")) == [("reader", ["a"]), ("second", ["b"])]


def test_members_that_say_different_things_are_told_what_there_is():
    with pytest.raises(ValueError, match="it sees queue 'default', and may hold any number of items"):
        tapped().apply(Subscribe(1, "log", None, maxsize=3), "second")


def test_one_of_all_queues_sees_them_in_order_of_arrival_also_those_that_come_later():
    state = tapped(TapTerms(None))
    put(state, "a", queue="x")
    put(state, "b", queue="y")
    put(state, "c", queue="x")
    assert take_all(state, LOG) == ["a", "b", "c"]


def test_one_of_a_queue_sees_no_other():
    state = tapped()
    put(state, "a", queue="other")
    assert take_all(state, LOG) == []


def test_weights_groups_and_priorities_are_those_of_the_items():
    state = tapped()
    put(state, "low", "other", weight=2, group="g")
    put(state, "high", weight=3, priority=5)
    assert delivered(state.apply(Get(1, LOG, group_size=2), "r")) == [("r", ["low", "other"])]
    assert delivered(state.apply(Get(2, LOG, batch_weight=3), "r")) == [("r", ["high"])]


def test_a_flush_is_of_both():
    state = tapped()
    put(state, "a", weight=1)
    state.apply(Get(1, Q, batch_weight=5), "c")
    state.apply(Get(1, LOG, batch_weight=5), "r")
    assert delivered(state.apply(Flush(Q))) == [("c", ["a"]), ("r", ["a"])]


# -- leases and deaths ------------------------------------------------------------------------------


def test_a_lease_of_a_subscription_is_nothing_to_the_consumers():
    state = tapped()
    put(state, "a")
    (delivery, _) = state.apply(Get(1, LOG, grant=LeaseTerms(60.0)), "r")
    assert take_all(state, Q) == ["a"]
    state.apply(Settle(delivery.grant.generation, None, False, reason="again"), "r")
    assert take_all(state, LOG) == ["a"]


def test_what_a_dead_member_had_goes_to_another():
    state = tapped()
    put(state, "a", "b")
    state.apply(Get(1, LOG), "reader")
    state.apply(Get(2, LOG, grant=LeaseTerms(60.0)), "reader")
    state.apply(Lose(), "reader")
    assert take_all(state, LOG) == ["a", "b"]


def test_nobody_is_told_that_a_question_was_not_answered_by_a_subscription():
    state = tapped(max_attempts=1)
    state.apply(Put(1, Q), "asker", Item("why?", question=("asker", 7)))
    delivery, _ = state.apply(Get(1, LOG, grant=LeaseTerms(60.0)), "r")
    out = state.apply(Settle(delivery.grant.generation, None, False, reason="no"), "r")
    assert [type(each).__name__ for each in out] == ["StopClock"]
    assert [letter.queue.name for letter in state.policy(DeadLetters).of()] == [LOG]


# -- bounds -----------------------------------------------------------------------------------------


def test_one_that_is_full_gives_up_its_oldest_items_and_counts_them():
    state = tapped(TapTerms(Q, maxsize=2))
    assert len(accepted(put(state, *"abcd"))) == 4
    assert state.queues.find(LOG).num_dropped == 2
    assert take_all(state, LOG) == ["c", "d"]
    assert take_all(state, Q) == list("abcd")
    (depth,) = depths_of(state.queues)
    assert (depth.name, depth.num_dropped) == (LOG, 2)


@pytest.mark.parametrize("priority", [0, 1])
def test_the_oldest_are_given_up_whatever_their_priority(priority):
    state = tapped(TapTerms(Q, maxsize=2))
    put(state, "a", priority=priority)
    put(state, "b", "c")
    assert take_all(state, LOG) == ["b", "c"]


def test_what_came_back_is_given_up_first():
    state = tapped(TapTerms(Q, maxsize=2))
    put(state, "a", "b")
    state.apply(Get(1, LOG), "r")
    state.apply(Withdraw(1), "r")
    put(state, "c")
    assert take_all(state, LOG) == ["b", "c"]


def test_bytes_are_bounded_but_for_a_single_item():
    state = tapped(TapTerms(Q, max_bytes=100))
    put(state, "large", size_bytes=300)
    assert QueueSurvey(state).num_items(LOG) == 1
    put(state, "a", size_bytes=60)
    put(state, "b", size_bytes=60)
    assert take_all(state, LOG) == ["b"]


def test_what_is_on_lease_counts_and_stays():
    state = tapped(TapTerms(Q, maxsize=1))
    put(state, "a")
    delivery, _ = state.apply(Get(1, LOG, grant=LeaseTerms(60.0)), "r")
    put(state, "b")
    assert QueueSurvey(state).num_items(LOG) == 0
    assert state.apply(Settle(delivery.grant.generation, None, True), "r")
    put(state, "c")
    assert take_all(state, LOG) == ["c"]


def test_no_put_waits_for_one_that_is_full():
    state = tapped(TapTerms(Q, maxsize=1))
    put(state, "a")
    assert accepted(state.apply(Put(7, Q, wait=False), "producer", Item("b"))) == [7]
    assert state.apply(Put(8, Q, size_bytes=50), "producer", Item(None, size_bytes=50)) == [
        Grant("producer", 8)
    ]
    assert accepted(state.apply(Fill(8), "producer", "c")) == [8]
    assert take_all(state, LOG) == ["c"]
    assert take_all(state, Q) == ["a", "b", "c"]


def test_a_batch_waits_for_what_takes_the_place_of_its_oldest_items():
    state = tapped(TapTerms(Q, maxsize=2))
    put(state, "a", "b", weight=1)
    assert state.apply(Get(1, LOG, batch_weight=5), "r") == []
    assert delivered(put(state, "c", weight=4)) == [("r", ["b", "c"])]


def test_what_a_subscription_holds_is_not_counted_for_the_channel():
    state = tapped(total_bytes=100)
    put(state, "a", size_bytes=80)
    take_all(state, Q)
    assert state.queues.bounded_bytes == 0
    assert len(accepted(put(state, "b", queue="other", size_bytes=90))) == 1


# -- ends -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [EndQueue(Q), EndAll(), Close()])
def test_readers_see_what_there_was_and_then_the_end(end):
    state = tapped()
    put(state, "a")
    state.apply(end)
    assert take_all(state, LOG) == ["a"]
    ((_, reason),) = refused(state.apply(Get(1, LOG), "r"))
    assert reason in (Reason.ENDED, Reason.CLOSED)


def test_a_reader_that_waits_is_told_of_the_end():
    state = tapped()
    state.apply(Get(1, LOG), "r")
    assert refused(state.apply(EndQueue(Q))) == [("r", Reason.ENDED)]


def test_one_of_all_queues_ends_with_the_channel():
    state = tapped(TapTerms(None))
    state.apply(Get(1, LOG), "r")
    assert refused(state.apply(EndQueue(Q))) == []
    assert refused(state.apply(EndAll())) == [("r", Reason.ENDED)]


def test_puts_that_wait_when_the_queue_ends_are_seen():
    state = tapped(maxsize=1)
    put(state, "a")
    state.apply(Put(7, Q), "producer", Item("b"))
    state.apply(EndQueue(Q))
    assert take_all(state, LOG) == ["a"]
    assert state.apply(Get(1, LOG), "r") == []
    assert delivered(state.apply(Get(1, Q), "c")) == [("c", ["a"]), ("r", ["b"])]
    assert refused(state.apply(Get(2, LOG), "r")) == []  # "b" may come back
    assert refused(state.confirm("r", (1,))) == [("r", Reason.ENDED)]


def test_a_put_that_gives_up_after_the_end_ends_the_subscription():
    state = tapped(maxsize=1)
    put(state, "a")
    take_all(state, LOG)
    state.apply(Put(7, Q), "producer", Item("b"))
    state.apply(EndQueue(Q))
    assert state.apply(Get(1, LOG), "r") == []
    assert ("r", Reason.ENDED) in refused(state.apply(Withdraw(7), "producer"))


def test_one_that_begins_after_the_end_has_ended():
    state = ChannelState()
    state.apply(EndQueue(Q))
    state.apply(Subscribe(1, "log", Q), "reader")
    assert refused(state.apply(Get(1, LOG), "r")) == [("r", Reason.ENDED)]


# -- members ----------------------------------------------------------------------------------------


def leave(state, client="reader", number=1):
    left = state.apply(Unsubscribe(number, "log"), client)
    return None if not left else state.apply(GiveUpTap("log", left[0].vacancy))


def vacancies(instructions):
    return [(each.name, each.vacancy) for each in instructions if isinstance(each, Vacate)]


def test_without_members_a_subscription_is_gone():
    state = tapped()
    state.apply(Get(1, LOG), "waiting")
    assert refused(leave(state)) == [("waiting", Reason.ENDED)]
    put(state, "a")
    assert take_all(state, LOG) == []
    assert refused(state.apply(Get(2, LOG), "r")) == [("r", Reason.ENDED)]
    assert take_all(state, Q) == ["a"]
    assert depths_of(state.queues) == ()


def test_it_goes_on_as_long_as_somebody_reads():
    state = tapped()
    state.apply(Subscribe(2, "log", Q), "reader")
    assert leave(state, number=1) is None
    put(state, "a")
    assert take_all(state, LOG) == ["a"]
    assert leave(state, number=2) == []


def test_a_successor_of_the_last_member_goes_on_where_that_was():
    state = tapped()
    put(state, "a")
    assert vacancies(state.apply(Lose(), "reader")) == [("log", 1)]
    put(state, "b")
    state.apply(Subscribe(1, "log", Q), "successor")
    assert is_over(state, GiveUpTap("log", 1))
    assert take_all(state, LOG) == ["a", "b"]


def test_an_earlier_vacancy_does_not_end_it_before_the_time_of_the_later_one():
    state = tapped()
    state.apply(Lose(), "reader")
    state.apply(Subscribe(1, "log", Q), "successor")
    assert vacancies(state.apply(Lose(), "successor")) == [("log", 2)]
    assert is_over(state, GiveUpTap("log", 1))
    assert state.apply(GiveUpTap("log", 2)) == []


def test_a_vacancy_of_one_that_is_gone_is_not_that_of_the_next_one_of_its_name():
    state = tapped()
    leave(state)
    state.apply(Subscribe(2, "log", Q), "reader")
    assert vacancies(state.apply(Unsubscribe(2, "log"), "reader")) == [("log", 2)]
    assert is_over(state, GiveUpTap("log", 1))


@pytest.mark.parametrize("max_attempts", [0, 1])
def test_what_comes_back_to_one_that_is_gone_is_dropped(max_attempts):
    state = tapped(max_attempts=max_attempts, total_bytes=1000)
    put(state, "a", "b", size_bytes=10)
    state.apply(Get(1, LOG), "r")
    delivery, _ = state.apply(Get(2, LOG, grant=LeaseTerms(60.0)), "r")
    leave(state)
    state.apply(Withdraw(1), "r")
    state.apply(Settle(delivery.grant.generation, None, False, reason="no"), "r")
    take_all(state, Q)
    assert depths_of(state.queues) == ()
    assert state.policy(DeadLetters).of() == []
    assert state.queues.tally.held_bytes == 0
    state.apply(Subscribe(2, "log", Q), "reader")
    assert take_all(state, LOG) == []


def test_nothing_is_known_of_a_member_that_has_left():
    state = tapped()
    leave(state)
    assert state.apply(Unsubscribe(1, "log"), "reader") == []
    assert state.apply(Lose(), "reader") == []


def test_a_report_says_what_it_sees_and_who_reads_it():
    state = tapped(TapTerms(Q, maxsize=1))
    put(state, "a", "b")
    (report,) = QueueSurvey(state).of([LOG], SurveyContext(0.0, {"reader": "logger:0"}))
    assert report.subscription.startswith("it sees queue 'default'")
    assert report.subscription.endswith("; read by 'logger:0'")
    assert report.depth.num_dropped == 1


def test_a_batch_with_a_limit_takes_what_there_is():
    state = tapped()
    put(state, "a", "b", "c")
    assert delivered(state.apply(Get(1, LOG, limits=Limits(max_items=2)), "r")) == [("r", ["a", "b"])]


def at_rest(state):
    snapshot = state.snapshot(at_rest=True)
    restored = ChannelState()
    restore(restored, snapshot)
    return restored


def test_a_checkpoint_holds_a_subscription_with_what_nobody_has_read_and_without_its_members():
    state = tapped(max_attempts=1)
    put(state, "a", "b", "c", "d")
    delivery, _ = state.apply(Get(1, LOG, grant=LeaseTerms(60.0)), "reader")
    state.apply(Settle(delivery.grant.generation, None, False, reason="no"), "reader")
    state.apply(Get(2, LOG), "reader")
    state.confirm("reader", (2,))
    state.apply(Get(3, LOG), "reader")
    restored = at_rest(state)
    assert restored.policy(Taps).vacant() == [("log", 0)]
    assert [tap.terms for tap in restored.policy(Taps)] == [tap.terms for tap in state.policy(Taps)]
    assert [(letter.queue.name, letter.item.payload) for letter in restored.policy(DeadLetters).of()] == [
        (LOG, "a")
    ]
    assert take_all(restored, LOG) == ["c", "d"]
    put(restored, "e")
    assert take_all(restored, LOG) == ["e"]
    assert take_all(restored, Q) == list("abcde")


def test_a_checkpoint_holds_no_subscription_that_nobody_reads_any_more():
    state = tapped()
    put(state, "a")
    state.apply(Get(1, LOG, grant=LeaseTerms(60.0)), "reader")
    leave(state)
    restored = at_rest(state)
    assert [depth.name for depth in depths_of(restored.queues)] == [Q]


def test_what_a_subscription_has_lost_is_counted_where_it_was_put_in_a_checkpoint_too():
    state = tapped()
    put(state, "a", "b", size_bytes=10)
    take_all(state, Q)
    state.apply(Get(1, LOG, grant=LeaseTerms(60.0)), "reader")
    state.lose_items(lambda _: "went")
    assert at_rest(state).queues.tally.num_lost == 0


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        ({"maxsize": 2, "max_bytes": 1579753984}, "may hold at most 2 items and 1.47 GiB,"),
        ({"maxsize": 1}, "may hold at most 1 item,"),
        ({"max_bytes": 1536}, "may hold at most 1.5 KiB,"),
        ({}, "and may hold any number of items"),
    ],
)
def test_its_bound_is_told_as_a_bound_and_not_as_what_it_holds(bounds, said):
    assert said in TapTerms(Q, **bounds).describe()
