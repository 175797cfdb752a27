"""What counts as a whole number, and what as text or a number: one rule for arguments and configs."""

import numpy as np
import pytest

from rlinf_scheduler.checks import is_text_or_number, whole_number


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (0, 0),
        (7, 7),
        (np.int64(7), 7),
        (-1, None),
        (True, None),
        (1.0, None),
        ("7", None),
        (None, None),
        ([], None),
    ],
)
def test_whole_number_is_an_integer_of_any_library_and_no_truth_value(value, number):
    assert whole_number(value) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("7", 7),
        (" 07 ", 7),
        ("-7", None),
        ("+7", None),
        ("7.0", None),
        ("", None),
        ("\u0667", None),
        ("1" * 10, None),
    ],
)
def test_text_of_a_few_digits_is_a_number_where_it_is_asked_for(text, number):
    assert whole_number(text, from_text=True) == number


def test_number_below_the_lowest_is_none():
    assert whole_number(1, lowest=1) == 1
    assert whole_number(0, lowest=1) is None
    assert whole_number("0", lowest=1, from_text=True) is None


@pytest.mark.parametrize(
    ("value", "is_one"), [("a", True), (3, True), (True, False), (1.5, False), (None, False)]
)
def test_text_and_whole_numbers_may_stand_for_text(value, is_one):
    assert is_text_or_number(value) is is_one
