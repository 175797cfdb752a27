"""Shards of one queue: the same steps and the same end for all, whoever dies."""

import random
from collections import defaultdict

import pytest

from rlinf_scheduler.queueing.item import Item
from rlinf_scheduler.queueing.messages import (
    Deliver,
    EndQueue,
    Flush,
    Get,
    Lose,
    Put,
    Reason,
    Refuse,
    Withdraw,
)
from rlinf_scheduler.queueing.shard_plan import POLICIES, ShardPlan
from rlinf_scheduler.queueing.sharding import MAX_AHEAD, WantedPart
from rlinf_scheduler.queueing.state import ChannelState
from rlinf_scheduler.queueing.stats import depths_of
from rlinf_scheduler.queueing.surveying import QueueSurvey

Q = "default"


def filled(weights):
    state = ChannelState()
    for number, weight in enumerate(weights):
        state.apply(Put(number, Q), "p", Item(number, weight))
    return state


def payloads(instruction):
    assert isinstance(instruction, Deliver)
    return [item.payload for item in instruction.items]


def test_each_shard_gets_its_part_of_the_same_step():
    state, plan = filled([1] * 6), ShardPlan(2, batch_items=4)
    (one,) = state.apply(Get(100, Q, grant=WantedPart(plan, 0)), "a")
    (two,) = state.apply(Get(101, Q, grant=WantedPart(plan, 1)), "b")
    assert (payloads(one), payloads(two)) == ([0, 2], [1, 3])
    assert one.grant.step == two.grant.step == 0
    assert state.apply(Get(102, Q, grant=WantedPart(plan, 0, 0)), "a") == []


def test_a_step_by_weight_is_of_all_parts_together():
    state, plan = filled([5, 1, 1, 1, 5]), ShardPlan(2, "least_loaded", batch_weight=8)
    (one,) = state.apply(Get(100, Q, grant=WantedPart(plan, 0)), "a")
    (two,) = state.apply(Get(101, Q, grant=WantedPart(plan, 1)), "b")
    assert (payloads(one), payloads(two)) == ([0], [1, 2, 3])
    assert (one.grant.weight, two.grant.weight, one.grant.imbalance) == (5, 3, 1.25)


def test_what_is_left_is_a_last_step_for_all_and_then_the_end_for_all():
    state, plan = filled([1]), ShardPlan(2, batch_items=4)
    assert state.apply(Get(100, Q, grant=WantedPart(plan, 0)), "a") == []
    assert state.apply(Get(101, Q, grant=WantedPart(plan, 1)), "b") == []
    one, two = state.apply(EndQueue(Q))
    assert (payloads(one), payloads(two)) == ([0], [])
    assert not one.complete
    assert not two.complete
    for client, index in (("a", 0), ("b", 1)):
        (refused,) = state.apply(Get(200 + index, Q, grant=WantedPart(plan, index, 0)), client)
        assert refused.reason is Reason.ENDED
    assert depths_of(state.queues) == ()


def test_without_a_size_a_step_is_what_is_there_at_a_flush():
    state, plan = filled([1, 2]), ShardPlan(1, "balanced")
    assert state.apply(Get(100, Q, grant=WantedPart(plan, 0)), "a") == []
    (deliver,) = state.apply(Flush(Q))
    assert payloads(deliver) == [0, 1]
    assert deliver.complete


def test_a_successor_gets_the_part_that_a_rank_died_with():
    state, plan = filled([1] * 4), ShardPlan(2, batch_items=2)
    (first,) = state.apply(Get(100, Q, grant=WantedPart(plan, 0)), "a")
    state.confirm("a", (100,))
    state.apply(Lose(), "a")
    (again,) = state.apply(Get(101, Q, grant=WantedPart(plan, 0)), "c")
    assert (payloads(again), again.grant.step) == (payloads(first), 0)
    (after,) = state.apply(Get(102, Q, grant=WantedPart(plan, 0, 0)), "c")
    assert (payloads(after), after.grant.step) == ([2], 1)


def test_a_part_that_was_given_back_comes_again():
    state, plan = filled([1] * 2), ShardPlan(1, batch_items=1)
    (first,) = state.apply(Get(100, Q, grant=WantedPart(plan, 0)), "a")
    state.apply(Withdraw(100), "a")
    assert QueueSurvey(state).num_items(Q) == 1
    (again,) = state.apply(Get(101, Q, grant=WantedPart(plan, 0)), "a")
    assert payloads(again) == payloads(first)


def test_who_asks_last_has_the_shard():
    state, plan = filled([]), ShardPlan(1, batch_items=1)
    state.apply(Get(100, Q, grant=WantedPart(plan, 0)), "a")
    (refused,) = state.apply(Get(101, Q, grant=WantedPart(plan, 0)), "b")
    assert (refused.client, refused.reason) == ("a", Reason.SUCCEEDED)
    *_, deliver = state.apply(Put(1, Q), "p", Item("x"))
    assert deliver.client == "b"


def test_a_shard_that_lags_holds_the_others_up():
    state, plan = filled([1] * 100), ShardPlan(2, batch_items=2)
    step = -1
    while out := state.apply(Get(100 + step, Q, grant=WantedPart(plan, 0, step)), "a"):
        step = out[0].grant.step
    assert step == MAX_AHEAD - 1
    assert f"shard 1 has {MAX_AHEAD} steps to do" in state.queues.describe(Q)
    state.apply(Get(900, Q, grant=WantedPart(plan, 1)), "b")
    (b, a) = state.apply(Get(901, Q, grant=WantedPart(plan, 1, 0)), "b")
    assert {b.client, a.client} == {"a", "b"}


