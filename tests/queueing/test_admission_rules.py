"""What a queue that admits gives, to whom, and when its version moves on."""

from __future__ import annotations

import pytest

from rlinf_scheduler.queueing.dead_letters import DeadLetters, MoveDead
from rlinf_scheduler.queueing.item import Item
from rlinf_scheduler.queueing.leases import Lapse, LeaseTerms, Settle
from rlinf_scheduler.queueing.messages import (
    Accept,
    Close,
    Deliver,
    EndQueue,
    Fill,
    Get,
    Lose,
    Put,
    Reason,
    Refuse,
    Withdraw,
)
from rlinf_scheduler.queueing.shard_plan import ShardPlan
from rlinf_scheduler.queueing.sharding import WantedPart
from rlinf_scheduler.queueing.state import ChannelState
from rlinf_scheduler.queueing.stats import depths_of
from rlinf_scheduler.queueing.versions import AskForSlot, HoldSlot, LetGoOfSlot, SetVersion
from rlinf_scheduler.queueing.wanted import Limits


class Queue:
    """A queue whose version takes two items, with everything that was said since."""

    def __init__(self, batch_items=2, **options):
        self.state = ChannelState(**options)
        self.said = []
        self.ticket = 0
        self.do("set_version", "trainer", 0, batch_items, begins=True)

    def do(self, operation, client, *args, **options):
        """Begin an operation, and return its ticket."""
        self.ticket += 1
        made, item = self.made(operation, self.ticket, *args, **options)
        self.said += self.state.apply(made, client, item)
        return self.ticket

    def made(self, operation, ticket, *args, wait=True, **options):
        match operation:
            case "put":
                return Put(ticket, "q"), Item(*args, **options)
            case "admit":
                return AskForSlot(ticket, "q", wait, *args), None
            case "set_version":
                return SetVersion(ticket, "q", wait, *args, **options), None
            case "lease":
                terms, *wanted = args
                return Get(ticket, "q", True, *(wanted or (None, None)), terms), None
            case _:
                return Get(ticket, "q", wait, *args), None

    def admit(self, client="maker", max_lag=1):
        return self.do("admit", client, max_lag)

    def answer(self, ticket):
        """What was last said of an operation; None if it waits."""
        return next((each for each in reversed(self.said) if each[1] == ticket), None)

    def slot(self, ticket):
        answer = self.answer(ticket)
        return answer and answer.grant

    def leased(self, ticket):
        return next(each for each in self.said if isinstance(each, Deliver) and each.ticket == ticket)

    def make(self, payload, max_lag=1):
        self.do("put", "maker", payload, slot=self.slot(self.admit(max_lag=max_lag)).number)

    def take(self, client="trainer", wait=False):
        """Take an item for good; None if none may be taken."""
        ticket = self.do("get", client, wait=wait)
        answer = self.answer(ticket)
        if not isinstance(answer, Deliver):
            return None
        self.said += self.state.confirm(client, (ticket,))
        return answer.items[0].payload

    def step(self, version):
        return self.answer(self.do("set_version", "trainer", version))


def test_slots_are_given_as_long_as_their_items_will_be_taken_in_time():
    queue = Queue()
    tickets = [queue.admit(max_lag=1) for _ in range(5)]
    assert [queue.slot(ticket) is not None for ticket in tickets] == [True, True, True, True, False]
    assert queue.slot(tickets[0]).version == 0
    queue.do("put", "maker", "a", slot=queue.slot(tickets[0]).number)
    queue.do("put", "maker", "b", slot=queue.slot(tickets[1]).number)
    assert (queue.take(), queue.take(), queue.take()) == ("a", "b", None)
    assert queue.slot(tickets[4]) is None
    assert isinstance(queue.step(1), Accept)
    assert queue.slot(tickets[4]).version == 1


