"""Stories of the product itself, its server, clients and messenger on a simulated kernel: every promise is kept."""

from __future__ import annotations

import gc
from dataclasses import replace

import harder
import pytest

from effort import tries
from rlinf_scheduler.channel.client import ChannelClient
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.queueing.state import ChannelState
from simulator import Machines, draw_script
from simulator.mailbox import MailboxPart
from simulator.run import PRODUCT, run_script, simulate
from simulator.script import Call, Fault
from simulator.world import World


def told_of(seed, machines=None):
    return run_script(draw_script(seed), machines, PRODUCT)


# A lease that ended while its sign of life was sent; requests of a client that had lost its server; an acknowledgement
# that came after what was dropped behind it; a connection that was refused, as the two had another one, and then broke;
# a lease that was on its way from another node when it was withdrawn; a put in shared memory that could not be read;
# a successor of a durable channel's process whose name was still taken; a look that was asked of one; a message that
# came when its process was about to look at something again, before which the world had its rest; items that a holder
# took when nobody waited for that any more; a look at an item whose holder stood still; items of one node that were
# given up with those of another; a journal that could not be written when its channel was about to be open.
@pytest.mark.parametrize(
    "seed",
    [15, 74, 99, 750, 780, 781, 837, 855, 1239, 58690, 200200, 200507, 201290, 300038, 2001166, 2004858],
)
def test_the_product_keeps_every_promise_in_a_story_that_has_found_it_broken(seed):
    assert told_of(seed).violation is None


# Weights whose name their publisher did not live to take, and which are waited for without a deadline; an item of a put
# that was not answered before its server was lost; a lease that was confirmed, and then given back; a recv whose
# sender died after its deadline, when it was about to end; an item of a put whose caller was interrupted, and kept the
# error; a holder that was given up by a server which had been stopped itself, and was never told; ranks
# that waited for one that stood still; an item that was taken after its channel had been away; weights
# of a launch that was over, of whose successor nobody had heard; an item of a holder that was given up while it was to
# bring it; replicas of shards that a dead rank has left; a send that was given up after its deadline had passed, to one
# that stood still; sends of one that had another's name, to receivers that knew the other and had lost the directory;
# a recv that found its sender after its deadline, when that had been gone for long; a send of one
# that was given up, and came back, with all its credit; a batch that came back while a file was written, some of which
# another one had taken by then; weights of a rank that was further ahead than one that waits for others can be; the
# last rank of a shard, whose successor had begun before anybody noticed, while another shard had no rank at all.
@pytest.mark.parametrize(
    "seed",
    [
        70338,
        72110,
        100251,
        101209,
        101879,
        102191,
        106356,
        300842,
        500980,
        600935,
        1000075,
        1005481,
        3000193,
        10002420,
        10005252,
        10009806,
        10021413,
        10001527,
        10016904,
        10004367,
        60000314,
    ],
)
def test_every_promise_is_kept_in_a_whole_story_that_has_found_it_broken(seed):
    assert simulate(seed).violation is None


@pytest.mark.parametrize("name", [name for name in vars(harder) if name.startswith(("of_", "with_"))])
def test_the_product_keeps_every_promise_in_stories_that_are_drawn_for_mutants(name):
    for seed in range(4, max(8, tries(8))):
        assert run_script(getattr(harder, name)(draw_script(seed)), None, PRODUCT).violation is None


# A put that waited for bytes which an ended queue gave out when the last item on its way had arrived.
@pytest.mark.parametrize(("name", "seed"), [("with_absences", 64)])
def test_the_product_keeps_every_promise_in_a_harder_story_that_has_found_it_broken(name, seed):
    assert run_script(getattr(harder, name)(draw_script(seed)), None, PRODUCT).violation is None


@pytest.mark.parametrize("pause_s", [10, 30])
def test_a_request_whose_process_stood_still_takes_no_longer_than_its_time_once_more(pause_s):
    join = Call(8_000, 1, 1, "join", "", 0, 0, None, True, "")
    stands_still = Fault(18_914, "pause", 1, pause_s * 1_000_000)
    steps = (join, Fault(8_037, "stall", 1, 70_000_000), stands_still)
    report = run_script(replace(draw_script(2635), steps=steps), None, PRODUCT)
    assert report.violation is None
    assert [event[-1] for event in report.history if event[2:5] == ("ends", "join", 1)] == ["unanswered"]


def leased_from_a_holder(seed, *faults, drop="", ttl_us=20_000_000):
    """A lease of an item that its producer's node holds, so that it comes after its lease has begun."""
    steps = (
        Call(1_000, 1, 1, "put", "q0", 1, 300_000, None, True, ""),
        Call(21_000, 2, 0, "lease", "q0", 1, 10, None, True, drop, ttl_us=ttl_us),
        *faults,
        Call(3_000_000, 3, 1, "get", "q0", 0, 10, 5_000_000, True, ""),
    )
    script = replace(draw_script(139), seed=seed, steps=steps, max_attempts=0)
    assert script.has_holders
    return run_script(script, None, PRODUCT)


def test_a_lease_that_is_left_before_its_items_are_here_is_forgotten():
    assert leased_from_a_holder(40, drop="later").violation is None


def test_a_lease_that_lapses_before_its_items_are_here_says_that_it_has_expired():
    ends = set()
    for seed in range(20):
        stands_still = Fault(21_000 + 20 * seed, "pause", 0, 2_000_000)
        report = leased_from_a_holder(seed, stands_still, ttl_us=30_000)
        assert report.violation is None
        ends |= {event[5] for event in report.history if event[1:5] == ("client0", "ends", "lease", 2)}
    assert ends == {"taken", "expired"}


def test_a_story_leaves_nothing_behind_but_the_last_one():
    for seed in range(4):
        simulate(seed)
    gc.collect()
    gc.collect()
    assert sum(isinstance(each, World) for each in gc.get_objects()) <= 1


# A send that found its receiver after its deadline, and was told that there is none.
@pytest.mark.parametrize(("part", "seed"), [(MailboxPart, 928)])
def test_every_promise_is_kept_in_a_story_of_one_part_that_has_found_it_broken(part, seed):
    assert run_script(draw_script(seed), None, (part,)).violation is None


def test_what_the_product_logs_as_an_error_breaks_a_story(monkeypatch):
    monkeypatch.setattr(ChannelClient, "_on_granted", lambda _client, _answer: 1 / 0)
    found = [violation for seed in range(20) if (violation := told_of(seed).violation)]
    assert any("division by zero" in each for each in found)


def test_what_waits_in_a_simulated_process_breaks_its_story(monkeypatch):
    monkeypatch.setattr(ChannelClient, "drain", lambda _client: Promise().wait())
    assert "something waits" in told_of(2).violation


def test_a_machine_that_raises_breaks_a_story_of_the_product():
    def fail(*_bounds, **_options):
        message = "no machine"
        raise RuntimeError(message)

    class Failing(ChannelState):
        put_run = _put = fail

    assert "no machine" in next(
        violation
        for seed in range(20)
        if (violation := told_of(seed, replace(Machines(), server=Failing)).violation)
    )
