"""Items of a group come together, once there are enough of them, wherever they stand."""

import random
from collections import Counter, defaultdict
from time import process_time

import pytest

from effort import case, tries
from rlinf_scheduler.queueing.item import Item
from rlinf_scheduler.queueing.messages import Deliver, EndQueue, Flush, Get, Put, Reason, Refuse, Withdraw
from rlinf_scheduler.queueing.out_of_turn import MIN_STALE, GroupIndex
from rlinf_scheduler.queueing.out_of_turn import MIN_STALE as STALE_GROUPS
from rlinf_scheduler.queueing.state import ChannelState
from rlinf_scheduler.queueing.stats import depths_of
from rlinf_scheduler.queueing.surveying import QueueSurvey
from rlinf_scheduler.queueing.wanted import NO_LIMITS

Q = "default"


def filled(*groups, maxsize=0):
    state = ChannelState(maxsize)
    for number, group in enumerate(groups):
        state.apply(Put(number, Q), "p", Item(number, group=group))
    return state


def got(out):
    (deliver,) = out
    assert isinstance(deliver, Deliver)
    return deliver.group, [item.payload for item in deliver.items], deliver.complete


def test_the_group_that_is_complete_first_comes_first_with_its_items_in_order():
    state = filled("a", "b", "b", "a")
    assert got(state.apply(Get(1, Q, group_size=2), "c")) == ("b", [1, 2], True)
    assert got(state.apply(Get(2, Q, group_size=2), "c")) == ("a", [0, 3], True)
    assert state.apply(Get(3, Q, group_size=2), "c") == []


def test_a_getter_waits_for_the_last_item_of_a_group():
    state = filled("a", "b", "a")
    assert state.apply(Get(1, Q, group_size=3), "c") == []
    *_, deliver = state.apply(Put(9, Q), "p", Item(9, group="a"))
    assert got([deliver]) == ("a", [0, 2, 9], True)


def test_of_a_larger_group_the_first_items_come():
    state = filled("a", "a", "a")
    assert got(state.apply(Get(1, Q, group_size=2), "c")) == ("a", [0, 1], True)
    assert state.apply(Get(2, Q, group_size=2), "c") == []


def test_a_group_that_comes_back_is_the_first_again():
    state = filled("a", "a", "b", "b")
    state.apply(Get(1, Q, group_size=2), "c")
    state.apply(Withdraw(1), "c")
    assert got(state.apply(Get(2, Q, group_size=2), "c")) == ("a", [0, 1], True)
    assert got(state.apply(Get(3, Q, group_size=2), "c")) == ("b", [2, 3], True)


def test_a_get_may_break_a_group_up():
    state = filled("a", "a", None, "b", "b")
    assert state.apply(Get(9, Q, group_size=3), "c") == []
    state.apply(Withdraw(9), "c")
    state.apply(Get(1, Q), "c")
    assert got(state.apply(Get(2, Q, group_size=2), "c")) == ("b", [3, 4], True)
    assert [item.payload for item in state.apply(Get(3, Q, limits=NO_LIMITS), "c")[0].items] == [1, 2]


def test_at_the_end_what_is_left_comes_group_by_group_and_what_has_none_stays():
    state = filled("b", "a", None, "b")
    assert state.apply(Get(1, Q, group_size=3), "c") == []
    assert got(state.apply(EndQueue(Q))) == ("b", [0, 3], False)
    assert got(state.apply(Get(2, Q, group_size=3), "c")) == ("a", [1], False)
    state.confirm("c", (1,))
    state.confirm("c", (2,))
    (refused,) = state.apply(Get(3, Q, group_size=3), "c")
    assert refused.reason is Reason.ENDED
    assert QueueSurvey(state).num_items(Q) == 1


def test_a_flush_gives_groups_that_were_begun_before_it():
    state = filled("a")
    state.apply(Flush(Q))
    state.apply(Put(8, Q), "p", Item(8, group="b"))
    assert got(state.apply(Get(1, Q, group_size=3), "c")) == ("a", [0], False)
    assert state.apply(Get(2, Q, group_size=3), "c") == []


def test_a_full_queue_without_a_complete_group_says_so():
    state = filled("a", "b", maxsize=2)
    (refused,) = state.apply(Get(1, Q, group_size=2), "c")
    assert refused.reason is Reason.IMPOSSIBLE
    assert "in 2 groups (the largest, 'a', has 1)" in refused.state


def test_what_is_there_of_each_group_can_be_seen():
    state = filled("a", 7, "a", None, ("x", 1))
    (depth,) = depths_of(state.queues)
    assert dict(depth.groups) == {"a": 2, 7: 1, ("x", 1): 1}


def test_a_group_of_less_than_nothing_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        ChannelState().apply(Get(1, Q, group_size=-1), "c")


