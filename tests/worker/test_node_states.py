"""What is known of the nodes of a job: every order of news, without a node."""

import pickle

from hypothesis import given
from hypothesis import strategies as st

from rlinf.scheduler.planning import Node
from rlinf.scheduler.worker.node_states import NodeStates

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
