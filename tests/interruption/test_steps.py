"""The interruptions find what they are there to find."""

import itertools
import weakref
from collections import deque

import pytest

from interruptions import Steps


def interrupt(move, items, taken):
    """Move everything from one to the other with interruptions at every step; what is in neither any more."""
    before = set(items)
    steps = Steps(0)
    while items:
        steps.attempt(lambda: move(items, taken))
    assert steps.num_signals > 2
    return before - set(taken)


def test_an_item_between_two_calls_is_lost():
    def move(items, taken):
        item = items.popleft()
        taken.append(item)

    assert interrupt(move, deque(range(100)), []) != set()


def test_what_one_call_moves_is_not():
    def move(items, taken):
        taken.extend(map(deque.popleft, [items]))

    assert interrupt(move, deque(range(100)), []) == set()


def test_what_a_finally_clause_gives_back_is_lost_when_the_signal_comes_there():
    def move(items, taken):
        item = items.popleft()
        try:
            sum(range(3))
        finally:
            taken.append(item)

    assert interrupt(move, deque(range(100)), []) != set()


@pytest.mark.interrupted
def test_what_a_finalizer_of_python_gives_back_may_be_lost():
    lent, returned, numbers = [], [], itertools.count()

    class Loan:
        def __init__(self, number):
            self.number = number

        def __del__(self):
            give_back(self.number)

    def give_back(number):
        returned.append(number)

    def lend():
        loan = Loan(next(numbers))
        lent.append(loan.number)
        del loan

    steps = Steps(0)
    for _ in range(100):
        steps.attempt(lend)
    assert set(lent) - set(returned)


def test_what_a_reference_of_c_gives_back_is_not():
    returned, refs = [], []

    class Loan:
        pass

    def lend():
        loan = Loan()
        refs.append(weakref.ref(loan, returned.append))
        del loan

    steps = Steps(0)
    for _ in range(100):
        steps.attempt(lend)
    assert len(returned) == len(refs) > 20
