"""Shards that are the ranks of a group which is resized: no step is split differently once it has begun."""

import random
from collections import defaultdict

import pytest

from rlinf_scheduler.queueing.item import Item
from rlinf_scheduler.queueing.members import GroupRanks, Resize
from rlinf_scheduler.queueing.messages import Deliver, EndQueue, Get, Lose, Put, Reason, Refuse
from rlinf_scheduler.queueing.policy import OperationOver
from rlinf_scheduler.queueing.shard_plan import POLICIES, ShardPlan
from rlinf_scheduler.queueing.sharding import MAX_AHEAD, DonePart, WantedPart
from rlinf_scheduler.queueing.state import ChannelState
from rlinf_scheduler.queueing.versions import AskForSlot, SetVersion

Q = "default"


def plan_of(*ranks, epoch=0, launched=1, **options):
    members = GroupRanks("actor", ranks, (launched, epoch))
    return ShardPlan(len(ranks), **{"batch_items": 4, **options}, members=members)


class Queue:
    """A queue with so many items, and those who ask for parts of it."""

    def __init__(self, num_items):
        self.state = ChannelState()
        self.ticket = 100
        for number in range(num_items):
            self.state.apply(Put(number, Q), "p", Item(number))

    def ask(self, plan, index, done_step=-1, client=None):
        """What follows from an ask: by shard, its step and items, or why it gets nothing."""
        self.ticket += 1
        name = client or f"rank{index}"
        return seen(self.state.apply(Get(self.ticket, Q, grant=WantedPart(plan, index, done_step)), name))


def seen(out):
    return {
        each.client: (each.grant.step, [item.payload for item in each.items])
        if isinstance(each, Deliver)
        else each.reason
        for each in out
    }


def held(state):
    queue = state.queues.find(Q)
    return [] if queue is None else [item.payload for item in queue.fifo]


def test_a_step_that_was_cut_stays_and_the_next_one_is_for_the_new_ranks():
    queue, two, three = Queue(12), plan_of(0, 1), plan_of(0, 1, 2, epoch=1)
    assert queue.ask(two, 0) == {"rank0": (0, [0, 2])}
    assert queue.ask(three, 2) == {"rank2": (1, [5])}
    assert queue.ask(two, 1) == {"rank1": (0, [1, 3])}
    assert queue.ask(three, 1, 0) == {"rank1": (1, [4, 7])}
    # Who has not heard of it yet is one of them all the same.
    assert queue.ask(two, 0, 0) == {"rank0": (1, [6])}


def test_who_has_left_gets_what_was_cut_for_it_and_then_its_end():
    queue, two, one = Queue(8), plan_of(0, 1), plan_of(0, epoch=1)
    queue.ask(two, 0)
    queue.ask(two, 1)
    queue.ask(two, 0, 0)  # cuts step 1, and is there
    assert queue.state.apply(Resize(one.members)) == []
    assert queue.ask(two, 1, 0) == {"rank1": (1, [5, 7])}
    assert queue.ask(two, 1, 1) == {"rank1": Reason.LEFT}
    assert queue.ask(one, 1, 1) == {"rank1": Reason.LEFT}  # it knows


def test_who_waits_when_it_leaves_is_told_so_and_the_others_get_on():
    queue, two, one = Queue(0), plan_of(0, 1), plan_of(0, epoch=1)
    assert queue.ask(two, 0) == queue.ask(two, 1) == {}
    assert seen(queue.state.apply(Resize(one.members))) == {"rank1": Reason.LEFT}
    out = [queue.state.apply(Put(number, Q), "p", Item(number)) for number in range(4)][-1]
    assert [item.payload for each in out if isinstance(each, Deliver) for item in each.items] == [0, 1, 2, 3]


def test_what_was_cut_for_a_rank_that_is_gone_for_good_is_in_the_queue_again_in_order_and_once():
    queue, two, one = Queue(12), plan_of(0, 1), plan_of(0, epoch=1)
    queue.ask(two, 0)
    queue.ask(two, 1)  # has 1 and 3
    queue.ask(two, 0, 0)  # cuts 4 to 7
    queue.state.apply(Resize(one.members))
    assert held(queue.state) == [8, 9, 10, 11]
    queue.state.apply(Lose(), "rank1")
    assert held(queue.state) == [1, 3, 5, 7, 8, 9, 10, 11]
    queue.state.apply(Lose(), "rank1")
    assert queue.ask(one, 0, 1) == {"rank0": (2, [1, 3, 5, 7])}
    assert queue.ask(two, 1, client="again") == {"again": Reason.LEFT}


def test_a_rank_that_died_and_leaves_then_gives_back_what_it_had():
    queue, two, one = Queue(4), plan_of(0, 1), plan_of(0, epoch=1)
    queue.ask(two, 0)
    queue.ask(two, 1)
    queue.state.apply(Lose(), "rank1")
    assert held(queue.state) == []  # a successor may come
    queue.state.apply(Resize(one.members))
    assert held(queue.state) == [1, 3]