def test_nothing_is_admitted_before_the_first_version():
    state = ChannelState()
    assert state.apply(AskForSlot(1, "q", True, 0), "maker") == []
    assert "no version yet" in state.queues.describe("q")
    accept, deliver = state.apply(SetVersion(2, "q", True, 7, 4, begins=True), "trainer")
    assert accept == Accept("trainer", 2)
    assert deliver.grant.version == 7


def test_without_lag_a_version_takes_what_was_made_with_it():
    queue = Queue()
    tickets = [queue.admit(max_lag=0) for _ in range(3)]
    assert queue.slot(tickets[2]) is None
    for ticket in tickets[:2]:
        queue.do("put", "maker", ticket, slot=queue.slot(ticket).number)
    assert {queue.take(), queue.take()} == set(tickets[:2])
    assert queue.slot(tickets[2]) is None
    queue.step(1)
    assert queue.slot(tickets[2]).version == 1


def test_what_is_late_is_waited_for_before_others_have_taken_its_place():
    queue = Queue()
    late = queue.admit(max_lag=1)
    queue.make("a"), queue.make("b")
    assert (queue.take(), queue.take()) == ("a", "b")
    queue.step(1)
    queue.make("c"), queue.make("d")
    waiting = queue.do("get_batch", "trainer", None, Limits(2, 2))
    assert queue.answer(waiting) is None
    assert "1 item in the making, the oldest of version 0" in queue.state.queues.describe("q")
    queue.do("put", "maker", "late", slot=queue.slot(late).number)
    assert [item.payload for item in queue.answer(waiting).items] == ["late", "c"]


def test_places_are_kept_long_before_they_are_needed():
    # With room for two versions more, four old items in the making need both of them.
    queue = Queue()
    old = [queue.admit(max_lag=2) for _ in range(6)]
    for ticket in old[:2]:
        queue.do("put", "maker", ticket, slot=queue.slot(ticket).number)
    queue.take(), queue.take()
    queue.step(1)
    queue.make("new", max_lag=2)
    assert queue.take() is None
    queue.do("put", "maker", "old", slot=queue.slot(old[2]).number)
    assert (queue.take(), queue.take()) == ("old", None)


def test_a_version_gives_no_more_than_its_items_and_a_batch_is_of_one_version():
    queue = Queue(3)
    for each in "abcde":
        queue.make(each)
    first = queue.do("get_batch", "trainer", None, Limits(2, 2))
    second = queue.do("get_batch", "trainer", None, Limits(2, 2))
    third = queue.do("get_batch", "trainer", None, Limits(2, 2))
    assert [item.payload for item in queue.answer(first).items] == ["a", "b"]
    assert [item.payload for item in queue.answer(second).items] == ["c"]
    assert not queue.answer(second).complete
    assert queue.answer(third) is None
    queue.said += queue.state.confirm("trainer", (first,)) + queue.state.confirm("trainer", (second,))
    queue.step(1)
    assert [item.payload for item in queue.answer(third).items] == ["d", "e"]


def test_batches_by_weight_stop_where_the_version_does():
    queue = Queue(3)
    for each in "abcd":
        slot = queue.slot(queue.admit()).number
        queue.do("put", "maker", each, 2, slot=slot)
    first = queue.do("get_batch", "trainer", 4)
    second = queue.do("get_batch", "trainer", 4)
    assert ([item.payload for item in queue.answer(first).items], queue.answer(first).complete) == (
        ["a", "b"],
        True,
    )
    assert ([item.payload for item in queue.answer(second).items], queue.answer(second).complete) == (
        ["c"],
        False,
    )


def test_a_batch_by_weight_of_which_a_part_is_held_back_takes_nothing_yet():
    queue = Queue(3)
    late = queue.admit(max_lag=0)
    for each in "abc":
        queue.do("put", "maker", each, 2, slot=queue.slot(queue.admit()).number)
    waiting = queue.do("get_batch", "trainer", 6)
    assert queue.answer(waiting) is None
    queue.do("put", "maker", "late", 2, slot=queue.slot(late).number)
    assert [item.payload for item in queue.answer(waiting).items] == ["late", "a", "b"]


