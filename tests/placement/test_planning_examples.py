"""The examples in the docstrings of everything that plans."""

import doctest

import pytest

from rlinf.scheduler import component_placement
from rlinf.scheduler.placement import grammar, nearest, plan, planner, strategies, topology


@pytest.mark.parametrize(
    "module",
    [component_placement, grammar, nearest, plan, planner, strategies, topology],
    ids=lambda module: module.__name__,
)
def test_examples_are_true(module):
    assert doctest.testmod(module).failed == 0
