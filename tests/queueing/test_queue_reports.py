"""What a channel reports of itself: who waits for what and since when, by queue."""

from rlinf_scheduler.queueing import ChannelState, LeaseTerms, Limits, TapTerms
from rlinf_scheduler.queueing.overview import NUM_LARGEST, NUM_QUEUES


def state_at(now, **options):
    state = ChannelState(**options)
    state.set_clock(now)
    return state


def test_items_waits_and_leases_have_their_ages_on_the_shells_clock():
    state = state_at(10.0)
    state.put("producer", 1, "q", "x", 3, 100)
    state.set_clock(12.0)
    state.get_batch("consumer", 2, "q", 8)
    (report,) = state.report()
    assert report.oldest_since == 10.0
    assert [tuple(each) for each in report.waiting] == [("consumer", "get_batch of weight 8", 12.0)]
    assert report.held == []


def test_what_a_consumer_has_stands_at_its_own_queue():
    state = state_at(1.0)
    for queue in ("a", "b"):
        state.put("producer", len(queue), queue, queue, 0, 10)
    state.get("taker", 5, "a")
    state.lease("holder", 6, "b", LeaseTerms(60.0))
    held = {report.depth.name: [each[:2] for each in report.held] for report in state.report()}
    assert held == {
        "a": [("taker", "delivery of 1 items, on the way")],
        "b": [("holder", "lease of 1 item")],
    }


def test_the_bound_that_the_first_put_waits_for_is_named():
    state = state_at(1.0, maxsize=1)
    state.put("producer", 1, "q", "x")
    state.put("producer", 2, "q", "y", 0, 7)
    (report,) = state.report()
    assert report.limits == ["maxsize 1"]
    assert [each.operation for each in report.waiting] == ["put of 7 bytes"]


def test_whoever_asks_is_named_until_the_question_is_taken():
    state = state_at(1.0)
    state.put("asker", 1, "q", "why", question=9)
    assert [each.client for each in state.report()[0].waiting] == ["asker"]
    state.lease("server", 2, "q", LeaseTerms(60.0), limits=Limits(max_items=4))
    (report,) = state.report()
    assert report.waiting == []
    assert [each.operation for each in report.held] == ["lease of 1 question"]


def test_many_queues_with_a_lease_each_are_looked_through_once():
    state = state_at(1.0)
    for number in range(200):
        state.put("producer", number, ("q", number), "x")
        state.lease("consumer", 1000 + number, ("q", number), LeaseTerms(60.0))
    looks = []
    every = state.leases.all
    state.leases.all = lambda: looks.append(1) or every()
    assert sum(len(report.held) for report in state.report()) == 200
    assert len(looks) == 1


def test_an_overview_has_what_all_queues_hold_and_who_has_waited_longest():
    state = state_at(10.0)
    for number in range(3):
        state.put("producer", number, "full", "x")
    state.set_clock(12.0)
    state.put("producer", 3, "other", "y")
    state.get("taker", 4, "empty")
    state.set_clock(13.0)
    state.get("late", 5, "empty")
    state.lease("holder", 6, "full", LeaseTerms(60.0))
    found = state.overview(2)
    assert (*found.totals, found.oldest_since) == (3, 0, 1, 0, 3, 10.0)
    assert [tuple(queue) for queue in found.busiest] == [("full", 2, 10.0), ("other", 1, 12.0)]
    assert [(name, each.client, each.since) for name, each in found.waiting] == [
        ("empty", "taker", 12.0),
        ("empty", "late", 13.0),
    ]


def test_in_an_overview_items_that_subscriptions_see_are_not_counted_again():
    state = state_at(1.0)
    state.subscribe("reader", 1, "log", TapTerms(None))
    state.put("producer", 1, "q", "x")
    found = state.overview(5)
    assert (found.totals.num_items, found.totals.num_queues) == (1, 1)
    assert {repr(queue.name): queue.num_items for queue in found.busiest} == {
        "'q'": 1,
        "'log' (a subscription)": 1,
    }


def test_of_very_many_queues_a_look_sees_the_next_ones_and_the_largest_known_until_it_has_seen_all():
    state = state_at(1.0)
    for number in range(3 * NUM_QUEUES):
        state.put("producer", number, number, "x")
    for number in range(5):
        state.put("producer", f"more{number}", 2 * NUM_QUEUES + 7, "x")
    looks = [dict(state.survey()) for _ in range(4)]
    assert all(len(look) <= NUM_QUEUES + NUM_LARGEST for look in looks)
    assert set().union(*looks) == set(range(3 * NUM_QUEUES))
    assert looks[2][2 * NUM_QUEUES + 7] == looks[3][2 * NUM_QUEUES + 7] == 6
    assert state.overview(1).busiest[0][:2] == (2 * NUM_QUEUES + 7, 6)
    for number in range(6):
        state.get("consumer", number, 2 * NUM_QUEUES + 7)
    state.confirm_run("consumer", range(6))
    assert 2 * NUM_QUEUES + 7 not in dict(state.survey())  # it is gone


def test_a_listing_in_parts_leaves_out_what_has_gone_before_its_part():
    state = state_at(1.0)
    for number in range(5):
        state.put("producer", number, number, "x")
    parts, reports = state.depths_in_parts(2), state.report_in_parts(2)
    first = parts[0]()
    for number in (1, 4):
        state.get("consumer", number, number)
        state.confirm("consumer", number)
    assert [depth.name for depth in (*first, *parts[1](), *parts[2]())] == [0, 1, 2, 3]
    assert [report.depth.name for part in reports for report in part()] == [0, 2, 3]


def test_queues_in_use_are_those_at_which_somebody_waits_or_of_which_somebody_has_something():
    state = state_at(1.0)
    for queue in ("idle", "delivered", "leased", "given slots", "asked"):
        if queue != "given slots":
            state.put("producer", queue, queue, "x", question=7 if queue == "asked" else 0)
    state.get("consumer", 1, "waited")
    state.get("consumer", 2, "delivered")
    state.lease("consumer", 3, "leased", LeaseTerms(60.0))
    state.admit("producer", 4, "given slots", 1)
    assert {each.depth.name for each in state.report_in_use()} == {
        "waited",
        "delivered",
        "leased",
        "given slots",
        "asked",
    }
    assert [each.depth.name for each in state.report_on(["idle", "none"])] == ["idle"]