@pytest.mark.parametrize("way", ["withdraw", "lose"])
def test_a_slot_that_is_dropped_or_whose_owner_dies_goes_to_the_next_one(way):
    queue = Queue()
    tickets = [queue.admit(client=f"maker{n}") for n in range(5)]
    number = queue.slot(tickets[1]).number
    if way == "withdraw":
        queue.said += queue.state.apply(Withdraw(tickets[1]), "maker1")
    else:
        queue.said += queue.state.apply(Lose(), "maker1")
    assert queue.slot(tickets[4]) is not None
    assert queue.answer(queue.do("put", "maker1", "x", slot=number)).reason is Reason.SPENT


def test_what_nobody_makes_any_more_is_not_waited_for():
    queue = Queue()
    late = queue.admit(client="dies", max_lag=0)
    queue.make("a"), queue.make("b")
    waiting = queue.do("get_batch", "trainer", None, Limits(2, 2))
    assert queue.answer(waiting) is None
    queue.said += queue.state.apply(Lose(), "dies")
    assert [item.payload for item in queue.answer(waiting).items] == ["a", "b"]
    assert queue.slot(late)


def test_a_slot_is_for_one_put():
    queue = Queue()
    slot = queue.slot(queue.admit()).number
    queue.do("put", "maker", "a", slot=slot)
    refused = queue.answer(queue.do("put", "maker", "b", slot=slot))
    assert refused.reason is Reason.SPENT
    assert "is over: an item was put with it" in refused.state
    with pytest.raises(ValueError, match=r"this queue admits: put\(item, slot="):
        queue.do("put", "maker", "b")
    with pytest.raises(ValueError, match="gives none"):
        queue.state.apply(Put(99, "other"), "maker", Item("b", slot=slot))


def test_a_put_that_is_withdrawn_leaves_its_slot_as_it_was():
    queue = Queue()
    slot = queue.slot(queue.admit()).number
    queue.said += queue.state.apply(Put(50, "q", size_bytes=10), "maker", Item(None, 0, 10, slot=slot))
    with pytest.raises(ValueError, match="used by another put"):
        queue.do("put", "maker", "b", slot=slot)
    queue.state.apply(Withdraw(50), "maker")
    queue.do("put", "maker", "b", slot=slot)
    assert queue.take() == "b"


def test_another_process_may_put_with_a_slot_and_its_owner_may_go_meanwhile():
    queue = Queue()
    ticket = queue.admit(client="driver")
    queue.state.apply(Put(50, "q", size_bytes=10), "maker", Item(None, 0, 10, slot=queue.slot(ticket).number))
    queue.said += queue.state.apply(Lose(), "driver")
    queue.said += queue.state.apply(Fill(50), "maker", "a")
    assert queue.take() == "a"


def test_a_slot_of_a_lost_owner_goes_when_the_put_with_it_fails():
    queue = Queue()
    ticket = queue.admit(client="driver")
    queue.state.apply(Put(50, "q", size_bytes=10), "maker", Item(None, 0, 10, slot=queue.slot(ticket).number))
    queue.state.apply(Lose(), "driver")
    queue.state.apply(Withdraw(50), "maker")
    assert queue.answer(queue.do("put", "maker", "b", slot=queue.slot(ticket).number)).reason is Reason.SPENT


def test_a_slot_lives_as_long_as_any_copy_of_it():
    queue = Queue()
    tickets = [queue.admit(client="driver") for _ in range(5)]
    number = queue.slot(tickets[0]).number
    queue.state.apply(HoldSlot("q", number, 7, True), "")
    queue.said += queue.state.apply(Lose(), "driver")  # the prompt is in its queue all the same
    late = queue.admit(client="other")
    assert queue.slot(late)
    queue.state.apply(HoldSlot("q", number, 8, False), "dies")
    queue.said += queue.state.apply(Lose(), "dies")  # its lease ends: another one has the copy
    queue.state.apply(HoldSlot("q", number, 9, False), "rollout")
    queue.do("put", "rollout", "a", slot=number)
    queue.said += queue.state.apply(LetGoOfSlot("q", number, 9, 7), "rollout")
    assert queue.take() == "a"


