"""Who comes next on a device, decided without any process."""

import random

from effort import case, tries
from rlinf_scheduler.session.membership import GroupMembers, GroupMembership
from rlinf_scheduler.worker.turns import Turn, Turns


def turn(who, devices, number=1, since=0.0):
    return Turn(who, number, who, frozenset(devices), since)


def part(group, rank, devices, number=1, size=2):
    """The wish of a rank of a group that has its devices together."""
    name = f"{group}:{rank}"
    member = GroupMembership(GroupMembers(group, tuple(range(size))), 1, rank)
    return Turn(name, number, name, frozenset(devices), 0.0, member)


def names(turns):
    return [turn.who for turn in turns]


def test_groups_have_all_their_devices_in_whatever_order_their_ranks_come():
    turns = Turns()
    assert not turns.ask(part("a", 0, "0"))
    assert not turns.ask(part("b", 1, "1"))
    assert not turns.ask(turn("c", "2"))[1:]
    assert names(turns.ask(part("b", 0, "0"))) == ["b:1", "b:0"]
    assert not turns.ask(part("a", 1, "1"))
    assert not turns.give_back("b:0", 1, 1.0), "the other rank is inside"
    assert names(turns.give_back("b:1", 1, 2.0)) == ["a:0", "a:1"]


def test_a_group_that_is_not_complete_holds_nobody_up():
    turns = Turns()
    turns.ask(part("a", 0, "0"))
    assert turns.missing(part("a", 0, "0")) == []
    assert turns.gathering[0][1] == ["a:1"]
    assert names(turns.ask(turn("b", "01"))) == ["b"]


def test_a_group_waits_again_for_a_rank_that_gave_up_and_stands_last_then():
    turns = Turns()
    turns.ask(turn("first", "01"))
    turns.ask(part("a", 0, "0"))
    turns.ask(part("a", 1, "1"))
    turns.ask(turn("c", "1"))
    assert not turns.give_back("a:1", 1, 0.0)
    assert turns.gathering[0][1] == ["a:1"]
    assert names(turns.forget("first", 1.0)) == ["c"]
    turns.ask(part("a", 1, "1", number=2))
    assert names(turns.give_back("c", 1, 2.0)) == ["a:0", "a:1"]


def test_wishes_of_one_rank_in_two_threads_are_two_turns_and_launches_are_apart():
    turns = Turns()
    for number in (1, 2):
        turns.ask(part("a", 0, "0", number))
    assert len(turns.gathering) == 2
    assert names(turns.ask(part("a", 1, "1"))) == ["a:0", "a:1"]
    later = part("a", 1, "1", 2)
    later.group = later.group._replace(launched_ns=2)
    assert not turns.ask(later)


def test_a_group_goes_on_when_a_rank_inside_is_gone():
    turns = Turns()
    turns.ask(part("a", 0, "0"))
    turns.ask(part("a", 1, "1"))
    turns.ask(turn("b", "1"))
    assert not turns.forget("a:1", 1.0), "the other rank is inside"
    assert names(turns.give_back("a:0", 1, 2.0)) == ["b"]


def test_those_who_want_the_same_device_come_in_order():
    turns = Turns()
    assert [len(turns.ask(turn(who, "0"))) for who in "abc"] == [1, 0, 0]
    assert [t.who for t in turns.give_back("a", 1, 1.0)] == ["b"]
    assert [t.who for t in turns.give_back("b", 1, 2.0)] == ["c"]


def test_those_who_want_different_devices_do_not_wait():
    turns = Turns()
    assert turns.ask(turn("a", "0"))
    assert turns.ask(turn("b", "1"))


def test_who_wants_several_is_not_overtaken_by_who_wants_one_of_them():
    turns = Turns()
    turns.ask(turn("a", "0"))
    both = turn("b", "01")
    assert not turns.ask(both)
    late = turn("c", "1")
    assert not turns.ask(late)
    assert [t.who for t in turns.before(late)] == ["b"]
    assert turns.give_back("a", 1, 5.0) == [both]
    assert both.since == 5.0


def test_who_gives_up_lets_those_behind_it_go_on():
    turns = Turns()
    for who, devices in (("a", "0"), ("b", "01"), ("c", "1")):
        turns.ask(turn(who, devices))
    assert [t.who for t in turns.give_back("b", 1, 1.0)] == ["c"]


def test_all_of_a_process_goes_back_when_it_is_gone():
    turns = Turns()
    turns.ask(turn("a", "0", 1))
    turns.ask(turn("a", "1", 2))
    turns.ask(turn("b", "01"))
    assert [t.who for t in turns.forget("a", 1.0)] == ["b"]
    assert len(turns) == 1


def test_what_was_never_asked_for_can_be_given_back():
    assert Turns().give_back("a", 7, 0.0) == []


def test_no_device_has_two_and_everybody_gets_a_turn():
    for seed in range(tries(100)):
        with case(seed):
            check_that_everybody_gets_a_turn(random.Random(seed))


def check_that_everybody_gets_a_turn(chance):
    turns, having, waiting = Turns(), {}, {}
    for number in range(60):
        wanted = turn(f"p{number % 7}", chance.sample("0123", chance.randint(1, 3)), number)
        (having if turns.ask(wanted) else waiting)[number] = wanted
        if having and chance.random() < 0.5:
            ended = having.pop(chance.choice(list(having)))
            for granted in turns.give_back(ended.process_id, ended.number, 0.0):
                having[granted.number] = waiting.pop(granted.number)
        taken = [device for each in having.values() for device in each.devices]
        assert len(taken) == len(set(taken))
    while having:
        ended = having.pop(next(iter(having)))
        for granted in turns.give_back(ended.process_id, ended.number, 0.0):
            having[granted.number] = waiting.pop(granted.number)
    assert not waiting
    assert len(turns) == 0


def test_a_group_that_is_resized_waits_for_the_ranks_that_it_has_then():
    turns = Turns()
    turns.ask(part("a", 0, "0", size=3))
    turns.ask(part("a", 1, "1", size=3))
    turns.ask(part("b", 0, "0"))
    assert turns.gathering[0][1] == ["a:2"]
    granted = turns.resize(GroupMembers("a", (0, 1), epoch=1), 1.0)
    assert names(granted) == ["a:0", "a:1"]
    turns.resize(GroupMembers("a", (0, 1, 3), epoch=2), 2.0)
    assert not turns.give_back("a:0", 1, 2.0)
    assert not turns.give_back("a:1", 1, 2.0)
    turns.ask(part("a", 0, "0", number=2))
    turns.resize(GroupMembers("a", (0, 1, 3), epoch=2), 2.0)
    turns.ask(part("a", 1, "1", number=2))
    assert turns.gathering[-1][1] == ["a:3"]
    newcomer = part("a", 3, "3")
    newcomer.group = newcomer.group._replace(members=GroupMembers("a", (0, 1, 3), epoch=2))
    assert names(turns.ask(newcomer)) == ["a:0", "a:1", "a:3"]


def test_a_rank_that_knows_its_group_as_it_was_is_in_one_turn_with_those_that_know_it_as_it_is():
    turns = Turns()
    newer = part("a", 0, "0")
    newer.group = newer.group._replace(members=GroupMembers("a", (0, 2), epoch=1))
    turns.ask(newer)
    assert names(turns.ask(part("a", 2, "1", size=3))) == ["a:0", "a:2"]