def test_groups_that_pass_one_that_is_stuck_leave_nothing_behind():
    state = filled("stuck")
    for number in range(1000):
        state.apply(Put(2 * number + 10, Q), "p", Item(number, group=number))
        state.apply(Put(2 * number + 11, Q), "p", Item(number, group=number))
        (deliver,) = state.apply(Get(number, Q, group_size=2), "c")
        state.confirm("c", (number,))
        assert deliver.group == number
    fifo = state.queues.find(Q).fifo
    assert len(fifo._ranked._by_rank) <= MIN_STALE + 3
    assert len(fifo._ranked._by_age) <= MIN_STALE + 3


class Naive:
    """Groups once more, obviously right."""

    def __init__(self):
        self.items = []  # (order, group)

    def group(self, size, *, over):
        members = defaultdict(list)
        for order, group in sorted(self.items):
            if group is not None:
                members[group].append((order, group))
        complete = [(each[size - 1][0], each[:size]) for each in members.values() if len(each) >= size]
        if complete:
            return min(complete)[1]
        return min(members.values())[:size] if over and members else []


class Story:
    """Puts, gets and returns in any order, beside the naive model."""

    def __init__(self, seed):
        self.dice = random.Random(seed)
        self.state, self.naive = ChannelState(), Naive()
        self.sizes, self.priorities = self.dice.choice([(2,), (2, 3)]), self.dice.choice([(0,), (0, 1)])
        self.held = {}
        self.num_put = 0
        self.over = False

    def put(self, ticket):
        if not self.over:
            group = self.dice.choice([None, "a", "b", "c", 1, 2])
            priority = self.dice.choice(self.priorities)
            self.state.apply(Put(ticket, Q), "p", Item(self.num_put, priority=priority, group=group))
            self.naive.items.append((self.num_put, group))
            self.num_put += 1

    def end(self, ticket):
        if ticket > 250:
            self.over = True
            self.state.apply(EndQueue(Q))

    def settle(self, _ticket):
        if self.held:
            ticket = self.dice.choice(sorted(self.held))
            items = self.held.pop(ticket)
            if self.dice.random() < 0.5:
                self.state.apply(Withdraw(ticket), "c")
                self.naive.items += items
            else:
                self.state.confirm("c", (ticket,))

    def get(self, ticket):
        self.follow(ticket, self.state.apply(Get(ticket, Q, wait=False), "c"))

    def get_group(self, ticket):
        size = self.dice.choice(self.sizes)
        out = self.state.apply(Get(ticket, Q, wait=False, group_size=size), "c")
        expected = self.naive.group(size, over=self.over)
        if expected:
            assert got(out)[1:] == ([order for order, _ in expected], len(expected) == size)
        else:
            assert isinstance(out[0], Refuse)
        self.follow(ticket, out)

    def follow(self, ticket, out):
        if isinstance(out[0], Deliver):
            self.held[ticket] = [(item.payload, item.group) for item in out[0].items]
            self.naive.items = [each for each in self.naive.items if each not in self.held[ticket]]

    def check(self):
        (depth,) = depths_of(self.state.queues) or (None,)
        assert (depth.num_items if depth else 0) == len(self.naive.items)
        counts = Counter(group for _, group in self.naive.items if group is not None)
        assert dict(depth.groups if depth else ()) == counts


def test_in_any_order_of_puts_gets_and_returns_it_is_as_the_rules_say():
    for seed in range(tries(60)):
        story = Story(seed)
        steps = [story.put] * 3 + [story.get_group] * 2 + [story.get, story.settle, story.settle, story.end]
        with case(seed):
            for ticket in range(300):
                story.dice.choice(steps)(ticket)
                story.check()


def test_a_put_does_not_look_at_every_group_while_somebody_waits_for_one(monkeypatch):
    state = ChannelState()
    assert state.apply(Get(1, Q, group_size=2), "c") == []
    looked = []
    monkeypatch.setattr(GroupIndex, "oldest", looked.append)
    for number in range(100):
        state.apply(Put(number, Q), "p", Item(number, group=number))
    assert looked == []


def test_a_size_that_somebody_asked_for_once_leaves_nothing_behind():
    state = filled("waits")
    state.apply(Get(1, Q, wait=False, group_size=2), "c")
    for number in range(1000):
        for sample in range(4):
            state.apply(Put(4 * number + sample, Q), "p", Item(sample, group=number))
        state.apply(Get(2 + number, Q, group_size=4), "c")
        state.confirm("c", (2 + number,))
    (complete, _) = state.queues.find(Q).fifo.groups._complete.values()
    assert len(complete._heap) <= STALE_GROUPS + 3


def cost_of_draining(num_groups):
    best = 1e9
    for _ in range(3):
        state = ChannelState()
        for number in range(num_groups):
            state.apply(Put(number, Q), "p", Item(number, group=number))
        state.apply(EndQueue(Q))
        began = process_time()
        for number in range(num_groups):
            state.apply(Get(number, Q, group_size=2), "c")
            state.confirm("c", (number,))
        best = min(best, process_time() - began)
    return best


def test_what_a_group_costs_at_the_end_does_not_depend_on_how_many_are_incomplete():
    assert cost_of_draining(4000) < 20 * cost_of_draining(500)
