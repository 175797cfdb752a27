"""The rules of what comes to a channel's server by shortcuts, one by one; the simulator tells them together."""

from __future__ import annotations

from rlinf_scheduler.channel.clients import DirectOperations
from rlinf_scheduler.queueing.item import Item
from rlinf_scheduler.queueing.messages import Accept, Deliver, Get, Put, Reason, Refuse
from rlinf_scheduler.queueing.state import ChannelState
from rlinf_scheduler.queueing.surveying import QueueSurvey

Q = "default"


def nothing_to_read(_client):
    return None


def test_what_stands_behind_others_waits_until_they_were_read():
    direct = DirectOperations()
    assert not direct.arrive("way", 7, "seventh", after=2)
    assert not direct.arrive("another way", 8, "eighth", after=1)
    assert direct.read() == [("another way", "eighth")]
    assert direct.read() == [("way", "seventh")]
    assert direct.arrive("way", 9, "ninth", after=2)


def test_an_answer_goes_once_where_its_operation_came_from():
    direct = DirectOperations()
    direct.arrive("way", 7, "get", after=0)
    assert direct.end(7) == "way"
    assert direct.end(7) is None
    assert direct.accept(8) is None


def test_who_recalls_a_put_whose_item_is_in_its_queue_is_told_so():
    direct, state = DirectOperations(), ChannelState()
    direct.arrive("way", 7, "put", after=0)
    state.apply(Put(7, Q), "client", Item("item"))
    direct.accept(7)
    assert direct.query_outcome("client", 7, state, nothing_to_read) == [Accept("client", 7)]


def test_a_put_that_waits_is_withdrawn_when_it_is_recalled():
    direct, state = DirectOperations(), ChannelState(maxsize=1)
    state.apply(Put(6, Q), "client", Item("first"))
    direct.arrive("way", 7, "put", after=0)
    state.apply(Put(7, Q), "client", Item("second"))
    (refusal,) = direct.query_outcome("client", 7, state, nothing_to_read)
    assert refusal[:3] == ("client", 7, Reason.CANCELLED)
    assert direct.end(7) is None, "nobody listens there any more"


def test_a_recall_finds_what_nobody_has_read_yet():
    direct, state = DirectOperations(), ChannelState()
    state.apply(Put(1, Q), "producer", Item("item"))
    delivered = []

    def read_all(client):
        direct.arrive("way", 7, "get", after=0)
        delivered.extend(state.apply(Get(7, Q), client))

    (refusal,) = direct.query_outcome("client", 7, state, read_all)
    assert type(delivered[0]) is Deliver
    assert type(refusal) is Refuse
    assert QueueSurvey(state).num_items(Q) == 1


def test_what_is_recalled_before_its_turn_is_never_done():
    direct, state = DirectOperations(), ChannelState()
    direct.arrive("way", 7, "put", after=1)
    assert direct.query_outcome("client", 7, state, nothing_to_read) == [
        Refuse("client", 7, Reason.CANCELLED, "")
    ]
    assert direct.read() == []


def test_nothing_is_kept_of_a_thread_that_has_left():
    direct, state = DirectOperations(), ChannelState()
    direct.arrive("way", 7, "put", after=0)
    direct.accept(7)
    direct.leave("way")
    assert direct.query_outcome("client", 7, state, nothing_to_read) == [
        Refuse("client", 7, Reason.CANCELLED, "")
    ]
