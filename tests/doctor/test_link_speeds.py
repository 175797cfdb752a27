"""Which pairs are probed when, and which links are slow."""

from hypothesis import given
from hypothesis import strategies as st

from rlinf_scheduler.doctor.links import rounds_of, slow_links

FAST = 1e9


def links_of(num_nodes):
    return {(a, b): FAST for a in range(num_nodes) for b in range(num_nodes) if a != b}


@given(st.lists(st.integers(0, 999), unique=True, max_size=40), st.integers(1, 50))
def test_each_node_has_a_few_partners_and_takes_part_once_in_a_round(nodes, partners):
    rounds = rounds_of(nodes, partners)
    pairs = [pair for pairs in rounds for pair in pairs]
    assert len(pairs) == len(set(pairs))
    assert all(one < other for one, other in pairs)
    assert all(len({node for pair in pairs for node in pair}) == 2 * len(pairs) for pairs in rounds)
    assert len(rounds) <= partners
    if partners >= len(nodes):
        assert sorted(pairs) == sorted((a, b) for a in nodes for b in nodes if a < b)
    elif len(nodes) > 1:
        assert {sum(node in pair for pair in pairs) for node in nodes} <= {
            partners,
            partners - len(nodes) % 2,
        }


def test_one_slow_direction_of_two_nodes_is_found():
    (slow,) = slow_links({(0, 1): FAST, (1, 0): FAST / 11})
    assert (slow.node, slow.peers, slow.is_outgoing) == (1, (0,), True)


def test_a_node_with_a_slow_card_is_told_of_once_for_each_direction():
    links = links_of(8) | {link: FAST / 50 for link in links_of(8) if 5 in link}
    found = slow_links(links)
    others = (0, 1, 2, 3, 4, 6, 7)
    assert [(s.node, s.peers, s.is_outgoing) for s in found] == [
        (5, others, True),
        (5, others, False),
    ]
    assert {s.usual_bytes_per_s for s in found} == {FAST}


@given(st.integers(0, 12), st.floats(0.11, 1.0))
def test_what_is_less_than_ten_times_slower_is_not_told_of(num_nodes, share):
    links = {link: FAST * (share if sum(link) % 3 else 1.0) for link in links_of(num_nodes)}
    assert slow_links(links) == []
