"""A cut over several channels, whatever moves between them while it is taken: nothing is lost, in circles neither."""

from __future__ import annotations

import random

import pytest
from channel_sums import restore

from rlinf_scheduler.queueing.item import Item
from rlinf_scheduler.queueing.leases import LeaseTerms, Settle
from rlinf_scheduler.queueing.messages import Get, Put
from rlinf_scheduler.queueing.snapshot import merged
from rlinf_scheduler.queueing.state import ChannelState
from rlinf_scheduler.queueing.wanted import NO_LIMITS

NUM_ITEMS = 6
NAME = "default"


class Worker:
    """Takes an item from one channel, puts it into another, and acknowledges it: one step at a time."""

    def __init__(self, name, source, target):
        self.name, self.source, self.target = name, source, target
        self.ticket = 0
        self.steps = iter(())

    def step(self):
        if next(self.steps, None) is None:
            self.steps = self.move()

    def move(self):
        self.ticket += 1
        get = Get(self.ticket, NAME, wait=False, grant=LeaseTerms(1.0))
        out = self.source.apply(get, self.name)
        if len(out) == 1:
            return  # nothing is there
        (item,), generation = out[0].items, out[0].grant.generation
        yield "taken"
        self.ticket += 1
        self.target.apply(Put(self.ticket, NAME), self.name, Item(item.payload))
        yield "put"
        self.source.apply(Settle(generation, None, True), self.name)
        yield "acknowledged"


def two_looks(channels):
    """Look at all of them, in any order, and then at all of them once more."""
    first = {}
    for name, channel in channels:
        first[name] = channel.snapshot(at_rest=True)
        channel.queues.tally.watch(first[name].entered)
        yield {}
    cut = {}
    for name, channel in reversed(channels):
        cut[name] = merged(first[name], channel.snapshot(at_rest=True))
        channel.queues.tally.unwatch(first[name].entered)
        yield {}
    yield cut


def looks_without_watching(channels):
    """Miss what both comes and goes between the two looks."""
    first = {}
    for name, channel in channels:
        first[name] = channel.snapshot(at_rest=True)
        yield {}
    cut = {}
    for name, channel in reversed(channels):
        cut[name] = merged(first[name], channel.snapshot(at_rest=True))
        yield {}
    yield cut


def one_look(channels):
    cut = {}
    for name, channel in channels:
        cut[name] = channel.snapshot(at_rest=True)
        yield {}
    yield cut


def found_after_a_restart(seed, look):
    """What a restarted job finds, when workers and looks take turns at random."""
    dice = random.Random(seed)
    a, b, c = (ChannelState() for _ in range(3))
    for number in range(NUM_ITEMS):
        a.apply(Put(number, NAME), "source", Item(number))
    workers = [Worker("ab", a, b), Worker("bc", b, c), Worker("ca", c, a), Worker("cb", c, b)]
    channels = list(enumerate((a, b, c)))
    dice.shuffle(channels)
    looks = look(channels)
    cut = {}
    while not cut:
        for _ in range(dice.randint(0, 12)):
            dice.choice(workers).step()
        cut = next(looks)
    found = set()
    for snapshot in cut.values():
        twin = ChannelState()
        restore(twin, snapshot)
        out = twin.apply(Get(1, NAME, limits=NO_LIMITS), "restarted")
        found |= {item.payload for each in out for item in getattr(each, "items", ())}
    return found


@pytest.mark.parametrize("seeds", [range(500), range(500, 1000)], ids=str)
def test_everything_is_in_one_of_the_channels_at_least(seeds):
    for seed in seeds:
        assert found_after_a_restart(seed, two_looks) == set(range(NUM_ITEMS)), seed


@pytest.mark.parametrize("look", [one_look, looks_without_watching])
def test_less_would_lose_something(look):
    assert any(found_after_a_restart(seed, look) != set(range(NUM_ITEMS)) for seed in range(500))


def test_who_watches_is_told_when_too_much_has_entered_and_sees_no_more():
    channel, told = ChannelState(), []
    for name in ("too little", "enough"):
        snapshot = channel.snapshot(at_rest=True)
        max_bytes = 10_000 if name == "too little" else 1 << 20
        channel.queues.tally.watch(snapshot.entered, max_bytes, lambda name=name: told.append(name))
    for ticket in range(3):
        assert told == []
        channel.apply(Put(ticket, NAME), "producer", Item(ticket, size_bytes=3_000))
    assert told == ["too little"]
    assert [item.payload for _, item in snapshot.entered] == [0, 1, 2]
