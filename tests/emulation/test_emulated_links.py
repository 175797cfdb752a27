"""When what is sent over emulated links is there: the pure model."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import tries
from rlinf_scheduler.config.net_emulation import EmulatedDelay, LinkEnd, NetEmulation, SharedBandwidth
from rlinf_scheduler.emulation.links import Link, Links, place_of

ENV, ACTOR = LinkEnd("env"), LinkEnd("actor")
ENV_0, ENV_1, ACTOR_0, ACTOR_1 = map(place_of, ("env:0", "env:1", "actor:0", "actor:1"))
MB = 1_000_000


def links(delay_s=0.1, up=None, down=None):
    """Links from `env` to `actor`, with so many bytes a second on either side."""
    shared = [SharedBandwidth((end,), rate) for end, rate in ((ENV, up), (ACTOR, down)) if rate]
    return Links(NetEmulation((EmulatedDelay((ENV,), (ACTOR,), delay_s),), tuple(shared)))


def test_only_pairs_with_a_delay_have_a_link():
    made = links()
    assert made.between(ENV_0, ACTOR_1) == Link(0.1, None, None)
    assert made.between(ACTOR_0, ENV_0) is None
    assert made.between(ENV_0, ENV_1) is None
    assert made.between(place_of("driver"), ACTOR_0) is None


def test_of_several_delays_of_a_pair_the_last_one_counts_and_a_process_has_no_link_to_itself():
    near, far = EmulatedDelay((ENV,), (ENV, ACTOR), 0.1), EmulatedDelay((ENV,), (LinkEnd("actor", {1}),), 0.5)
    made = Links(NetEmulation((near, far)))
    assert made.between(ENV_0, ACTOR_0).delay_s == 0.1
    assert made.between(ENV_0, ACTOR_1).delay_s == 0.5
    assert made.between(ENV_0, ENV_0) is None


def test_ends_may_be_nodes():
    made = Links(
        NetEmulation((EmulatedDelay((LinkEnd("", frozenset({0})),), (LinkEnd("", frozenset({1})),), 1.0),))
    )
    assert made.between(place_of("a:0", 0), place_of("a:1", 1)).delay_s == 1.0
    assert made.between(place_of("a:1", 1), place_of("a:0", 0)) is None
    assert made.between(place_of("a:0"), place_of("a:1", 1)) is None


def test_a_transfer_alone_takes_the_delay_and_its_bytes_at_the_slower_side():
    for up, down, lasts_s in (
        (None, None, 0.1),
        (MB, None, 1.1),
        (None, MB, 1.1),
        (MB, MB, 1.1),
        (MB, 2 * MB, 1.1),
    ):
        made = links(up=up, down=down)
        link = made.between(ENV_0, ACTOR_0)
        assert made.book(link, MB, now=5.0) == pytest.approx(5.0 + lasts_s)


def test_transfers_of_a_bandwidth_group_queue_behind_each_other():
    made = links(up=MB)
    assert made.book(made.between(ENV_0, ACTOR_0), MB, now=0.0) == pytest.approx(1.1)
    assert made.book(made.between(ENV_1, ACTOR_1), MB, now=0.5) == pytest.approx(2.1)
    assert made.book(made.between(ENV_1, ACTOR_1), MB, now=9.0) == pytest.approx(10.1)


def test_what_several_receive_goes_up_once_and_down_once():
    made = links(up=MB, down=MB)
    times = [made.book(made.between(ENV_0, to), MB, now=0.0, transfer="one") for to in (ACTOR_0, ACTOR_1)]
    assert times == pytest.approx([1.1, 1.1])
    assert made.book(made.between(ENV_0, ACTOR_0), MB, now=0.0, transfer="two") == pytest.approx(2.1)


@settings(max_examples=tries(60), deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([0, 1]), st.integers(0, 5 * MB), st.floats(0, 2)), max_size=30),
    st.floats(0, 1),
    st.floats(1e5, 1e7),
    st.floats(1e5, 1e7),
)
def test_nothing_is_early_nothing_overtakes_and_no_line_carries_more_than_it_can(sends, delay_s, up, down):
    made = links(delay_s, up, down)
    targets, now, last, sent, first = (ACTOR_0, ACTOR_1), 0.0, 0.0, 0, None
    for rank, size_bytes, pause_s in sends:
        now += pause_s
        first = now if first is None else first
        there = made.book(made.between(ENV_0, targets[rank]), size_bytes, now)
        sent += size_bytes
        assert there >= now + delay_s + size_bytes / min(up, down) - 1e-9
        assert there >= last  # one source, one pair of lines: in order
        assert there >= first + delay_s + sent / min(up, down) - 1e-6  # conservation
        last = there
