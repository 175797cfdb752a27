"""A simulator that finds nothing proves nothing: machines that break one rule each are all found."""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace

import pytest
from mutant_seeds import FIND_ANEW, HERE, WITHIN_SEEDS, first_broken, is_called, known_seeds
from mutants import MUTANTS, BrokenMachine

from rlinf_scheduler.queueing.state import ChannelState
from simulator import Machines, shrink, simulate, tell
from simulator.run import PRODUCT

KNOWN = known_seeds()


@pytest.mark.filterwarnings("default:no story is known:UserWarning")
@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_it_is_found_that_the_product(name):
    # The seed at which it was found the last time comes first: to search anew takes seconds.
    mutant = MUTANTS[name]
    if name in KNOWN and mutant.story(KNOWN[name]).violation:
        return
    assert is_called(mutant.story), "nothing of it is called: what it breaks is somewhere else now"
    seed = first_broken(mutant)
    assert seed is not None
    warnings.warn(
        f"no story is known that finds {name!r}: one was searched for, and is that of seed {seed}. "
        f"{FIND_ANEW} writes it down, so that no run after it searches",
        stacklevel=1,
    )


def _classes_of_mutants():
    modules = [
        each for each in sys.modules.values() if str(getattr(each, "__file__", "")).startswith(f"{HERE}/")
    ]
    classes = {each for module in modules for each in vars(module).values() if isinstance(each, type)}
    return [each for each in classes if each.__module__ in {module.__name__ for module in modules}]


def test_what_mutants_put_in_the_place_of_something_is_still_there():
    gone = [
        f"{kind.__name__}.{name}"
        for kind in _classes_of_mutants()
        if any(base.__module__.startswith("rlinf_scheduler.") for base in kind.__mro__)
        for name in vars(kind)
        if not name.startswith("__")
        and not any(hasattr(base, name) or name in base.__init__.__code__.co_names for base in kind.__bases__)
    ]
    assert not gone


def test_a_mutant_of_what_nothing_calls_is_told_from_others():
    class Moved(ChannelState):
        def _take_a_put(self, *args):
            return self._put(*args)

    moved = BrokenMachine(replace(Machines(), server=Moved), PRODUCT)
    assert not is_called(moved.story, range(1))
    assert is_called(MUTANTS["confirms what arrived"].story, range(3))
    assert is_called(MUTANTS["drops a response of the server"].story, range(3))


def test_seeds_are_of_mutants_that_there_are():
    assert not KNOWN.keys() - MUTANTS.keys()


def test_what_is_found_is_told_in_short():
    machines = MUTANTS["admits one too many"].machines
    # From the first seed whose story is told quickly; each of hundreds of stories is, until one cannot be shorter.
    found = next(report for seed in range(55, WITHIN_SEEDS) if (report := simulate(seed, machines)).violation)
    shorter = shrink(found, machines)
    assert shorter.violation
    assert len(shorter.script.steps) <= 10
    assert len(tell(shorter)) <= 90
