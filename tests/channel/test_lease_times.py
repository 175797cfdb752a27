"""What both sides do about the time of leases, in a time of their own."""

from __future__ import annotations

import itertools

import pytest

from rlinf_scheduler.channel import control_wire, wire
from rlinf_scheduler.channel.batch import Delivery
from rlinf_scheduler.channel.lease_desk import LeaseDesk
from rlinf_scheduler.channel.lease_keeper import LeaseKeeper
from rlinf_scheduler.channel.operation import Operation
from rlinf_scheduler.queueing import ChannelState, LeaseTerms, StartClock, StopClock


class Timer:
    def __init__(self, due, callback):
        self.due = due
        self.callback = callback

    def cancel(self):
        self.callback = None


class Clock:
    """A messenger that has timers only, and what was told by whoever has it."""

    def __init__(self):
        self.time = 100.0
        self.timers = []
        self.told = []

    def now(self):
        return self.time

    def call_later(self, delay_s, callback):
        self.timers.append(Timer(self.time + delay_s, callback))
        return self.timers[-1]

    def tell(self, message):
        self.told.append((round(self.time - 100, 3), message))

    def run_until(self, seconds):
        while True:
            due = [each for each in self.timers if each.callback and each.due <= 100 + seconds]
            if not due:
                self.time = 100 + seconds
                return
            timer = min(due, key=lambda each: each.due)
            self.timers.remove(timer)
            self.time = timer.due
            timer.callback()


@pytest.fixture
def clock():
    return Clock()


def keep(clock, ttl_s=30.0, keep_s=1e9):
    keeper = LeaseKeeper(clock, clock.tell)
    operation = Operation("lease", "default", None, clock.now)
    operation.lease = wire.LeaseRequest(ttl_s, "consumer")
    operation.keep_s = keep_s
    keeper.begin(operation, Delivery.of(wire.Delivered(1, [], lease=wire.LeaseNote(7, [1])), []))
    return keeper, operation.ticket


def test_a_lease_is_extended_at_every_third_of_its_time(clock):
    keep(clock)
    clock.run_until(35)
    assert clock.told == [
        (10, control_wire.Extend(7)),
        (20, control_wire.Extend(7)),
        (30, control_wire.Extend(7)),
    ]


def test_a_lease_that_is_over_is_not(clock):
    keeper, ticket = keep(clock)
    clock.run_until(15)
    keeper.end(ticket)
    keeper.end(ticket)
    clock.run_until(100)
    assert clock.told == [(10, control_wire.Extend(7))]


def test_what_is_overdue_is_given_back_and_not_extended_any_more(clock):
    keep(clock, keep_s=12)
    clock.run_until(100)
    (first, extended), (last, settled) = clock.told
    assert (first, extended, last) == (10, control_wire.Extend(7), 12)
    assert (settled.generation, settled.places, settled.done) == (7, None, False)
    assert settled.reason == "its consumer did not come to an end in 12 s"


def test_more_time_is_more_time_and_never_less(clock):
    keeper, ticket = keep(clock, keep_s=12)
    clock.run_until(5)
    keeper.extend(ticket, 20)
    keeper.extend(ticket, 1)
    clock.run_until(24)
    assert not any(isinstance(message, control_wire.Settle) for _, message in clock.told)
    clock.run_until(26)
    assert clock.told[-1][0] == 25


def test_an_extension_delays_no_sign_of_life(clock):
    keeper, ticket = keep(clock)
    for second in range(1, 60):
        clock.run_until(second)
        keeper.extend(ticket, 1)
    times = [0, *(when for when, _ in clock.told)]
    assert max(later - earlier for earlier, later in itertools.pairwise(times)) <= 10


def test_nothing_is_kept_alive_after_the_end(clock):
    keeper, _ = keep(clock)
    keeper.close()
    clock.run_until(100)
    assert clock.told == []


# -- the channel's process ------------------------------------------------------------------------


def lend(clock, ttl_s=10.0):
    """(the desk, the state, how many items are on lease): one item is."""
    state = ChannelState()

    def carry_out(instructions):
        for each in instructions:
            if isinstance(each, StartClock | StopClock):
                desk.keep_time(each)

    desk = LeaseDesk(clock, state, carry_out, lambda _items, then: then())
    state.put("p", 1, "default", "x")
    carry_out(state.lease("c", 1, "default", LeaseTerms(ttl_s)))
    return desk, lambda: carry_out(state.extend("c", 1)), lambda: state.depths()[0].num_leased


def test_a_lease_of_which_nothing_is_heard_lapses(clock):
    _, _, num_leased = lend(clock)
    clock.run_until(9.9)
    assert num_leased() == 1
    clock.run_until(10.1)
    assert num_leased() == 0


def test_a_lease_that_is_heard_of_lasts(clock):
    _, extend, num_leased = lend(clock)
    clock.run_until(9)
    extend()
    clock.run_until(18.9)
    assert num_leased() == 1
    clock.run_until(19.1)
    assert num_leased() == 0


def test_a_shorter_time_shortens_no_lease(clock):
    desk, _, num_leased = lend(clock)
    desk.keep_time(StartClock("c", 1, 1, 2.0))
    clock.run_until(9.9)
    assert num_leased() == 1


@pytest.mark.parametrize("stopped_s", [10.1, 60])
def test_when_this_process_was_stopped_consumers_are_heard_first(clock, stopped_s):
    _, extend, num_leased = lend(clock)
    clock.time += stopped_s  # nothing ran
    late = min(clock.timers, key=lambda each: each.due)
    clock.timers.remove(late)
    late.callback()
    assert num_leased() == 1
    extend()  # is read now
    clock.run_until(stopped_s + 9)
    assert num_leased() == 1
    clock.run_until(stopped_s + 11)
    assert num_leased() == 0


def ring_late(clock, late_s):
    """Nothing runs for so long beyond what is due next."""
    late = min((each for each in clock.timers if each.callback), key=lambda each: each.due)
    clock.timers.remove(late)
    clock.time = late.due + late_s
    late.callback()


def test_a_process_that_is_always_late_puts_off_the_end_of_a_lease_no_more_than_twice(clock):
    _, _, num_leased = lend(clock)
    ring_late(clock, 0.1)
    ring_late(clock, 0.1)
    assert num_leased() == 1
    assert round(clock.time - 100, 3) == 10.7
    ring_late(clock, 0.1)
    assert num_leased() == 0


def test_each_extension_of_a_lease_may_be_put_off_anew(clock):
    _, extend, num_leased = lend(clock)
    for _ in range(3):
        ring_late(clock, 0.1)
        ring_late(clock, 0.1)
        extend()
    ring_late(clock, 0.1)
    assert num_leased() == 1


def test_a_desk_that_goes_on_knows_how_often_an_end_was_put_off(clock):
    desk, _, num_leased = lend(clock)
    ring_late(clock, 0.1)
    ring_late(clock, 0.1)
    dues = desk.dues
    desk.close()
    desk.resume(dues)
    ring_late(clock, 0.1)
    assert num_leased() == 0


def test_after_the_end_no_clock_rings(clock):
    desk, _, num_leased = lend(clock)
    desk.close()
    clock.run_until(100)
    assert num_leased() == 1
