"""How many processes of a machine start at a time, and in which order."""

from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.worker.processes import MIN_AT_ONCE, StartTurns, in_turn, limits_of


def test_a_machine_starts_so_many_at_a_time_and_another_one_need_not_wait_for_it():
    turns, began = StartTurns(), []
    places = in_turn(["a", "a", "a", "b", "a"], {"a": 2, "b": 2}, turns)
    for place in places:
        if isinstance(place, Promise):
            break
        began.append(place)
        turns.begin("b" if place == 3 else "a", place)
    assert sorted(began) == [0, 1, 3]
    assert not place.done()
    turns.end("b", 3)
    assert place.done()
    waits = next(places)  # there is room on the wrong machine
    assert isinstance(waits, Promise)
    assert not waits.done()
    turns.end("a", 1)
    turns.end("a", 1)  # told twice
    assert waits.done()
    assert next(places) == 2
    turns.begin("a", 2)
    turns.end("a", 0)
    assert next(places) == 4
    assert next(places, None) is None


def test_launches_share_the_room_of_a_machine():
    turns = StartTurns()
    turns.begin("a", "another launch's")
    place = next(in_turn(["a"], {"a": 1}, turns))
    assert isinstance(place, Promise)
    turns.wake()
    assert place.done()
    assert not turns.changed.done()


def test_the_limit_follows_the_cores_that_ray_was_told_of(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert limits_of(["a", "b", "a"], {"b": 96.0}) == {"a": MIN_AT_ONCE, "b": 192}
