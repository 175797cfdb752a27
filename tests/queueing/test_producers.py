"""Who counts as a producer, and when the last of them is done."""

import itertools
import random

from rlinf_scheduler.queueing.producers import Producers


def test_it_is_over_when_all_have_said_that_they_are_done():
    producers = Producers(2)
    assert producers.join("a", 1, "env:0")
    producers.leave("a", 1, failed=False)
    assert not producers.over
    assert producers.join("a", 2, "env:0")
    producers.leave("a", 2, failed=False)
    assert producers.over


def test_producers_that_are_not_counted_are_never_over():
    assert not Producers(0).over


def test_who_died_is_waited_for_until_given_up():
    producers = Producers(1)
    producers.join("a", 1, "env:0")
    (vacancy,) = producers.lose("a")
    assert not producers.over
    producers.give_up(vacancy)
    assert producers.over


def test_a_successor_takes_the_place_and_the_old_vacancy_is_worth_nothing():
    producers = Producers(1)
    producers.join("a", 1, "env:0")
    (old,) = producers.lose("a")
    assert producers.join("b", 1, "env:0")
    (new,) = producers.lose("b")
    producers.give_up(old)
    assert not producers.over
    producers.give_up(new)
    assert producers.over


def test_one_of_another_name_takes_a_vacancy_only_where_no_place_is_free():
    producers = Producers(2)
    producers.join("a", 1, "env:0")
    producers.lose("a")
    assert producers.join("c", 1, "env:7")
    assert "without a successor yet: env:0" in producers.describe()
    assert producers.join("d", 1, "env:8")
    assert not producers.join("e", 1, "env:9")


def test_leaving_twice_counts_once():
    producers = Producers(2)
    producers.join("a", 1, "env:0")
    producers.leave("a", 1, failed=False)
    assert producers.leave("a", 1, failed=True) is None
    assert producers.lose("a") == []
    assert not producers.over


def test_in_any_order_of_comings_and_failures_it_is_over_exactly_when_all_places_are_done():
    for seed in range(300):
        dice = random.Random(seed)
        places = dice.randint(1, 4)
        producers, numbers = Producers(places), itertools.count()
        at_work, vacant, done = [], [], 0
        while done < places:
            assert not producers.over
            step = dice.choice(["join", "done", "fail", "give up"])
            if step == "join":
                number = next(numbers)
                fits = len(at_work) + done < places
                free = len(at_work) + len(vacant) + done < places
                assert producers.join("c", number, str(number)) is fits
                if fits:
                    at_work.append(number)
                    if not free:
                        vacant.pop(0)
            elif step == "done" and at_work:
                producers.leave("c", at_work.pop(), failed=False)
                done += 1
            elif step == "fail" and at_work:
                vacant.append(producers.leave("c", at_work.pop(), failed=True))
            elif step == "give up" and vacant:
                producers.give_up(vacant.pop())
                done += 1
        assert producers.over
