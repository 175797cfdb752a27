"""The text of a placement: what it means, that it round-trips, and where an error points."""

import pickle

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rlinf_scheduler.errors import ConfigError, PlacementError
from rlinf_scheduler.planning import RankRange, Segment, format_segments, parse_ranks, parse_segments

ranges = st.builds(
    lambda first, extra: RankRange(first, first + extra), st.integers(0, 5000), st.integers(0, 5000)
)
segments = st.lists(st.builds(Segment, st.none() | ranges, st.none() | ranges), min_size=1, max_size=8)
blanks = st.text(" \t\n", max_size=2)


def parse_or_error(text):
    try:
        return parse_segments(text), None
    except PlacementError as error:
        return None, error


def test_segments_hold_resources_and_processes():
    parsed = parse_segments("0-1:0-3,3-5,all:9")
    assert parsed == (
        Segment(RankRange(0, 1), RankRange(0, 3)),
        Segment(RankRange(3, 5)),
        Segment(None, RankRange(9, 9)),
    )
    assert [segment.span for segment in parsed] == [(0, 7), (8, 11), (12, 17)]
    assert parsed[0].processes.span == (4, 7)


@given(segments)
def test_print_and_parse_round_trip(original):
    assert parse_segments(format_segments(original)) == tuple(original)


@given(segments, st.data())
def test_blanks_around_any_part_change_nothing(original, data):
    spaced = ""
    for character in format_segments(original):
        between = character if character not in ",:-" else data.draw(blanks) + character + data.draw(blanks)
        spaced += between
    assert parse_segments(data.draw(blanks) + spaced + data.draw(blanks)) == tuple(original)


@given(st.text("0123456789-:, al+x", max_size=12) | st.text(max_size=30))
@example("1" * 5000)
@example("0:" + "9" * 9)
def test_any_text_is_a_placement_or_a_placement_error(text):
    parsed, error = parse_or_error(text)
    if error is None:
        assert parse_segments(format_segments(parsed)) == parsed
    else:
        for each in error.each():
            start, end = each.span
            assert 0 <= start <= end <= len(each.text)
            assert "\n" not in each.text
            assert str(each)


def test_every_bad_segment_is_reported_and_of_very_many_the_first():
    _, error = parse_or_error("0-, 1, 3-1:0, x")
    assert [each.span for each in error.each()] == [(0, 2), (7, 10), (14, 15)]
    _, error = parse_or_error("," * 100_000)
    assert len(error.each()) == 8


@pytest.mark.parametrize(
    ("text", "caret", "problem", "hint"),
    [
        ("", "", "the placement is empty", ""),
        ("0,,1", "  ^", "a segment is empty", ""),
        ("0,", "  ^", "a segment is empty", ""),
        ("0-3, 7-4", "     ^^^", "runs backwards", "4-7"),
        ("0:3-1", "  ^^^", "runs backwards", "1-3"),
        ("-1", "^^", "'-1' is neither a rank", ""),
        ("0,+1", "  ^^", "'+1' is neither a rank", ""),
        ("0-1:x0-5", "    ^^^^", "'x0-5' is neither a rank", ""),
        ("0..3", "^^^^", "neither a rank", "0-3"),
        ("0-1-2", "^^^^^", "neither a rank", ""),
        ("ALL", "^^^", "neither a rank", "all"),
        ("0:all", "  ^^^", "'all' may stand for the resources", ""),
        ("all-", "^^^^", "neither a rank", ""),
        (":1", "^", "no resources stand before", ""),
        ("0:", " ^", "no processes stand after", ""),
        ("0,0:1:2,5", "  ^^^^^", "one ':' at most", ""),
        ("0 1", "^^^", "neither a rank", ""),
        ("٣", "^", "neither a rank", ""),
        ("9999999999", "^^^^^^^^^^", "nine digits", ""),
        ("0:1048576", "  ^^^^^^^", "beyond the highest", ""),
        ("0\t,\na", "    ^", "'a' is neither a rank", ""),
    ],
)
def test_error_points_at_the_bad_spot(text, caret, problem, hint):
    with pytest.raises(PlacementError) as caught:
        parse_segments(text)
    error = caught.value
    assert problem in error.problem
    assert error.hint == hint
    if text:
        start, end = error.span
        assert " " * start + "^" * max(1, end - start) == caret
        assert str(error).splitlines()[2] == f"  {caret}"


def test_error_in_a_long_text_shows_the_part_around_the_spot():
    with pytest.raises(PlacementError) as caught:
        parse_segments(",".join(map(str, range(2000))) + ",x," + ",".join(["7"] * 500))
    error = caught.value
    assert len(error.text) < 120
    assert error.text[slice(*error.span)] == "x"


def test_placement_error_is_a_value_error_and_an_assertion_error():
    with pytest.raises(AssertionError):
        parse_segments("a")
    with pytest.raises(ValueError, match="neither a rank"):
        parse_segments("a")


def test_error_survives_the_way_between_processes():
    with pytest.raises(ConfigError) as caught:
        parse_segments("0,x")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert type(copy) is PlacementError
    assert str(copy) == str(caught.value)


def test_list_of_ranks_keeps_the_order_written():
    assert parse_ranks("4,0-2, 3") == (4, 0, 1, 2, 3)


@pytest.mark.parametrize("text", ["all", "0:1", "0-2,1", "", "0,"])
def test_list_of_ranks_refuses_what_is_no_list_of_ranks(text):
    with pytest.raises(PlacementError):
        parse_ranks(text)
