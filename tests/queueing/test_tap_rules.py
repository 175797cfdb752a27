"""The rules of subscriptions, one by one, on the state machine alone."""

from __future__ import annotations

import pytest
from channel_sums import restore

from rlinf_scheduler.queueing import (
    Accept,
    ChannelState,
    Deliver,
    Grant,
    LeaseTerms,
    Limits,
    QueueSurvey,
    Reason,
    Refuse,
    SurveyContext,
    Tapped,
    TapTerms,
)

Q = "default"
LOG = Tapped("log")


def tapped(terms=TapTerms(Q), **options):  # noqa: B008
    state = ChannelState(**options)
    assert state.subscribe("reader", 1, "log", terms) == ""
    return state


def put(state, *names, queue=Q, **about):
    """What follows from puts; their tickets are numbers that no other put has."""
    begin = state.queues.num_accepted * 100
    return [
        instruction
        for place, name in enumerate(names)
        for instruction in state.put("producer", begin + place, queue, name, **about)
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
    while found := delivered(state.get(client, ticket, queue, wait=False)):
        taken += found[0][1]
        state.confirm(client, ticket)
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
    state.put("producer", 1, Q, payload)
    (main,), (seen,) = state.get("c", 1, Q), state.get("r", 1, LOG)
    assert main.items[0].payload is seen.items[0].payload is payload
    assert main.items[0].shared
    assert seen.items[0].shared


def test_what_was_accepted_before_is_not_seen():
    state = ChannelState()
    put(state, "early")
    state.subscribe("reader", 1, "log", TapTerms(Q))
    put(state, "late")
    assert take_all(state, LOG) == ["late"]
    assert take_all(state, Q) == ["early", "late"]


def test_what_comes_back_to_its_queue_is_not_seen_again():
    state = tapped()
    put(state, "a")
    state.get("c", 1, Q)
    state.withdraw("c", 1)
    assert take_all(state, LOG) == ["a"]
    assert take_all(state, Q) == ["a"]


def test_a_reader_that_waits_gets_an_item_as_it_enters():
    state = tapped()
    assert state.get("r", 1, LOG) == []
    assert delivered(put(state, "a")) == [("r", ["a"])]


def test_several_subscriptions_each_see_everything():
    state = tapped()
    state.subscribe("other", 1, "stats", TapTerms(Q))
    put(state, "a", "b")
    assert take_all(state, LOG) == take_all(state, Tapped("stats")) == take_all(state, Q) == ["a", "b"]


def test_members_of_one_subscription_share_its_items():
    state = tapped()
    assert state.subscribe("second", 1, "log", TapTerms(Q)) == ""
    state.get("reader", 1, LOG)
    state.get("second", 1, LOG)
    assert delivered(put(state, "a", "b")) == [("reader", ["a"]), ("second", ["b"])]


def test_members_that_say_different_things_are_told_what_there_is():
    problem = tapped().subscribe("second", 1, "log", TapTerms(None, maxsize=3))
    assert "queue 'default'" in problem
    assert "any number of items" in problem


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
    assert delivered(state.get_group("r", 1, LOG, 2)) == [("r", ["low", "other"])]
    assert delivered(state.get_batch("r", 2, LOG, 3)) == [("r", ["high"])]


def test_a_flush_is_of_both():
    state = tapped()
    put(state, "a", weight=1)
    state.get_batch("c", 1, Q, 5)
    state.get_batch("r", 1, LOG, 5)
    assert delivered(state.flush(Q)) == [("c", ["a"]), ("r", ["a"])]


# -- leases and deaths ------------------------------------------------------------------------------


def test_a_lease_of_a_subscription_is_nothing_to_the_consumers():
    state = tapped()
    put(state, "a")
    (delivery, _) = state.lease("r", 1, LOG, LeaseTerms(60.0))
    assert take_all(state, Q) == ["a"]
    state.give_back("r", delivery.lease.generation, reason="again")
    assert take_all(state, LOG) == ["a"]


def test_what_a_dead_member_had_goes_to_another():
    state = tapped()
    put(state, "a", "b")
    state.get("reader", 1, LOG)
    state.lease("reader", 2, LOG, LeaseTerms(60.0))
    state.lose("reader")
    assert take_all(state, LOG) == ["a", "b"]


def test_nobody_is_told_that_a_question_was_not_answered_by_a_subscription():
    state = tapped(max_attempts=1)
    state.put("asker", 1, Q, "why?", question=7)
    delivery, _ = state.lease("r", 1, LOG, LeaseTerms(60.0))
    out = state.give_back("r", delivery.lease.generation, reason="no")
    assert [type(each).__name__ for each in out] == ["StopClock"]
    assert [letter.queue.name for letter in state.leases.dead_letters()] == [LOG]


# -- bounds -----------------------------------------------------------------------------------------


def test_one_that_is_full_gives_up_its_oldest_items_and_counts_them():
    state = tapped(TapTerms(Q, maxsize=2))
    assert len(accepted(put(state, *"abcd"))) == 4
    assert state.num_dropped("log") == 2
    assert take_all(state, LOG) == ["c", "d"]
    assert take_all(state, Q) == list("abcd")
    (depth,) = state.queues.depths()
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
    state.get("r", 1, LOG)
    state.withdraw("r", 1)
    put(state, "c")
    assert take_all(state, LOG) == ["b", "c"]


def test_bytes_are_bounded_but_for_a_single_item():
    state = tapped(TapTerms(Q, max_bytes=100))
    put(state, "large", size_bytes=300)
    assert state.queues.num_items(LOG) == 1
    put(state, "a", size_bytes=60)
    put(state, "b", size_bytes=60)
    assert take_all(state, LOG) == ["b"]


def test_what_is_on_lease_counts_and_stays():
    state = tapped(TapTerms(Q, maxsize=1))
    put(state, "a")
    delivery, _ = state.lease("r", 1, LOG, LeaseTerms(60.0))
    put(state, "b")
    assert state.queues.num_items(LOG) == 0
    assert state.acknowledge("r", delivery.lease.generation) is not None
    put(state, "c")
    assert take_all(state, LOG) == ["c"]


def test_no_put_waits_for_one_that_is_full():
    state = tapped(TapTerms(Q, maxsize=1))
    put(state, "a")
    assert accepted(state.put("producer", 7, Q, "b", wait=False)) == [7]
    assert state.reserve("producer", 8, Q, size_bytes=50) == [Grant("producer", 8)]
    assert accepted(state.fill("producer", 8, "c")) == [8]
    assert take_all(state, LOG) == ["c"]
    assert take_all(state, Q) == ["a", "b", "c"]


def test_a_batch_waits_for_what_takes_the_place_of_its_oldest_items():
    state = tapped(TapTerms(Q, maxsize=2))
    put(state, "a", "b", weight=1)
    assert state.get_batch("r", 1, LOG, 5) == []
    assert delivered(put(state, "c", weight=4)) == [("r", ["b", "c"])]


def test_what_a_subscription_holds_is_not_counted_for_the_channel():
    state = tapped(total_bytes=100)
    put(state, "a", size_bytes=80)
    take_all(state, Q)
    assert state.queues.bounded_bytes == 0
    assert len(accepted(put(state, "b", queue="other", size_bytes=90))) == 1


# -- ends -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [lambda state: state.end(Q), ChannelState.end_all, ChannelState.close])
def test_readers_see_what_there_was_and_then_the_end(end):
    state = tapped()
    put(state, "a")
    end(state)
    assert take_all(state, LOG) == ["a"]
    ((_, reason),) = refused(state.get("r", 1, LOG))
    assert reason in (Reason.ENDED, Reason.CLOSED)


def test_a_reader_that_waits_is_told_of_the_end():
    state = tapped()
    state.get("r", 1, LOG)
    assert refused(state.end(Q)) == [("r", Reason.ENDED)]


def test_one_of_all_queues_ends_with_the_channel():
    state = tapped(TapTerms(None))
    state.get("r", 1, LOG)
    assert refused(state.end(Q)) == []
    assert refused(state.end_all()) == [("r", Reason.ENDED)]


def test_puts_that_wait_when_the_queue_ends_are_seen():
    state = tapped(maxsize=1)
    put(state, "a")
    state.put("producer", 7, Q, "b")
    state.end(Q)
    assert take_all(state, LOG) == ["a"]
    assert state.get("r", 1, LOG) == []
    assert delivered(state.get("c", 1, Q)) == [("c", ["a"]), ("r", ["b"])]
    assert refused(state.get("r", 2, LOG)) == []  # "b" may come back
    assert refused(state.confirm("r", 1)) == [("r", Reason.ENDED)]


def test_a_put_that_gives_up_after_the_end_ends_the_subscription():
    state = tapped(maxsize=1)
    put(state, "a")
    take_all(state, LOG)
    state.put("producer", 7, Q, "b")
    state.end(Q)
    assert state.get("r", 1, LOG) == []
    assert ("r", Reason.ENDED) in refused(state.withdraw("producer", 7))


def test_one_that_begins_after_the_end_has_ended():
    state = ChannelState()
    state.end(Q)
    state.subscribe("reader", 1, "log", TapTerms(Q))
    assert refused(state.get("r", 1, LOG)) == [("r", Reason.ENDED)]


# -- members ----------------------------------------------------------------------------------------


def leave(state, client="reader", number=1):
    vacancy = state.leave_subscription(client, number, "log")
    return None if vacancy is None else state.give_up_subscription("log", vacancy)


def test_without_members_a_subscription_is_gone():
    state = tapped()
    state.get("waiting", 1, LOG)
    assert refused(leave(state)) == [("waiting", Reason.ENDED)]
    put(state, "a")
    assert take_all(state, LOG) == []
    assert refused(state.get("r", 2, LOG)) == [("r", Reason.ENDED)]
    assert take_all(state, Q) == ["a"]
    assert state.queues.depths() == ()


def test_it_goes_on_as_long_as_somebody_reads():
    state = tapped()
    state.subscribe("reader", 2, "log", TapTerms(Q))
    assert leave(state, number=1) is None
    put(state, "a")
    assert take_all(state, LOG) == ["a"]
    assert leave(state, number=2) == []


def test_a_successor_of_the_last_member_goes_on_where_that_was():
    state = tapped()
    put(state, "a")
    assert state.lose_member("reader") == [("log", 1)]
    put(state, "b")
    state.subscribe("successor", 1, "log", TapTerms(Q))
    assert state.give_up_subscription("log", 1) is None
    assert take_all(state, LOG) == ["a", "b"]


def test_an_earlier_vacancy_does_not_end_it_before_the_time_of_the_later_one():
    state = tapped()
    state.lose_member("reader")
    state.subscribe("successor", 1, "log", TapTerms(Q))
    assert state.lose_member("successor") == [("log", 2)]
    assert state.give_up_subscription("log", 1) is None
    assert state.give_up_subscription("log", 2) == []


def test_a_vacancy_of_one_that_is_gone_is_not_that_of_the_next_one_of_its_name():
    state = tapped()
    leave(state)
    state.subscribe("reader", 2, "log", TapTerms(Q))
    assert state.leave_subscription("reader", 2, "log") == 2
    assert state.give_up_subscription("log", 1) is None


@pytest.mark.parametrize("max_attempts", [0, 1])
def test_what_comes_back_to_one_that_is_gone_is_dropped(max_attempts):
    state = tapped(max_attempts=max_attempts, total_bytes=1000)
    put(state, "a", "b", size_bytes=10)
    state.get("r", 1, LOG)
    delivery, _ = state.lease("r", 2, LOG, LeaseTerms(60.0))
    leave(state)
    state.withdraw("r", 1)
    state.give_back("r", delivery.lease.generation, reason="no")
    take_all(state, Q)
    assert state.queues.depths() == ()
    assert state.leases.dead_letters() == []
    assert state.queues.total_held_bytes == 0
    state.subscribe("reader", 2, "log", TapTerms(Q))
    assert take_all(state, LOG) == []


def test_nothing_is_known_of_a_member_that_has_left():
    state = tapped()
    leave(state)
    assert state.leave_subscription("reader", 1, "log") is None
    assert state.lose_member("reader") == []


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
    assert delivered(state.get_batch("r", 1, LOG, None, Limits(max_items=2))) == [("r", ["a", "b"])]


def at_rest(state):
    snapshot = state.snapshot(at_rest=True)
    restored = ChannelState()
    restore(restored, snapshot)
    return restored


def test_a_checkpoint_holds_a_subscription_with_what_nobody_has_read_and_without_its_members():
    state = tapped(max_attempts=1)
    put(state, "a", "b", "c", "d")
    delivery, _ = state.lease("reader", 1, LOG, LeaseTerms(60.0))
    state.give_back("reader", delivery.lease.generation, reason="no")
    state.get("reader", 2, LOG)
    state.confirm("reader", 2)
    state.get("reader", 3, LOG)
    restored = at_rest(state)
    assert restored.vacant_subscriptions() == [("log", 0)]
    assert restored.terms_of("log") == state.terms_of("log")
    assert [(letter.queue.name, letter.item.payload) for letter in restored.leases.dead_letters()] == [
        (LOG, "a")
    ]
    assert take_all(restored, LOG) == ["c", "d"]
    put(restored, "e")
    assert take_all(restored, LOG) == ["e"]
    assert take_all(restored, Q) == list("abcde")


def test_a_checkpoint_holds_no_subscription_that_nobody_reads_any_more():
    state = tapped()
    put(state, "a")
    state.lease("reader", 1, LOG, LeaseTerms(60.0))
    state.give_up_subscription("log", state.leave_subscription("reader", 1, "log"))
    restored = at_rest(state)
    assert [depth.name for depth in restored.queues.depths()] == [Q]


def test_what_a_subscription_has_lost_is_counted_where_it_was_put_in_a_checkpoint_too():
    state = tapped()
    put(state, "a", "b", size_bytes=10)
    take_all(state, Q)
    state.lease("reader", 1, LOG, LeaseTerms(60.0))
    state.lose_items(lambda _: "went")
    assert at_rest(state).queues.num_lost == 0


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