def test_who_lets_the_last_copy_go_gives_the_slot_back_and_that_is_counted():
    queue = Queue(1)
    number = queue.slot(queue.admit(client="driver", max_lag=0)).number
    waiting = queue.admit(client="other", max_lag=0)
    queue.state.apply(HoldSlot("q", number, 7, True), "")
    queue.said += queue.state.apply(Lose(), "driver")
    assert queue.slot(waiting) is None
    queue.state.apply(HoldSlot("q", number, 8, False), "rollout")
    assert "came back" not in queue.state.queues.describe("q")
    queue.said += queue.state.apply(LetGoOfSlot("q", number, 8, 7), "rollout")
    assert queue.slot(waiting)
    assert "1 slot came back unused" in queue.state.queues.describe("q")
    assert queue.answer(queue.do("put", "rollout", "a", slot=number)).reason is Reason.SPENT


def test_a_copy_that_was_taken_for_good_ends_with_its_client():
    queue = Queue(1)
    number = queue.slot(queue.admit(client="driver", max_lag=0)).number
    waiting = queue.admit(client="other", max_lag=0)
    queue.state.apply(HoldSlot("q", number, 7, True), "")
    queue.said += queue.state.apply(Lose(), "driver")
    queue.state.apply(HoldSlot("q", number, 8, False, 7), "rollout")
    assert queue.slot(waiting) is None
    queue.said += queue.state.apply(Lose(), "rollout")
    assert queue.slot(waiting)


def test_a_copy_that_is_let_go_before_it_was_heard_of_holds_nothing():
    queue = Queue(1)
    ticket = queue.admit(client="driver", max_lag=0)
    number = queue.slot(ticket).number
    queue.state.apply(HoldSlot("q", number, 8, False), "rollout")
    queue.said += queue.state.apply(LetGoOfSlot("q", number, 8, 7), "rollout")
    queue.state.apply(HoldSlot("q", number, 7, True), "")
    waiting = queue.admit(client="other", max_lag=0)
    queue.said += queue.state.apply(Withdraw(ticket), "driver")
    assert queue.slot(waiting)


def test_an_item_may_be_newer_than_its_slot_and_never_older():
    queue = Queue()
    queue.make("a"), queue.make("b")
    slot = queue.slot(queue.admit()).number
    queue.take(), queue.take()
    queue.step(1)
    with pytest.raises(ValueError, match="version -1 is too old for slot"):
        queue.do("put", "maker", "c", slot=slot, version=-1)
    queue.do("put", "maker", "c", slot=slot, version=1)
    taken = queue.answer(queue.do("get", "trainer"))
    assert [item.version for item in taken.items] == [1]


def test_an_item_of_a_version_that_is_yet_to_come_is_taken_when_its_slot_says():
    queue = Queue()
    slot = queue.slot(queue.admit(max_lag=0)).number
    queue.do("put", "maker", "a", slot=slot, version=7)
    queue.make("b", max_lag=0)
    items = [queue.answer(queue.do("get", "trainer")).items[0] for _ in range(2)]
    assert [item.version for item in items] == [7, 0]
    queue.step(1)


def test_the_version_moves_on_when_what_it_has_taken_cannot_come_back():
    queue = Queue()
    queue.make("a", max_lag=0), queue.make("b", max_lag=0)
    tickets = [queue.do("get", "trainer"), queue.do("get", "other")]
    moving = queue.do("set_version", "trainer", 1)
    assert queue.answer(moving) is None
    assert "set_version(1) waits for 2 items to be settled" in queue.state.queues.describe("q")
    queue.said += queue.state.confirm("trainer", (tickets[0],))
    assert queue.answer(moving) is None
    queue.said += queue.state.confirm("other", (tickets[1],))
    assert queue.answer(moving) == Accept("trainer", moving)