def test_the_end_waits_for_what_may_come_back_of_those_who_have_left():
    queue, two, one = Queue(4), plan_of(0, 1), plan_of(0, epoch=1)
    queue.ask(two, 0)
    queue.ask(two, 1)
    queue.state.apply(Resize(one.members))
    queue.state.apply(EndQueue(Q))
    assert queue.ask(one, 0, 0) == {}
    assert seen(queue.state.apply(Lose(), "rank1")) == {"rank0": (1, [1, 3])}


def test_the_end_comes_when_those_who_have_left_are_done():
    queue, two, one = Queue(4), plan_of(0, 1), plan_of(0, epoch=1)
    queue.ask(two, 0)
    queue.ask(two, 1)
    queue.state.apply(Resize(one.members))
    queue.state.apply(EndQueue(Q))
    queue.ask(one, 0, 0)
    assert seen(queue.state.apply(DonePart(Q, 1, 0), "rank1")) == {"rank0": Reason.ENDED}
    with pytest.raises(OperationOver):
        queue.state.apply(DonePart(Q, 1, 0), "rank1")


def test_who_has_left_holds_nobody_up():
    queue, two, one = Queue(200), plan_of(0, 1, batch_items=2), plan_of(0, epoch=1, batch_items=2)
    queue.ask(two, 1)
    step = -1
    while queue.ask(two, 0, step):
        step += 1
    assert step == MAX_AHEAD - 1
    assert seen(queue.state.apply(Resize(one.members))) == {"rank0": (MAX_AHEAD, [16, 17])}


def test_a_group_that_is_launched_again_begins_anew():
    queue, old, new = Queue(8), plan_of(0, 1, 2, epoch=5), plan_of(0, 1, launched=2)
    queue.ask(old, 0)
    queue.state.apply(Lose(), "rank0")
    # What was cut for rank 2, which has never asked and is none any more, comes back.
    assert queue.ask(new, 0) == {"rank0": (0, [0, 3])}
    assert queue.ask(new, 1) == {"rank1": (0, [1])}
    assert held(queue.state) == [2, 4, 5, 6, 7]


def test_those_who_restore_a_job_say_for_which_ranks_the_next_step_is():
    queue, three = Queue(9), ShardPlan(3, batch_items=3)
    queue.ask(three, 0)
    queue.ask(three, 0, 0)
    queue.ask(three, 1)
    snapshot = queue.state.snapshot(at_rest=True)
    queue.state = ChannelState()
    queue.state.restore(snapshot.data, [item.payload for item in snapshot.items])
    two = ShardPlan(2, batch_items=3)
    assert queue.ask(two, 0) == {"rank0": (1, [3])}
    assert held(queue.state) == [2, 5, 6, 7, 8]
    assert queue.ask(two, 1) == {"rank1": (0, [1])}
    assert queue.ask(two, 1, 0) == {"rank1": (1, [4])}
    assert queue.ask(two, 1, 1) == {"rank1": (2, [5])}
    with pytest.raises(ValueError, match="num_shards=2, and this one by num_shards=3"):
        queue.ask(three, 0)


def test_a_snapshot_of_a_channel_that_goes_on_knows_who_has_left():
    queue, two, one = Queue(4), plan_of(0, 1), plan_of(0, epoch=1)
    queue.ask(two, 0)
    queue.ask(two, 1)
    queue.state.apply(Resize(one.members))
    snapshot = queue.state.snapshot()
    queue.state = ChannelState()
    queue.state.restore(snapshot.data, [item.payload for item in snapshot.items])
    assert queue.ask(two, 1, 0) == {"rank1": Reason.LEFT}
    with pytest.raises(ValueError, match="other shards"):
        queue.ask(ShardPlan(2, batch_items=4), 0)


def test_what_no_version_may_take_any_more_is_a_dead_letter():
    state = ChannelState()
    state.apply(SetVersion(1, Q, True, 0, 2), "trainer")
    two = plan_of(0, 1, batch_items=2)
    for number in range(2):
        (slot,) = state.apply(AskForSlot(10 + number, Q, True, 0), "maker")
        state.apply(
            Put(20 + number, Q, slot=slot.grant.number), "maker", Item(number, slot=slot.grant.number)
        )
    for rank in range(2):
        state.apply(Get(30, Q, grant=WantedPart(two, rank)), f"rank{rank}")
    state.apply(SetVersion(2, Q, True, 1), "trainer")
    state.apply(Resize(plan_of(0, epoch=1).members))
    state.apply(Lose(), "rank1")
    (letter,) = state.policies[1].of(Q)
    assert (letter.item.payload, letter.consumer) == (1, "rank1")
    assert "there is no place for it" in letter.reason


@pytest.mark.parametrize(
    ("plan", "index"),
    [
        (plan_of(0, 1), 2),
        (plan_of(0, 1, epoch=1), -1),
        (plan_of(1, 0), 0),
        (plan_of(0, 0), 0),
        (plan_of(), 0),
    ],
)
def test_what_makes_no_sense_is_refused(plan, index):
    with pytest.raises(ValueError, match=r"no shard|ascending|at least 1"):
        Queue(1).ask(plan, index)


