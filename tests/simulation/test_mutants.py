"""A simulator that finds nothing proves nothing: machines that break one rule each are all found."""

from __future__ import annotations

from dataclasses import replace

import pytest
from checkpoint_mutants import MERGE_MUTANTS
from device_mutants import ITEM_MUTANTS
from durable_mutants import DURABLE_MUTANTS
from mailbox_mutants import MAILBOX_MUTANTS
from mutant_seeds import WITHIN_SEEDS, first_broken, first_found, known_seeds
from mutants import MUTANTS
from product_mutants import PRODUCT_MUTANTS
from shortcut_mutants import SHORTCUT_MUTANTS

from simulator import Machines, shrink, simulate, tell

PRODUCT_MUTANTS = PRODUCT_MUTANTS | SHORTCUT_MUTANTS | DURABLE_MUTANTS | MERGE_MUTANTS
KNOWN = known_seeds()
BROKEN = {**PRODUCT_MUTANTS, **MAILBOX_MUTANTS}
# What no story of the product has found until now within its first seeds: stories with more of it are to be drawn.
UNFOUND = {
    "believes every mark",
    "delivers what is lost",
    "ignores what stands before",
    "keeps the items of failed puts",
    "lets items die with their producers",
    "loses what consumers have",
    "recalls without reading",
}
# A story about items on devices that finds each of the machines of which these have to tell.
ITEM_SEEDS = {
    "names no item that went with its producer": (
        57,
        "items [1000017] of devices are lost, and nobody was told",
    ),
    "gives what was taken on a device to another": (105, "takes item 1000068, which client1.5 has"),
}


@pytest.mark.parametrize("name", sorted(MUTANTS.keys() - UNFOUND))
def test_it_is_found_that_a_machine(name):
    # The seed at which it was found the last time comes first: to search anew takes seconds.
    known = name in KNOWN and simulate(KNOWN[name], MUTANTS[name]).violation
    assert known or first_found(MUTANTS[name]) is not None


@pytest.mark.parametrize("name", sorted(BROKEN.keys() - UNFOUND))
def test_it_is_found_that_the_product(name):
    story = BROKEN[name].story
    known = name in KNOWN and story(KNOWN[name]).violation
    assert known or first_broken(story) is not None


@pytest.mark.parametrize("name", ITEM_MUTANTS)
def test_a_story_about_items_on_devices_finds_a_machine_that(name):
    seed, told = ITEM_SEEDS[name]
    assert told in (simulate(seed, ITEM_MUTANTS[name]).violation or "")


def test_seeds_are_of_machines_that_there_are():
    assert not KNOWN.keys() - MUTANTS.keys() - BROKEN.keys()


@pytest.mark.parametrize("name", ["confirms what arrived", "admits one too many"])
def test_what_is_found_is_told_in_short(name):
    machines = MUTANTS[name]
    found = next(report for seed in range(WITHIN_SEEDS) if (report := simulate(seed, machines)).violation)
    shorter = shrink(found, machines)
    assert shorter.violation
    assert len(shorter.script.steps) <= 10
    assert len(tell(shorter)) <= 90


def test_a_machine_that_raises_is_a_broken_promise():
    def fail(*_bounds):
        message = "no machine"
        raise RuntimeError(message)

    assert "no machine" in (simulate(0, replace(Machines(), server=fail)).violation or "")