def test_what_comes_back_meanwhile_is_to_be_taken_first():
    queue = Queue()
    queue.make("a", max_lag=0), queue.make("b", max_lag=0)
    tickets = [queue.do("get", "trainer"), queue.do("get", "other")]
    queue.said += queue.state.confirm("trainer", (tickets[0],))
    moving = queue.do("set_version", "trainer", 1)
    queue.said += queue.state.apply(Lose(), "other")
    assert queue.answer(moving).reason is Reason.TOO_EARLY
    assert "has to take 1 more" in queue.answer(moving).state
    assert queue.take() == "b"
    assert isinstance(queue.step(1), Accept)


def test_what_may_wait_is_no_obstacle_to_the_next_version():
    queue = Queue()
    queue.make("a", max_lag=2)
    held = queue.do("get", "other")
    assert isinstance(queue.step(1), Accept)
    queue.make("b", max_lag=0)
    # It needs a place again, and has the first one that is needed least.
    queue.said += queue.state.apply(Lose(), "other")
    assert queue.answer(held).items[0].payload == "a"
    assert {queue.take(), queue.take()} == {"a", "b"}


def test_a_version_that_has_taken_too_little_does_not_go():
    queue = Queue()
    queue.make("a"), queue.make("b"), queue.make("c"), queue.make("d")
    assert queue.take() == "a"
    refused = queue.step(1)
    assert refused.reason is Reason.TOO_EARLY
    assert "has taken 1 of its 2 items, and has to take 1 more" in refused.state
    assert queue.take() == "b"
    assert isinstance(queue.step(1), Accept)


def test_a_version_may_take_less_where_little_is_made():
    queue = Queue()
    queue.make("a")
    assert queue.take() == "a"
    assert isinstance(queue.step(1), Accept)
    assert isinstance(queue.step(5), Accept)


def test_all_ranks_may_say_the_same_version():
    queue = Queue()
    assert isinstance(queue.step(1), Accept)
    assert isinstance(queue.step(1), Accept)


def test_a_version_goes_back_only_with_a_trainer_that_begins_anew():
    queue = Queue()
    for version in range(1, 4):
        queue.make(version), queue.make(version)
        queue.take(), queue.take()
        queue.step(version)
    queue.make("future")
    with pytest.raises(ValueError, match="is 3, and does not go back to 2"):
        queue.step(2)
    again = queue.do("set_version", "trainer", 1, begins=True)
    assert isinstance(queue.answer(again), Accept)
    assert queue.slot(queue.admit()).version == 1
    assert queue.take() == "future"


def test_a_trainer_that_begins_anew_has_all_items_of_its_version_again():
    queue = Queue()
    for each in "abcd":
        queue.make(each)
    assert (queue.take(), queue.take(), queue.take()) == ("a", "b", None)
    queue.do("set_version", "trainer", 0, begins=True)
    assert (queue.take(), queue.take()) == ("c", "d")


def test_the_bound_may_change_with_every_slot():
    queue = Queue()
    first = queue.admit(max_lag=0)
    queue.make("later", max_lag=3)
    queue.do("put", "maker", "first", slot=queue.slot(first).number)
    assert (queue.take(), queue.take()) == ("first", "later")


def test_how_many_items_a_version_takes_may_change():
    queue = Queue()
    tickets = [queue.admit(max_lag=0) for _ in range(3)]
    assert queue.slot(tickets[2]) is None
    queue.do("set_version", "trainer", 0, 3)
    assert queue.slot(tickets[2]) is not None
    fewer = queue.do("set_version", "trainer", 0, 2)
    assert queue.answer(fewer).reason is Reason.TOO_EARLY


