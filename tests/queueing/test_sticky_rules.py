"""Sticky consumers: items of a group go to the one that had one of them last, and wait for nobody."""

from itertools import count

from channel_sums import restore

from rlinf_scheduler.queueing.homes import PASSED_OVER_S
from rlinf_scheduler.queueing.item import Item
from rlinf_scheduler.queueing.leases import LeaseTerms, Settle
from rlinf_scheduler.queueing.messages import Deliver, Get, Put
from rlinf_scheduler.queueing.state import ChannelState

Q = "default"
_tickets = count().__next__


class Channel:
    """A channel whose consumers take one item at a time; what each got is in `got`, in order."""

    def __init__(self, **options):
        self.state = ChannelState(**options)
        self.got = []
        self.generations = {}

    def note(self, instructions):
        for each in instructions:
            if isinstance(each, Deliver):
                self.got.append((each.client, each.items[0].payload))
                self.generations[each.client] = each.grant.generation

    def put(self, payload, group=None, priority=0):
        item = Item(payload, 1, 10, priority, group)
        self.note(self.state.apply(Put(_tickets(), Q, group=group, priority=priority), "producer", item))

    def ask(self, client, sticky=True):
        terms = LeaseTerms(60.0, client, sticky)
        self.note(self.state.apply(Get(_tickets(), Q, grant=terms), client))

    def done(self, client):
        self.note(self.state.apply(Settle(self.generations[client], None, True), client))

    def serve(self, client):
        self.done(client)
        self.ask(client)


def test_of_those_who_wait_the_one_that_had_the_group_last_gets_the_next():
    channel = Channel()
    channel.ask("a")
    channel.ask("b")
    channel.put(1, "x")
    channel.serve("a")  # stands behind b now
    channel.put(2, "x")
    channel.serve("a")
    channel.put(3, "y")
    channel.serve("b")
    channel.put(4, "y")
    channel.put(5, "x")
    assert channel.got == [("a", 1), ("a", 2), ("b", 3), ("b", 4), ("a", 5)]


def test_what_its_consumer_does_not_wait_for_goes_to_another_who_has_the_group_from_then_on():
    channel = Channel()
    channel.ask("a")
    channel.put(1, "x")
    channel.ask("b")
    channel.put(2, "x")  # a is busy
    channel.serve("a")
    channel.serve("b")
    channel.put(3, "x")
    assert channel.got == [("a", 1), ("b", 2), ("b", 3)]


def test_what_nobody_had_goes_to_whoever_has_least():
    channel = Channel()
    for client in ("a", "a", "a", "b", "b"):
        channel.ask(client)
    for payload, group in enumerate(("x", "y", None, "x")):
        channel.put(payload, group)
    assert channel.got == [("a", 0), ("b", 1), ("a", 2), ("a", 3)]


def test_from_what_waits_a_consumer_takes_its_own_groups_first_unless_others_have_waited_for_long():
    channel = Channel()
    channel.ask("a")
    channel.put(1, "x")
    for payload, group in ((2, "y"), (3, None), (4, "x"), (5, "x"), (6, "x")):
        channel.put(payload, group)
    channel.serve("a")
    channel.serve("a")
    assert channel.got[1:] == [("a", 4), ("a", 5)]
    channel.state.queues.tally.clock.now += 2 * PASSED_OVER_S
    channel.serve("a")
    assert channel.got[-1] == ("a", 2)


def test_a_higher_priority_comes_before_ones_own():
    channel = Channel()
    channel.ask("a")
    channel.put(1, "x")
    channel.put(2, "x")
    channel.put(3, "y", priority=1)
    channel.serve("a")
    assert channel.got[-1] == ("a", 3)


def test_those_who_are_not_sticky_are_served_in_turn():
    channel = Channel()
    channel.ask("a")
    channel.put(1, "x")
    channel.done("a")
    channel.ask("b", sticky=False)
    channel.ask("a", sticky=False)
    channel.put(2, "x")
    channel.put(3, "x")
    assert channel.got == [("a", 1), ("b", 2), ("a", 3)]


def test_one_that_may_have_no_more_is_passed_over():
    channel = Channel(max_leased=1)
    channel.ask("a")
    channel.put(1, "x")
    channel.ask("a")
    channel.ask("b")
    channel.put(2, "x")
    assert channel.got == [("a", 1), ("b", 2)]


def test_who_had_a_group_is_known_after_a_restart_of_the_channels_process():
    channel = Channel()
    channel.ask("a")
    channel.put(1, ("x", 1))
    channel.ask("b")
    channel.serve("a")
    again = ChannelState()
    restore(again, channel.state.snapshot())
    channel.state = again
    channel.put(2, ("x", 1))
    assert channel.got == [("a", 1), ("a", 2)]
