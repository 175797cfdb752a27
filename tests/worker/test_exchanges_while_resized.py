"""What ranks exchange goes by the members that groups have: rows, messages, turns on devices, weights."""

import pytest
from resized_workers import Exchanging

from rlinf.scheduler import NodePlacementStrategy, PackedPlacementStrategy

DEADLINE_S = 60.0


@pytest.fixture
def groups(forked_job):
    """Two groups with gaps in their numbers: senders 0 and 2, receivers 0, 2 and 3."""
    senders, receivers = (
        Exchanging.create_group().launch(forked_job, NodePlacementStrategy([0] * 3), name=name)
        for name in ("senders", "receivers")
    )
    receivers.grow(1)
    senders.shrink(ranks=[1])
    receivers.shrink(ranks=[1])
    return senders, receivers


def test_rows_go_to_the_ranks_that_there_are(groups):
    senders, receivers = groups
    sent, received = senders.send_rows("receivers"), receivers.recv_rows("senders")
    sent.wait(DEADLINE_S)
    assert received.wait(DEADLINE_S) == [
        [(0, row) for row in range(4)],
        [(0, 4), (0, 5), (2, 0), (2, 1)],
        [(2, row) for row in range(2, 6)],
    ]
    (new,) = receivers.grow(1)
    assert (new, receivers.ranks) == (4, (0, 2, 3, 4))
    sent, received = senders.send_rows("receivers"), receivers.recv_rows("senders")
    sent.wait(DEADLINE_S)
    assert [len(rows) for rows in received.wait(DEADLINE_S)] == [3] * 4


def test_a_message_to_a_rank_that_has_left_is_an_error_at_once_and_one_that_came_is_reached(groups):
    senders, receivers = groups
    kind, text = senders[0].send_one("receivers", 1).wait(DEADLINE_S)[0]
    assert kind in ("PeerNotFound", "PeerDied")
    assert "left" in text
    sent, received = senders[0].send_one("receivers", 3), receivers[3].recv_one("senders")
    assert (sent.wait(DEADLINE_S), received.wait(DEADLINE_S)) == ([None], ["hello"])


def test_ranks_have_their_devices_together_as_many_as_they_are(forked_job):
    group = Exchanging.create_group().launch(forked_job, PackedPlacementStrategy(0, 2), name="turns")
    assert group.have_devices_together().wait(DEADLINE_S) == [(0, 1, 2)] * 3
    waiting = group[:2].have_devices_together()
    group.shrink(1)
    assert waiting.wait(DEADLINE_S) == [(0, 1)] * 2
    group.grow(1)
    assert group.have_devices_together().wait(DEADLINE_S) == [(0, 1, 3)] * 3


def test_ranks_that_ask_for_devices_as_they_were_before_wait_for_none_that_has_left(forked_job):
    group = Exchanging.create_group().launch(forked_job, PackedPlacementStrategy(0, 2), name="late")
    group.want_devices_together().wait(DEADLINE_S)
    group.shrink(1)
    assert group.have_devices_as_wanted().wait(DEADLINE_S) == [(0, 1)] * 2


def test_weights_are_whole_when_the_ranks_that_there_are_have_published(groups):
    senders, receivers = groups
    senders.publish(1).wait(DEADLINE_S)
    assert receivers.fetch(1, senders.ranks).wait(DEADLINE_S) == [[1, 1]] * 3
    senders.grow(1)
    senders.publish(2).wait(DEADLINE_S)
    assert receivers.fetch(2, senders.ranks).wait(DEADLINE_S) == [[2, 2, 2]] * 3