def test_a_part_of_a_step_is_taken_when_the_step_is_cut():
    queue = Queue()
    for each in "abcd":
        queue.make(each)
    plan = ShardPlan(2, batch_items=2)

    def ask(index, done):
        queue.ticket += 1
        queue.said += queue.state.apply(
            Get(queue.ticket, "q", grant=WantedPart(plan, index, done)), f"rank{index}"
        )
        return queue.ticket

    first = [ask(0, -1), ask(1, -1)]
    assert [queue.answer(ticket).items[0].payload for ticket in first] == ["a", "b"]
    # Rank 1 is faster than rank 0 with its announcement: its next part is of the next version.
    ahead = ask(1, 0)
    assert queue.answer(ahead) is None
    assert isinstance(queue.step(1), Accept)
    assert queue.answer(ahead).items[0].payload == "d"
    assert queue.answer(ask(0, 0)).items[0].payload == "c"


def test_leased_items_that_come_back_keep_their_versions():
    queue = Queue(max_attempts=2)
    queue.make("a", max_lag=0), queue.make("b", max_lag=0)
    ticket = queue.do("lease", "trainer", LeaseTerms(9.0), None, Limits(2, 2))
    generation = queue.leased(ticket).grant.generation
    moving = queue.do("set_version", "trainer", 1)
    assert queue.answer(moving) is None
    queue.said += queue.state.apply(Settle(generation, [0], True), "trainer")
    assert queue.answer(moving) is None
    queue.said += queue.state.apply(Settle(generation, None, False, delay_s=5.0), "trainer")
    assert queue.answer(moving) is None
    delayed = max(each.generation for each in queue.said if each.__class__.__name__ == "StartClock")
    queue.said += queue.state.apply(Lapse(delayed))
    assert queue.answer(moving).reason is Reason.TOO_EARLY
    assert queue.take() == "b"
    assert isinstance(queue.step(1), Accept)


def test_a_dead_letter_is_waited_for_no_more_and_does_not_come_back_too_late():
    queue = Queue(max_attempts=1)
    queue.make("a", max_lag=0)
    ticket = queue.do("lease", "trainer", LeaseTerms(9.0))
    queue.said += queue.state.apply(Settle(queue.leased(ticket).grant.generation, None, False), "trainer")
    (letter,) = queue.state.policy(DeadLetters).of()
    queue.said += queue.state.apply(MoveDead(letter.number, True))
    ticket = queue.do("lease", "trainer", LeaseTerms(9.0))
    queue.said += queue.state.apply(Settle(queue.leased(ticket).grant.generation, None, False), "trainer")
    assert isinstance(queue.step(1), Accept)
    (letter,) = queue.state.policy(DeadLetters).of()
    with pytest.raises(ValueError, match="version 0 is the last that may take it, and 1 is the present one"):
        queue.state.apply(MoveDead(letter.number, True))
    assert queue.state.policy(DeadLetters).of() == [letter]


def test_a_slot_has_room_in_a_bounded_queue():
    queue = Queue(maxsize=2)
    tickets = [queue.admit() for _ in range(3)]
    assert queue.slot(tickets[2]) is None
    for ticket in tickets[:2]:
        queue.do("put", "maker", ticket, slot=queue.slot(ticket).number, wait=False)
    assert queue.slot(tickets[2]) is None
    assert queue.take() == tickets[0]
    assert queue.slot(tickets[2]) is not None


def test_a_bound_in_bytes_does_not_keep_out_what_is_waited_for():
    queue = Queue(max_bytes=100)
    late = queue.admit(max_lag=0)
    queue.do("put", "maker", "a", 0, 90, slot=queue.slot(queue.admit()).number)
    assert queue.take() == "a"
    queue.do("put", "maker", "b", 0, 90, slot=queue.slot(queue.admit()).number)
    blocked = queue.do("put", "maker", "c", 0, 90, slot=queue.slot(queue.admit()).number)
    assert queue.answer(blocked) is None
    waiting = queue.do("get", "trainer")
    # It waits for the late one: neither that nor what stands in line before it may wait for room.
    assert queue.answer(blocked) == Accept("maker", blocked)
    queue.do("put", "maker", "late", 0, 90, slot=queue.slot(late).number)
    assert [item.payload for item in queue.answer(waiting).items] == ["late"]


