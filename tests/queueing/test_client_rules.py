"""The rules of a client's side of a channel, one by one; the simulator tells them together."""

from __future__ import annotations

from rlinf_scheduler.queueing.client import ClientState, End, Ending, Send, SendItem, SendWithdraw

Q = "default"


def test_what_was_delivered_has_met_its_deadline_and_can_no_longer_be_cancelled():
    for event in (ClientState.expire, ClientState.cancel):
        client = ClientState()
        client.get(1, Q)
        assert client.delivered(1)
        assert event(client, 1) == []
        assert client.taken(1)


def test_what_nobody_waits_for_goes_back_though_it_was_delivered():
    client = ClientState()
    client.get(1, Q)
    assert client.delivered(1)
    assert client.drop(1) == [SendWithdraw(1)]
    assert not client.taken(1)
    assert client.num_open == 0


def test_a_withdrawn_get_takes_nothing_that_was_under_way():
    client = ClientState()
    client.get(1, Q)
    assert client.expire(1) == [SendWithdraw(1)]
    assert not client.delivered(1)
    assert client.refused(1, "a state", withdrawn=True) == [End(1, Ending.TIMED_OUT, "a state")]
    assert client.num_open == 0


def test_a_put_that_is_not_answered_ends_and_keeps_its_credit_until_the_server_speaks():
    client = ClientState(credit_bytes=100)
    client.put(1, Q, 80)
    assert not client.put(2, Q, 80)
    assert client.expire(1) == [SendWithdraw(1)]
    assert client.give_up(1) == [End(1, Ending.UNANSWERED)]
    assert client.accepted([1]) == [Send(2)]


def test_puts_stay_behind_one_that_is_held_back_though_they_need_no_credit():
    client = ClientState(credit_bytes=100)
    client.put(1, Q, 80)
    client.put(2, Q, 80)
    assert not client.put(3, Q, 0)
    assert client.put(4, "another queue", 0)
    assert client.accepted([1]) == [Send(2), Send(3), End(1, Ending.ACCEPTED)]


def test_all_that_may_leave_goes_before_anybody_is_told_of_an_end():
    client = ClientState(credit_bytes=100)
    for ticket in (1, 2):
        client.put(ticket, Q, 50)
    assert [client.put(ticket, Q, 50) for ticket in (3, 4)] == [False, False]
    ends = [End(ticket, Ending.ACCEPTED) for ticket in (1, 2)]
    assert client.accepted([1, 2]) == [Send(3), Send(4), *ends]


def test_a_put_that_is_held_back_ends_at_once_when_it_is_given_up():
    client = ClientState(credit_bytes=100)
    client.put(1, Q, 80)
    client.put(2, Q, 80)
    (end,) = client.expire(2)
    assert (end.ticket, end.ending) == (2, Ending.TIMED_OUT)


def test_a_withdrawn_put_is_not_filled():
    client = ClientState()
    client.put(1, Q, 0)
    assert client.granted(1) == [SendItem(1)]
    client.cancel(1)
    assert client.granted(1) == []