@pytest.mark.parametrize(
    ("plan", "index"),
    [
        (ShardPlan(0), 0),
        (ShardPlan(2), 2),
        (ShardPlan(2), -1),
        (ShardPlan(2, "random"), 0),
        (ShardPlan(2, batch_weight=1, batch_items=1), 0),
        (ShardPlan(2, batch_weight=0), 0),
        (ShardPlan(2, batch_items=0), 0),
    ],
)
def test_plans_that_make_no_sense_are_refused(plan, index):
    with pytest.raises(ValueError, match=r"shard|policy|batch"):
        ChannelState().apply(Get(1, Q, grant=WantedPart(plan, index)), "a")


def test_a_count_of_shards_that_changes_is_refused():
    state = filled([])
    state.apply(Get(1, Q, grant=WantedPart(ShardPlan(2, batch_items=4), 0)), "a")
    said = r"^other shards divide it by num_shards=2, and this one by num_shards=3$"
    with pytest.raises(ValueError, match=said):
        state.apply(Get(2, Q, grant=WantedPart(ShardPlan(3, batch_items=4), 0)), "b")


def test_costs_that_differ_are_told_in_short():
    state, points = filled([]), ((0, 0), (1, 1))
    state.apply(Get(1, Q, grant=WantedPart(ShardPlan(2, batch_items=4, cost_table=points), 0)), "a")
    with pytest.raises(ValueError, match="by cost_table=2 points, and this one by cost_table=0 points"):
        state.apply(Get(2, Q, grant=WantedPart(ShardPlan(2, batch_items=4), 0)), "b")


class Rank:
    def __init__(self, index):
        self.index = index
        self.client = f"rank{index}"
        self.num_lives = 1
        self.done = -1  # of the trainer: the last step that it need not see again
        self.knows = True  # this life of it has had a batch, or is the first
        self.ticket = None
        self.over = False


class Story:
    """Ranks that train, die at any moment and are succeeded, while items come; and what each trained on."""

    def __init__(self, seed):
        self.dice = random.Random(seed)
        dice = self.dice
        sizes = dice.choice([{"batch_items": dice.randint(1, 6)}, {"batch_weight": dice.randint(1, 9)}, {}])
        policy, equal_counts = dice.choice(POLICIES), dice.random() < 0.5
        self.plan = ShardPlan(dice.randint(1, 4), policy, **sizes, equal_counts=equal_counts)
        self.state = ChannelState()
        self.ranks = [Rank(index) for index in range(self.plan.num_shards)]
        self.count = dice.randint(0, 30)
        self.left = list(range(self.count))
        self.by_ticket = {}
        self.trained = defaultdict(dict)

    def run(self):
        for _ in range(10_000):
            if all(rank.over for rank in self.ranks):
                return
            steps = [self.ask] * 6 + [self.put] * 3 + [self.flush, self.die, self.end]
            self.follow(self.dice.choice(steps)(self.dice.choice(self.ranks)))
        pytest.fail("it does not end")

    def put(self, _rank):
        if not self.left:
            return []
        number = self.left.pop(0)
        return self.state.apply(Put(number, Q), "p", Item(number, self.dice.randint(0, 4)))

    def flush(self, _rank):
        return self.state.apply(Flush(Q))

    def end(self, _rank):
        return [] if self.left else self.state.apply(EndQueue(Q))

    def die(self, rank):
        if rank.over or rank.num_lives > 5:
            return []
        gone = rank.client
        rank.num_lives += 1
        rank.client, rank.ticket, rank.knows = f"rank{rank.index}.{rank.num_lives}", None, False
        return self.state.apply(Lose(), gone)

    def ask(self, rank):
        if rank.over or rank.ticket is not None:
            return []
        rank.ticket = 1000 + len(self.by_ticket)
        self.by_ticket[rank.ticket] = rank
        if rank.knows:
            rank.done = max(self.steps_of(rank), default=-1)
        asked = rank.done if rank.knows else -1
        return self.state.apply(
            Get(rank.ticket, Q, grant=WantedPart(self.plan, rank.index, asked)), rank.client
        )

    def steps_of(self, rank):
        return [step for step, parts in self.trained.items() if rank.index in parts]

    def follow(self, out):
        for each in out:
            rank = self.by_ticket.get(each.ticket)
            if isinstance(each, Refuse):
                assert each.reason is Reason.ENDED
                rank.over = True
            elif isinstance(each, Deliver):
                got = payloads(each)
                assert each.grant.step == rank.done + 1
                assert self.trained[each.grant.step].setdefault(rank.index, got) == got
                rank.ticket, rank.knows = None, True
                self.state.confirm(each.client, (each.ticket,))


def test_in_any_order_of_deaths_every_item_is_trained_on_once_and_all_see_the_same_steps():
    for seed in range(400):
        story = Story(seed)
        story.run()
        trained, num_shards = story.trained, story.plan.num_shards
        assert sorted(trained) == list(range(len(trained)))
        assert all(len(parts) == num_shards for parts in trained.values())
        items = [item for parts in trained.values() for part in parts.values() for item in part]
        assert sorted(items) == list(range(story.count))
