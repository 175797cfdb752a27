"""What both sides do about the time of leases, in a time of their own."""

from __future__ import annotations

import itertools

import pytest

from rlinf_scheduler.channel import wire
from rlinf_scheduler.channel.clients import KnownClient
from rlinf_scheduler.channel.features.leases import LeasesFeature
from rlinf_scheduler.channel.lease_operation import LeaseOperation, LeaseRenewal
from rlinf_scheduler.comm.shm.payload import ReceivedPayload
from rlinf_scheduler.queueing.item import Item
from rlinf_scheduler.queueing.leases import Extend, LeaseTerms, OnLease, Settle, StartClock
from rlinf_scheduler.queueing.stats import depths_of
from served import DrivenRuntime, served


class Clock(DrivenRuntime):
    """It hears what a client tells."""

    def __init__(self):
        super().__init__()
        self.messenger, self.requests, self.told, self.on_lost = self, self, [], []

    def send_untold(self, message):
        self.told.append((round(self.time - 100, 3), message))


@pytest.fixture
def clock():
    return Clock()


def keep(clock, ttl_s=30.0, keep_s=1e9):
    renewal = LeaseRenewal(clock)
    operation = LeaseOperation("lease", "default", None, clock.now)
    operation.terms = LeaseTerms(ttl_s, "consumer")
    renewal.begin(operation, wire.Delivered(1, [], grant=OnLease(7, [1])), keep_s)
    return renewal, operation.ticket


def test_a_lease_is_extended_at_every_third_of_its_time(clock):
    keep(clock)
    clock.run_until(35)
    assert clock.told == [
        (10, Extend(7)),
        (20, Extend(7)),
        (30, Extend(7)),
    ]


def test_a_lease_that_is_over_is_not(clock):
    renewal, ticket = keep(clock)
    clock.run_until(15)
    renewal.end(ticket)
    renewal.end(ticket)
    clock.run_until(100)
    assert clock.told == [(10, Extend(7))]


def test_what_is_overdue_is_given_back_and_not_extended_any_more(clock):
    keep(clock, keep_s=12)
    clock.run_until(100)
    (first, extended), (last, settled) = clock.told
    assert (first, extended, last) == (10, Extend(7), 12)
    assert (settled.generation, settled.places, settled.done) == (7, None, False)
    assert settled.reason == "its consumer did not come to an end in 12 s"


def test_more_time_is_more_time_and_never_less(clock):
    renewal, ticket = keep(clock, keep_s=12)
    clock.run_until(5)
    renewal.extend(ticket, 20)
    renewal.extend(ticket, 1)
    clock.run_until(24)
    assert not any(isinstance(message, Settle) for _, message in clock.told)
    clock.run_until(26)
    assert clock.told[-1][0] == 25


def test_an_extension_delays_no_sign_of_life(clock):
    renewal, ticket = keep(clock)
    for second in range(1, 60):
        clock.run_until(second)
        renewal.extend(ticket, 1)
    times = [0, *(when for when, _ in clock.told)]
    assert max(later - earlier for earlier, later in itertools.pairwise(times)) <= 10


def test_a_lease_that_ends_while_its_sign_of_life_is_sent_is_not_kept(clock):
    renewal, ticket = keep(clock)

    def tell(message):  # what is sent goes with what users have said of leases meanwhile
        clock.told.append(message)
        renewal.end(ticket)

    clock.send_untold = tell
    clock.run_until(100)
    assert len(clock.told) == 1
    assert not clock.waiting


def test_nothing_is_kept_alive_after_the_end(clock):
    renewal, _ = keep(clock)
    renewal.close()
    clock.run_until(100)
    assert clock.told == []


# -- the channel's process ------------------------------------------------------------------------


def lend(clock, ttl_s=10.0):
    """(its leases, an extension, how many items are on lease) of a server, where one item is."""
    server = served(clock)
    state, carry_out = server.state, server.carry_out
    for client in ("p", "c"):
        server.clients[client] = KnownClient(client, None, client)
    carry_out(state.apply(wire.Put(1, "default"), "p", Item(ReceivedPayload([b"x"]))))
    carry_out(state.apply(wire.Get(1, "default", grant=LeaseTerms(ttl_s)), "c"))
    clock.run_until(0)
    leases = server.feature(LeasesFeature)
    extend = Extend(1)
    return leases, lambda: carry_out(state.apply(extend, "c")), lambda: depths_of(state.queues)[0].num_leased


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
    leases, _, num_leased = lend(clock)
    leases.keep_time(StartClock("c", 1, 1, 2.0))
    clock.run_until(9.9)
    assert num_leased() == 1


@pytest.mark.parametrize("stopped_s", [10.1, 60])
def test_when_this_process_was_stopped_consumers_are_heard_first(clock, stopped_s):
    _, extend, num_leased = lend(clock)
    clock.ring_next(stopped_s - 10)  # nothing ran
    assert num_leased() == 1
    extend()  # is read now
    clock.run_until(stopped_s + 9)
    assert num_leased() == 1
    clock.run_until(stopped_s + 11)
    assert num_leased() == 0


def test_a_process_that_is_always_late_puts_off_the_end_of_a_lease_no_more_than_twice(clock):
    _, _, num_leased = lend(clock)
    clock.ring_next(0.1)
    clock.ring_next(0.1)
    assert num_leased() == 1
    assert round(clock.time - 100, 3) == 10.7
    clock.ring_next(0.1)
    assert num_leased() == 0


def test_each_extension_of_a_lease_may_be_put_off_anew(clock):
    _, extend, num_leased = lend(clock)
    for _ in range(3):
        clock.ring_next(0.1)
        clock.ring_next(0.1)
        extend()
    clock.ring_next(0.1)
    assert num_leased() == 1


def test_a_server_that_goes_on_knows_how_often_an_end_was_put_off(clock):
    leases, _, num_leased = lend(clock)
    clock.ring_next(0.1)
    clock.ring_next(0.1)
    dues = leases.dues
    leases.close()
    leases.resume(dues)
    clock.ring_next(0.1)
    assert num_leased() == 0


def test_after_the_end_no_clock_rings(clock):
    leases, _, num_leased = lend(clock)
    leases.close()
    clock.run_until(100)
    assert num_leased() == 1
