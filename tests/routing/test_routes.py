"""Who sends which rows to whom: every row once, in order, whatever the sizes."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf_scheduler.errors import RouteError
from rlinf_scheduler.routing import Route, RowBlock, plan_route
from rlinf_scheduler.routing.plan import plan_even, share_rows

SIZES = st.integers(1, 9)
ROWS = st.integers(0, 80)


@st.composite
def routes(draw):
    """Even and uneven ones, with ranks that have nothing."""
    if draw(st.booleans()):
        return plan_route("env", draw(SIZES), "rollout", draw(SIZES), rows=draw(ROWS))
    sent = draw(st.lists(st.integers(0, 12), min_size=1, max_size=8))
    cuts = sorted(draw(st.lists(st.integers(0, sum(sent)), max_size=6)))
    received = [b - a for a, b in zip([0, *cuts], [*cuts, sum(sent)], strict=True)]
    return plan_route("env", sent, "rollout", received)


def carried(route, rows_of_senders):
    """What each receiver has at the end."""
    got = [[] for _ in route.received]
    for sender, rows in enumerate(rows_of_senders):
        left = list(rows)
        for block in route.sent_by(sender):
            got[block.receiver] += left[: block.rows]
            del left[: block.rows]
        assert left == []
    return got


def rows_of(route):
    numbers = iter(range(route.rows))
    return [[next(numbers) for _ in range(number)] for number in route.sent]


@given(routes())
def test_every_row_has_one_sender_and_one_receiver_and_keeps_its_place(route):
    got = carried(route, rows_of(route))
    assert [row for rows in got for row in rows] == list(range(route.rows))
    assert [len(rows) for rows in got] == list(route.received)


@given(routes())
def test_what_goes_back_arrives_where_it_came_from(route):
    rows = rows_of(route)
    assert carried(route.back(), carried(route, rows)) == rows


@given(routes())
def test_both_sides_agree_on_the_blocks_between_them(route):
    sent = [block for rank in range(len(route.sent)) for block in route.sent_by(rank)]
    received = [block for rank in range(len(route.received)) for block in route.received_by(rank)]
    assert sent == received == list(route.blocks)
    assert all(block.rows > 0 for block in sent)
    # No pair of ranks has two blocks: a rank sends a receiver one message.
    assert len({(block.sender, block.receiver) for block in sent}) == len(sent)


@given(ROWS, SIZES)
def test_shares_differ_by_one_row_at_most_and_the_first_ranks_have_it(rows, ranks):
    shares = share_rows(rows, ranks)
    assert sum(shares) == rows
    assert sorted(shares, reverse=True) == list(shares)
    assert max(shares) - min(shares) <= 1


@given(SIZES, SIZES, st.integers(1, 5))
def test_every_even_route_is_the_smallest_one_so_many_times(senders, receivers, scale):
    small = plan_even("env", senders, "rollout", receivers)
    large = plan_route("env", senders, "rollout", receivers, rows=small.rows * scale)
    assert [(b.sender, b.receiver, b.rows * scale) for b in small.blocks] == [
        (b.sender, b.receiver, b.rows) for b in large.blocks
    ]


def test_more_receivers_than_senders():
    route = plan_route("env", 1, "rollout", 3, rows=7)
    assert route.blocks == (RowBlock(0, 0, 0, 3), RowBlock(0, 1, 3, 5), RowBlock(0, 2, 5, 7))


def test_a_receiver_for_whom_no_row_is_left_gets_none():
    route = plan_route("env", 1, "rollout", 4, rows=2)
    assert [len(route.received_by(rank)) for rank in range(4)] == [1, 1, 0, 0]


def test_rows_that_are_not_the_same_on_both_sides_are_an_error_that_names_every_rank():
    with pytest.raises(RouteError) as caught:
        plan_route("env", [24, 16], "rollout", [32, 16])
    assert str(caught.value) == (
        "route from 'env' to 'rollout': the 2 ranks of 'env' have 40 rows, env:0 24, env:1 16; the 2 ranks of "
        "'rollout' are to get 48, rollout:0 32, rollout:1 16"
    )


def test_a_sender_with_other_rows_is_an_error_that_names_it():
    route = plan_route("env", 3, "rollout", 2, rows=64)
    with pytest.raises(RouteError) as caught:
        route.check_sender(1, 22)
    assert str(caught.value) == (
        "route from 'env' to 'rollout': env:1 has 22 rows, and is to send 21 of the 64 of all 3 ranks "
        "(env:0 22, env:1 21, env:2 21); nothing was sent"
    )


def test_a_part_with_other_rows_is_an_error_that_names_both_sides():
    route = plan_route("env", 3, "rollout", 2, rows=64)
    with pytest.raises(
        RouteError, match=r"env:1 sent 12 rows to rollout:0, where 10 belong \(rows 22-31 of 64\)"
    ):
        route.check_part(route.blocks[1], 12)


@pytest.mark.parametrize(
    ("senders", "receivers", "rows", "problem"),
    [
        (0, 2, 8, "a group has 1 rank or more, not 0"),
        ([], 2, None, "group 'env' has no ranks"),
        (2, 2, None, "nothing says how many rows there are"),
        (2, 2, -1, "-1 is no number of rows or ranks"),
        (2, 2, True, "True is no number of rows or ranks"),
        ([3, -1], 2, None, "-1 is no number of rows or ranks"),
        ("ab", 2, 8, "'ab' is no number of rows or ranks"),
        ([1, 2], 2, 4, "have 3 rows"),
    ],
)
def test_numbers_that_make_no_route_are_an_error(senders, receivers, rows, problem):
    with pytest.raises(RouteError, match=problem):
        plan_route("env", senders, "rollout", receivers, rows=rows)


def test_a_route_is_a_value():
    route = plan_route("env", [3, 1], "rollout", 2)
    assert pickle.loads(pickle.dumps(route)) == route == Route("env", "rollout", (3, 1), (2, 2))
    assert hash(route) == hash(Route("env", "rollout", (3, 1), (2, 2)))


def test_its_text_is_its_table():
    route = plan_route("env", [3, 1], "rollout", 2)
    assert f"{route}" == route.explain()
    assert route.explain().splitlines()[-1].split() == ["env:1", "0", "of", "1", "rollout:1", "1", "of", "2"]
