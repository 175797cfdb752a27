"""How what a process writes becomes lines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf_scheduler.host.output_file import MAX_LINE_BYTES, LineCutter


def cut(*parts):
    cutter = LineCutter("run.log")
    return [line for part in parts for line in cutter.cut(part)] + cutter.end()


@given(st.lists(st.text("ab\r \x1e", max_size=20)), st.lists(st.integers(0, 30)))
def test_lines_are_the_same_wherever_they_are_cut(lines, sizes):
    written = "\n".join(lines).encode()
    parts, place = [], 0
    for size in sizes:
        parts.append(written[place : place + size])
        place += size
    assert cut(*parts, written[place:]) == cut(written)


@pytest.mark.parametrize("part_bytes", [1 << 20, 65536, 8192, 8191, 1000])
def test_of_a_line_that_is_too_long_the_rest_is_counted_and_the_next_one_is_whole(part_bytes):
    written = b"short\n" + b"x" * 100_000 + b"\nnext\n"
    parts = [written[place : place + part_bytes] for place in range(0, len(written), part_bytes)]
    mark = f" ... {100_000 - MAX_LINE_BYTES:,} bytes more, in run.log"
    assert cut(*parts) == ["short", "x" * MAX_LINE_BYTES + mark, "next"]


def test_a_line_of_just_that_length_is_whole():
    assert cut(b"x" * MAX_LINE_BYTES, b"\r", b"\n") == ["x" * MAX_LINE_BYTES]


def test_what_was_too_long_and_is_written_over_is_not_counted():
    assert cut(b"x" * 100_000, b"\rdone\n") == ["done"]


def test_of_a_bar_that_goes_on_and_on_a_state_is_shown_now_and_then():
    cutter = LineCutter("run.log")
    shown = [line for step in range(2000) for line in cutter.cut(b"\rstep %d of 2000" % step)]
    assert 1 < len(shown) < 10
    assert all(line.startswith("step ") and line.endswith(" of 2000") for line in shown)
    assert cutter.cut(b"\n") == ["step 1999 of 2000"]


def test_what_has_travelled_as_a_log_line_is_not_shown_again_however_long_it_is():
    assert cut(b"\x1e" + b"x" * 100_000, b"xx\nprinted\n") == ["printed"]
