"""What is known of the nodes of a job: every order of news, without a node."""

import pickle

from hypothesis import given
from hypothesis import strategies as st

from rlinf_scheduler.planning import Node
from rlinf_scheduler.wording import clock_text
from rlinf_scheduler.worker.node_watch import (
    REFUSED_FOR_S,
    TOLD_AFTER_S,
    NodeSilence,
    NodeSilences,
    NodeStates,
)

NODES = [Node(f"{rank}" * 12, "10.0.0.7") for rank in range(4)]


def test_a_lost_node_is_named_by_rank_address_and_id_with_the_cause():
    states = NodeStates(NODES)
    assert states.lose(NODES[2].node_id, "its raylet stopped answering at 12:03:04") == 2
    error = states.refusal([0, 2])
    assert str(error) == "node 2 (10.0.0.7, 22222222) is gone: its raylet stopped answering at 12:03:04"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert error.node_rank == 2
    assert states.refusal([0, 1, 3]) is None


def test_a_node_that_is_alive_again_or_was_replaced_can_be_used():
    states = NodeStates(NODES)
    for node in NODES[1:3]:
        states.lose(node.node_id, "cut off")
    new = Node("f" * 12, "10.0.0.9")
    states.renew([NODES[0], NODES[1], new, NODES[3]], {NODES[0].node_id, NODES[1].node_id, new.node_id})
    assert states.lost == {}
    assert states.lose(NODES[2].node_id, "it is no node of the job any more") is None


def test_a_node_that_is_drained_is_told_of_once_until_it_is_gone_or_replaced():
    states = NodeStates(NODES)
    assert states.drain(NODES[1].node_id, 0.0) == 1
    assert (states.drain(NODES[1].node_id, 0.0), states.drain("unknown", 0.0)) == (None, None)
    assert states.draining == {1: "node 1 (10.0.0.7, 11111111) is being drained: it is to be given back"}
    states.renew(NODES, {node.node_id for node in NODES})
    assert list(states.draining) == [1]
    states.drain(NODES[2].node_id, 0.0)
    states.renew([*NODES[:2], Node("f" * 12, "10.0.0.9"), NODES[3]], {"f" * 12})
    assert list(states.draining) == [1]
    states.renew(NODES, {node.node_id for node in NODES})
    states.lose(NODES[1].node_id, "its raylet ended")
    assert (states.draining, states.drain(NODES[1].node_id, 0.0)) == ({}, None)


def test_a_node_that_is_to_be_given_back_sooner_is_told_of_again_and_a_later_time_is_no_news():
    states = NodeStates(NODES)
    told = [states.drain(NODES[1].node_id, until) for until in (0.0, 900.0, 0.0, 900.0, 1000.0, 800.0, 800.0)]
    assert told == [1, 1, None, None, None, 1, None]
    assert states.draining[1].endswith(f"by {clock_text(800.0)}")


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("lose"), st.integers(0, 5)),
            st.tuples(st.just("renew"), st.sets(st.integers(0, 3))),
        ),
        max_size=20,
    )
)
def test_a_node_is_lost_once_until_it_is_alive_again(events):
    states, lost = NodeStates(NODES), {}
    for number, (what, which) in enumerate(events):
        if what == "lose":
            node_id = NODES[which].node_id if which < len(NODES) else "unknown"
            is_news = which < len(NODES) and which not in lost
            assert states.lose(node_id, str(number)) == (which if is_news else None)
            if is_news:
                lost[which] = str(number)
        else:
            states.renew(NODES, {NODES[rank].node_id for rank in which})
            lost = {rank: cause for rank, cause in lost.items() if rank not in which}
        assert {rank: text.rpartition(" ")[2] for rank, text in states.lost.items()} == lost
        assert states.living() == [node.node_id for rank, node in enumerate(NODES) if rank not in lost]
        assert {rank for rank in range(4) if states.refusal([rank])} == set(lost)


def looks(silences, begin, end, node_id="b"):
    """What is told of looks that take a second each, in which one node does not answer and another does."""
    seconds = range(begin, end)
    return [
        each
        for second in seconds
        for each in silences.take(["a"], [node_id], began=float(second), now=second + 1.0)
    ]


def test_a_node_that_does_not_answer_is_told_of_once_and_given_up_once():
    silences = NodeSilences(30.0)
    assert looks(silences, 0, 30) == [NodeSilence("b", TOLD_AFTER_S), NodeSilence("b", 30.0, too_long=True)]
    assert silences.silent() == []


def test_one_may_be_given_up_sooner_than_the_others():
    silences = NodeSilences(30.0, {"head": 10.0})
    assert looks(silences, 0, 12, "head")[-1] == NodeSilence("head", 10.0, too_long=True)


def refused(silences, times, refusing=("head",)):
    """What is told of looks that take no time, each of which is refused."""
    return [
        each for at in times for each in silences.take([], ["head"], refusing, began=float(at), now=float(at))
    ]


def test_where_nobody_listens_any_more_the_end_is_told_soon():
    told = refused(NodeSilences(30.0), range(6))
    assert told == [
        NodeSilence("head", TOLD_AFTER_S, refused=True),
        NodeSilence("head", REFUSED_FOR_S, too_long=True, refused=True),
    ]


def test_a_silence_in_between_is_none_of_a_process_that_has_ended():
    silences = NodeSilences(30.0)
    assert not any(each.too_long for each in refused(silences, range(4)))
    assert not any(each.too_long for each in refused(silences, [4], refusing=()))
    assert not any(each.too_long for each in refused(silences, range(5, 10)))
    assert [each.too_long for each in refused(silences, [10])] == [True]


def test_the_end_of_a_silence_is_told_if_it_was():
    silences = NodeSilences(30.0)
    assert looks(silences, 0, 2) == []
    assert silences.take(["b"], [], began=2.0, now=2.0) == []
    looks(silences, 10, 15)
    assert silences.silent_s("b", 16.0) == 6.0
    assert silences.take(["b"], [], began=16.0, now=16.0) == [NodeSilence("b", 6.0, over=True)]
    assert silences.silent_s("b", 17.0) == 0.0


def test_a_look_during_which_this_process_stood_still_gives_nobody_up():
    silences = NodeSilences(30.0)
    assert silences.take([], ["b"], began=0.0, now=1000.0) == []
    assert silences.take(["b"], [], began=1000.0, now=1000.1) == []