def test_other_ranks_of_the_same_time_or_of_another_group_are_refused():
    queue = Queue(1)
    queue.ask(plan_of(0, 1), 0)
    for other in (plan_of(0, 1, 2), plan_of(0, 1, epoch=1, batch_items=5), ShardPlan(2, batch_items=4)):
        with pytest.raises(ValueError, match="other shards divide it by"):
            queue.ask(other, 0)


class Story:
    """A group that is resized while its ranks train, die, are succeeded and leave."""

    def __init__(self, seed):
        self.dice = dice = random.Random(seed)
        self.options = {"policy": dice.choice(POLICIES), "batch_items": dice.randint(1, 6)}
        self.plan = plan_of(*range(dice.randint(1, 3)), **self.options)
        self.state = ChannelState()
        self.knows = {}  # the plan that a living process has, by its name
        self.done = {}  # what it has done with
        self.waits = {}  # the tickets of those who wait
        self.count = dice.randint(0, 40)
        self.left = list(range(self.count))
        self.parts = defaultdict(dict)  # by step and shard
        self.asked = {}  # the ranks of the plan by the time when a step was cut
        self.num_lives = self.num_resizes = self.ticket = 0
        for rank in self.plan.numbers:
            self.come(rank)

    def come(self, rank):
        self.num_lives += 1
        name = f"{rank}.{self.num_lives}"
        self.knows[name], self.done[name] = self.plan, -1

    def run(self):
        moves = [self.ask] * 8 + [self.put] * 3 + [self.die, self.end, self.grow, self.shrink, self.hear]
        for _ in range(20_000):
            if not self.knows:
                self.follow(self.state.apply(Resize(self.plan.members)))
                return
            self.dice.choice(moves)(self.dice.choice(list(self.knows)))
        pytest.fail("it does not end")

    def ask(self, name):
        if name in self.waits.values():
            return
        self.ticket += 1
        self.waits[self.ticket] = name
        rank = int(name.partition(".")[0])
        wanted = WantedPart(self.knows[name], rank, self.done[name])
        self.follow(self.state.apply(Get(self.ticket, Q, grant=wanted), name))

    def put(self, _name):
        if self.left:
            number = self.left.pop(0)
            self.follow(self.state.apply(Put(number, Q), "p", Item(number)))

    def end(self, _name):
        if not self.left:
            self.follow(self.state.apply(EndQueue(Q)))

    def hear(self, name):
        self.knows[name] = self.plan

    def die(self, name):
        if self.num_lives > 30:
            return
        self.go(name)
        rank = int(name.partition(".")[0])
        self.follow(self.state.apply(Lose(), name))
        if rank in self.plan.numbers:
            self.come(rank)

    def go(self, name):
        del self.knows[name], self.done[name]
        self.waits = {ticket: other for ticket, other in self.waits.items() if other != name}

    def grow(self, _name):
        if self.num_resizes < 6 and len(self.plan.numbers) < 5:
            living = {int(name.partition(".")[0]) for name in self.knows}
            free = [rank for rank in range(20) if rank not in living and rank not in self.plan.numbers]
            self.resize((*self.plan.numbers, self.dice.choice(free[:3])))
            self.come((set(self.plan.numbers) - living).pop())

    def shrink(self, _name):
        if self.num_resizes < 6 and len(self.plan.numbers) > 1:
            gone = self.dice.choice(self.plan.numbers)
            self.resize([rank for rank in self.plan.numbers if rank != gone])

    def resize(self, ranks):
        self.num_resizes += 1
        self.plan = plan_of(*sorted(ranks), epoch=self.num_resizes, **self.options)
        if self.dice.random() < 0.7:
            self.follow(self.state.apply(Resize(self.plan.members)))

    def follow(self, out):
        for each in out:
            name = self.waits.get(each.ticket) if each.client != "p" else None
            if name is None:
                continue
            del self.waits[each.ticket]
            if isinstance(each, Refuse):
                assert each.reason in (Reason.ENDED, Reason.LEFT, Reason.SUCCEEDED)
                self.go(name)
                self.state.apply(Lose(), name)
            elif isinstance(each, Deliver):
                rank, got = int(name.partition(".")[0]), [item.payload for item in each.items]
                step = each.grant.step
                assert step > self.done[name]
                before = self.parts[step].setdefault(rank, got)
                assert before == got
                self.done[name] = step
                self.state.confirm(name, (each.ticket,))


def test_in_any_order_of_resizes_and_deaths_nothing_is_lost_and_no_part_changes():
    for seed in range(600):
        story = Story(seed)
        story.run()
        seen_by = defaultdict(int)
        for parts in story.parts.values():
            for part in parts.values():
                for item in part:
                    seen_by[item] += 1
        there = held(story.state)
        assert {*seen_by, *there, *story.left} == set(range(story.count)), seed
        # What is in the queue at the end is of one who left and died after the others had their end.
        assert not there or story.state.queues.find(Q).ended, seed
