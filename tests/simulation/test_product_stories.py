"""Stories of the product itself, its server, clients and messenger on a simulated kernel: every promise is kept."""

from __future__ import annotations

from dataclasses import replace

import harder
import pytest

from effort import tries
from rlinf_scheduler.channel.client import ChannelClient
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.queueing import ChannelState
from simulator import Machines, draw_script, tell
from simulator.mailbox import MailboxPart
from simulator.run import PRODUCT, run_script, simulate
from simulator.weights import WeightsPart

pytestmark = pytest.mark.xdist_group("stories")


def told_of(seed, machines=None):
    return run_script(draw_script(seed), machines, PRODUCT)


@pytest.mark.parametrize(
    "seeds", [range(begin, begin + 25) for begin in range(0, max(100, tries(100)), 25)], ids=str
)
def test_the_product_keeps_every_promise_in_the_stories_of(seeds):
    for seed in seeds:
        report = told_of(seed)
        if report.violation is not None:
            pytest.fail("\n".join([f"seed {seed}: {report.violation}", *tell(report)]))


# A lease that ended while its sign of life was sent; requests of a client that had lost its server; an acknowledgement
# that came after what was dropped behind it; a connection that was refused, as the two had another one, and then broke;
# a lease that was on its way from another node when it was withdrawn; a put in shared memory that could not be read;
# a successor of a durable channel's process whose name was still taken; a look that was asked of one; a message that
# came when its process was about to look at something again, before which the world had its rest; items that a holder
# took when nobody waited for that any more; a look at an item whose holder stood still; items of one node that were
# given up with those of another.
@pytest.mark.parametrize("seed", [15, 74, 99, 750, 780, 781, 837, 855, 1239, 58690, 200200, 200507, 201290])
def test_the_product_keeps_every_promise_in_a_story_that_has_found_it_broken(seed):
    assert told_of(seed).violation is None


# Weights whose name their publisher did not live to take, and which are waited for without a deadline; an item of a put
# that was not answered before its server was lost; a lease that was confirmed, and then given back; a recv whose
# sender died after its deadline, when it was about to end.
@pytest.mark.parametrize("seed", [70338, 72110, 300842, 500980, 600935])
def test_every_promise_is_kept_in_a_whole_story_that_has_found_it_broken(seed):
    assert simulate(seed).violation is None


@pytest.mark.parametrize("name", [name for name in vars(harder) if name.startswith(("of_", "with_"))])
def test_the_product_keeps_every_promise_in_stories_that_are_drawn_for_mutants(name):
    for seed in range(4, 15):
        assert run_script(getattr(harder, name)(draw_script(seed)), None, PRODUCT).violation is None


# A put that waited for bytes which an ended queue gave out when the last item on its way had arrived.
@pytest.mark.parametrize(("name", "seed"), [("with_absences", 64)])
def test_the_product_keeps_every_promise_in_a_harder_story_that_has_found_it_broken(name, seed):
    assert run_script(getattr(harder, name)(draw_script(seed)), None, PRODUCT).violation is None


# A send that found its receiver after its deadline, and was told that there is none.
@pytest.mark.parametrize(("part", "seed"), [(MailboxPart, 928)])
def test_every_promise_is_kept_in_a_story_of_one_part_that_has_found_it_broken(part, seed):
    assert run_script(draw_script(seed), None, (part,)).violation is None


def test_stories_of_mailboxes_and_weights_are_about_all_that_can_become_of_a_call():
    endings = set()
    for seed in range(40):
        history = run_script(draw_script(seed), None, (MailboxPart, WeightsPart)).history
        endings |= {(event[3], event[5]) for event in history if event[2] == "ends"}
    of_all = {"taken", "timed out", "cancelled", "dropped", "lost", "not found"}
    assert endings >= {(kind, ending) for kind in ("send", "recv", "fetch") for ending in of_all}
    assert endings >= {("send", "unanswered"), ("fetch", "over")}


def test_the_same_seed_gives_the_same_history_of_the_product():
    assert told_of(74).history == told_of(74).history


def test_stories_of_the_product_are_about_all_that_can_become_of_a_call():
    endings = {event[5] for seed in range(40) for event in told_of(seed).history if event[2] == "ends"}
    assert endings >= {
        "accepted",
        "taken",
        "timed out",
        "cancelled",
        "dropped",
        "lost",
        "closed",
        "full",
        "empty",
    }


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