def test_a_batch_that_can_never_come_is_refused():
    queue = Queue(8, maxsize=4)
    for each in "abcd":
        queue.make(each, max_lag=0)
    assert queue.answer(queue.do("get_batch", "trainer", None, Limits(8, 8))).reason is Reason.IMPOSSIBLE


@pytest.mark.parametrize("how", ["end", "close"])
def test_at_the_end_nothing_is_waited_for_that_cannot_come(how):
    queue = Queue()
    queue.admit(max_lag=0)
    queue.make("a"), queue.make("b"), queue.make("c")
    waiting = queue.admit(max_lag=0)
    assert queue.slot(waiting) is None
    queue.said += queue.state.apply(EndQueue("q")) if how == "end" else queue.state.apply(Close())
    assert queue.answer(waiting).reason is (Reason.ENDED if how == "end" else Reason.CLOSED)
    assert isinstance(queue.answer(queue.admit()), Refuse)
    assert (queue.take(), queue.take(), queue.take()) == ("a", "b", None)
    next_one = queue.do("get", "trainer")
    assert queue.answer(next_one) is None
    queue.step(1)
    assert queue.answer(next_one).items[0].payload == "c"
    queue.state.confirm("trainer", (next_one,))
    assert queue.answer(queue.do("get", "trainer")).reason in (Reason.ENDED, Reason.CLOSED)
    assert how == "close" or depths_of(queue.state.queues) == ()
    assert isinstance(queue.step(2), Accept)


def test_admission_begins_with_an_empty_queue():
    state = ChannelState()
    state.apply(Put(1, "q"), "maker", Item("x"))
    with pytest.raises(ValueError, match="holds what was put without a slot: 1 item"):
        state.apply(AskForSlot(2, "q", True, 1), "maker")
    state.apply(Get(3, "groups", group_size=2), "reward")
    with pytest.raises(ValueError, match="collect groups in another queue"):
        state.apply(SetVersion(4, "groups", True, 0, 2), "trainer")
    state.apply(SetVersion(5, "other", True, 0, 2), "trainer")
    with pytest.raises(ValueError, match="collect groups before"):
        state.apply(Get(6, "other", group_size=2), "reward")
    with pytest.raises(ValueError, match="how many items does a version take"):
        ChannelState().apply(SetVersion(7, "q", True, 0), "trainer")


def test_whoever_does_not_wait_is_refused():
    queue = Queue()
    for _ in range(4):
        queue.admit()
    refused = queue.answer(queue.do("admit", "maker", 1, wait=False))
    assert refused.reason is Reason.EMPTY
    assert "4 items in the making" in refused.state


def test_who_waits_no_longer_leaves_the_line():
    queue = Queue()
    tickets = [queue.admit() for _ in range(6)]
    assert queue.state.apply(Withdraw(tickets[4]), "maker")[0].reason is Reason.CANCELLED
    queue.said += queue.state.apply(Withdraw(tickets[0]), "maker")
    assert queue.slot(tickets[5]) is not None


def test_an_item_that_is_lost_with_its_node_leaves_its_place_to_another():
    queue = Queue()
    for each in "abcd":
        queue.make(each)
    waiting = queue.admit()
    assert queue.slot(waiting) is None
    queue.said += queue.state.lose_items(lambda payload: "was on node 1" if payload == "b" else "")
    assert queue.slot(waiting) is not None
    assert queue.answer(queue.do("get", "trainer")).reason is Reason.LOST
    assert (queue.take(), queue.take()) == ("a", "c")
    assert isinstance(queue.step(1), Accept)


def test_an_item_that_is_lost_on_its_way_back_leaves_its_place_to_another():
    queue = Queue(1)
    queue.make("a", max_lag=0)
    ticket = queue.do("get", "trainer")
    queue.said += queue.state.lose_items(lambda payload: "was on node 1")
    moving = queue.do("set_version", "trainer", 1)
    assert queue.answer(moving) is None
    queue.said += queue.state.apply(Withdraw(ticket), "trainer")
    assert queue.answer(moving) == Accept("trainer", moving)
