"""Visibility variables: what a text shows, and the text that shows some devices."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf_scheduler.hardware.vendor import DigitsMask, ListMask, SelectorMask

MIG = "MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6/1/0"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("4,5", ("4", "5")),
        ("5, 4 ", ("5", "4")),
        ("GPU-8932f937,1", ("GPU-8932f937", "1")),
        (MIG, (MIG,)),
        ("0,2,-1,1", ("0", "2")),
        ("0,,1", ("0",)),
        ("", ()),
        (" ", ()),
        ("-1", ()),
        ("NoDevFiles", ()),
    ],
)
def test_list_shows_its_entries_up_to_the_first_that_is_none(text, names):
    assert ListMask().read(text) == names


@pytest.mark.parametrize(
    ("text", "names"),
    [("1,2,3", ("1", "2", "3")), ("1, 2,3", ("1",)), ("1,2,-1,3", ("1", "2")), ("", ()), ("x", ())],
)
def test_digits_end_at_the_first_other_character(text, names):
    assert DigitsMask().read(text) == names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("level_zero:0,1", ("0", "1")),
        ("Level_Zero:1;opencl:cpu", ("1",)),
        ("level_zero:0;level_zero:2", ("0", "2")),
        ("level_zero:0.1", ("0.1",)),
        ("0,1", ("0", "1")),
        ("*:0", ("0",)),
        ("level_zero:*", None),
        ("*:gpu", None),
        ("level_zero:*;!level_zero:1", None),
        ("opencl:cpu", ()),
        ("*:cpu", ()),
        ("", ()),
        ("NoDevFiles", ()),
    ],
)
def test_selector_shows_what_its_terms_name_of_the_backend(text, names):
    assert SelectorMask("level_zero").read(text) == names


@pytest.mark.parametrize("mask", [ListMask(), DigitsMask(), SelectorMask("level_zero")])
@given(st.lists(st.integers(0, 63).map(str), max_size=8, unique=True))
def test_what_is_written_reads_back(mask, names):
    assert mask.read(mask.write(names)) == tuple(names)


@pytest.mark.parametrize("mask", [ListMask(), DigitsMask(), SelectorMask("level_zero")])
@given(st.text("0123456789,;:-.!* ablevzro_", max_size=20))
def test_any_text_is_read(mask, text):
    names = mask.read(text)
    assert names is None or all(names)
