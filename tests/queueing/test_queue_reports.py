"""What a channel reports of itself: who waits for what and since when, by queue."""

from dataclasses import asdict, replace
from time import process_time

import pytest

from rlinf_scheduler.queueing.item import Item, SubscriptionName
from rlinf_scheduler.queueing.leases import Leases, LeaseTerms
from rlinf_scheduler.queueing.messages import Get, Put
from rlinf_scheduler.queueing.state import ChannelState
from rlinf_scheduler.queueing.stats import (
    QueueDepth,
    QueueStats,
    Waiting,
    counts_of,
    decode_rows,
    encode_rows,
)
from rlinf_scheduler.queueing.surveying import NUM_LARGEST, NUM_QUEUES, QueueSurvey, SurveyContext
from rlinf_scheduler.queueing.taps import Subscribe
from rlinf_scheduler.queueing.versions import AskForSlot
from rlinf_scheduler.queueing.wanted import Limits


def state_at(now, **options):
    state = ChannelState(**options)
    state.set_clock(now)
    return state


class Named(dict):
    """Processes that are called as their clients are."""

    def get(self, client, _default=""):
        return client


AT_20 = SurveyContext(20.0, Named())


def report(state):
    return [queue for part in QueueSurvey(state).every(1000, AT_20) for queue in part()]


def test_items_waits_and_leases_have_their_ages_on_the_shells_clock():
    state = state_at(10.0)
    state.apply(Put(1, "q"), "producer", Item("x", 3, 100))
    state.set_clock(12.0)
    state.apply(Get(2, "q", batch_weight=8), "consumer")
    (queue,) = report(state)
    assert queue.oldest_s == 10.0
    assert queue.waiting == (Waiting("consumer", "get_batch of weight 8", 8.0),)
    assert queue.held == ()


def test_what_a_consumer_has_stands_at_its_own_queue():
    state = state_at(1.0)
    for queue in ("a", "b"):
        state.apply(Put(len(queue), queue), "producer", Item(queue, 0, 10))
    state.apply(Get(5, "a"), "taker")
    state.apply(Get(6, "b", grant=LeaseTerms(60.0)), "holder")
    held = {queue.depth.name: [(each.who, each.operation) for each in queue.held] for queue in report(state)}
    assert held == {
        "a": [("taker", "delivery of 1 item, on the way")],
        "b": [("holder", "lease of 1 item")],
    }


def test_the_bound_that_the_first_put_waits_for_is_named():
    state = state_at(1.0, maxsize=1)
    state.apply(Put(1, "q"), "producer", Item("x"))
    state.apply(Put(2, "q"), "producer", Item("y", 0, 7))
    (queue,) = report(state)
    assert queue.limits == ("maxsize 1",)
    assert [each.operation for each in queue.waiting] == ["put of 7 bytes"]


def test_whoever_asks_is_named_until_the_question_is_taken():
    state = state_at(1.0)
    state.apply(Put(1, "q"), "asker", Item("why", question=("asker", 9)))
    assert [each.who for each in report(state)[0].waiting] == ["asker"]
    state.apply(Get(2, "q", limits=Limits(max_items=4), grant=LeaseTerms(60.0)), "server")
    (queue,) = report(state)
    assert queue.waiting == ()
    assert [each.operation for each in queue.held] == ["lease of 1 question"]


def test_many_queues_with_a_lease_each_are_looked_through_once():
    state = state_at(1.0)
    for number in range(200):
        state.apply(Put(number, ("q", number)), "producer", Item("x"))
        state.apply(Get(1000 + number, ("q", number), grant=LeaseTerms(60.0)), "consumer")
    looks = []
    every = state.policy(Leases).all
    state.policy(Leases).all = lambda: looks.append(1) or every()
    assert sum(len(queue.held) for queue in report(state)) == 200
    assert len(looks) == 1


def test_an_overview_has_what_all_queues_hold_and_who_has_waited_longest():
    state = state_at(10.0)
    for number in range(3):
        state.apply(Put(number, "full"), "producer", Item("x"))
    state.set_clock(12.0)
    state.apply(Put(3, "other"), "producer", Item("y"))
    state.apply(Get(4, "empty"), "taker")
    state.set_clock(13.0)
    state.apply(Get(5, "empty"), "late")
    state.apply(Get(6, "full", grant=LeaseTerms(60.0)), "holder")
    shown, oldest_s = QueueSurvey(state).foremost(1, AT_20)
    stats = counts_of(state.queues)
    assert (stats.num_items, stats.num_leased, stats.num_queues, oldest_s) == (3, 1, 3, 10.0)
    assert [(each.depth.name, each.depth.num_items, each.oldest_s) for each in shown] == [
        ("full", 2, 10.0),
        ("empty", 0, None),
    ]
    assert shown[1].waiting == (Waiting("taker", "get", 8.0), Waiting("late", "get", 7.0))


def test_an_overview_looks_at_no_more_of_a_queue_when_it_holds_more():
    state = state_at(10.0)
    for number in range(30_000):
        state.apply(Put(number, "prompts"), "producer", Item("x", group=number))
    began = process_time()
    shown, _ = QueueSurvey(state).foremost(1, AT_20)
    assert (shown[0].depth.num_items, shown[0].depth.groups) == (30_000, ())
    assert process_time() - began < 0.05


def test_in_an_overview_items_that_subscriptions_see_are_not_counted_again():
    state = state_at(1.0)
    state.apply(Subscribe(1, "log", None), "reader")
    state.apply(Put(1, "q"), "producer", Item("x"))
    stats, (shown, _) = counts_of(state.queues), QueueSurvey(state).foremost(5, AT_20)
    assert (stats.num_items, stats.num_queues) == (1, 1)
    assert {repr(each.depth.name): each.depth.num_items for each in shown} == {
        "'q'": 1,
        "'log' (a subscription)": 1,
    }


def test_of_very_many_queues_a_look_sees_the_next_ones_and_the_largest_known_until_it_has_seen_all():
    state = state_at(1.0)
    for number in range(3 * NUM_QUEUES):
        state.apply(Put(number, number), "producer", Item("x"))
    for number in range(5):
        state.apply(Put(f"more{number}", 2 * NUM_QUEUES + 7), "producer", Item("x"))
    survey = QueueSurvey(state)

    def look():
        return {queue.name: queue.fifo.num_items for queue in survey.looked_at()}

    looks = [look() for _ in range(4)]
    assert all(len(look) <= NUM_QUEUES + NUM_LARGEST for look in looks)
    assert set().union(*looks) == set(range(3 * NUM_QUEUES))
    assert looks[2][2 * NUM_QUEUES + 7] == looks[3][2 * NUM_QUEUES + 7] == 6
    ((largest,), _) = survey.foremost(1, AT_20)
    assert (largest.depth.name, largest.depth.num_items) == (2 * NUM_QUEUES + 7, 6)
    for number in range(6):
        state.apply(Get(number, 2 * NUM_QUEUES + 7), "consumer")
    state.confirm("consumer", range(6))
    assert 2 * NUM_QUEUES + 7 not in look()  # it is gone


def test_a_listing_in_parts_leaves_out_what_has_gone_before_its_part():
    state = state_at(1.0)
    for number in range(5):
        state.apply(Put(number, number), "producer", Item("x"))
    parts, reports = QueueSurvey(state).depths(2, []), QueueSurvey(state).every(2, AT_20)
    first = parts[0]()
    for number in (1, 4):
        state.apply(Get(number, number), "consumer")
        state.confirm("consumer", (number,))
    assert [depth.name for depth in (*first, *parts[1](), *parts[2]())] == [0, 1, 2, 3]
    assert [queue.depth.name for part in reports for queue in part()] == [0, 2, 3]


def test_queues_in_use_are_those_at_which_somebody_waits_or_of_which_somebody_has_something():
    state = state_at(1.0)
    for queue in ("idle", "delivered", "leased", "given slots", "asked"):
        if queue != "given slots":
            question = ("producer", 7) if queue == "asked" else None
            state.apply(Put(queue, queue), "producer", Item("x", question=question))
    state.apply(Get(1, "waited"), "consumer")
    state.apply(Get(2, "delivered"), "consumer")
    state.apply(Get(3, "leased", grant=LeaseTerms(60.0)), "consumer")
    state.apply(AskForSlot(4, "given slots", True, 1), "producer")
    assert {each.depth.name for each in QueueSurvey(state).in_use(AT_20)} == {
        "waited",
        "delivered",
        "leased",
        "given slots",
        "asked",
    }
    assert [each.depth.name for each in QueueSurvey(state).of(["idle", "none"], AT_20)] == ["idle"]


def test_a_listing_carries_queues_without_names_and_gives_them_as_they_were():
    depths = [
        QueueDepth(("a", None, 1), 2, 0.5, groups=((("p", 2), 1),)),
        QueueDepth(SubscriptionName("seen"), num_dropped=3),
    ]
    stats = [
        QueueStats(depth, 1.5, (Waiting("env:0", "get", 2.0),), limits=("maxsize 8",)) for depth in depths
    ]
    assert decode_rows(encode_rows(depths), QueueDepth) == depths
    assert decode_rows(encode_rows(stats), QueueStats) == stats
    assert b"num_items" not in encode_rows(stats)


def test_records_of_a_channel_are_dataclasses_to_who_wants_them_as_plain_data():
    stats = QueueStats(QueueDepth("a", 2))
    assert asdict(stats)["depth"]["num_items"] == 2
    assert replace(stats, ended=True).ended
    with pytest.raises(AttributeError):
        stats.ended = True


def test_a_large_weight_is_told_as_it_is():
    state = state_at(10.0)
    state.apply(Put(1, "q"), "producer", Item("x", 1234567, 1))
    (queue,) = report(state)
    assert next(queue.lines()).startswith(
        "queue 'q': 1 item of weight 1234567, 1 byte, the next one is 10.0 s old"
    )
