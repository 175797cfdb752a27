"""Puts that may not leave yet: those behind them wait, and nothing else does."""

import pytest

from rlinf_scheduler.queueing.client import ClientState, End, Ending, Send


@pytest.mark.parametrize("credit_bytes", [0, 100])
def test_what_is_behind_a_put_that_is_not_ready_waits_in_order(credit_bytes):
    client = ClientState(credit_bytes)
    assert not client.put(1, "q", 0, is_ready=False)
    assert not client.put(2, "q", 10)
    assert not client.put(3, "q", 0, is_ready=False)
    assert client.put(4, "other", 10)
    assert client.ready(3, 0) == []
    assert client.ready(1, 0) == [Send(1), Send(2), Send(3)]
    assert client.put(5, "q", 10)


@pytest.mark.parametrize("credit_bytes", [0, 100])
def test_one_that_is_given_up_lets_the_next_leave(credit_bytes):
    client = ClientState(credit_bytes)
    client.put(1, "q", 0, is_ready=False)
    client.put(2, "q", 10)
    sent, ended = client.cancel(1)
    assert (ended.ticket, ended.ending, sent) == (1, Ending.CANCELLED, Send(2))
    assert client.ready(1, 0) == []
    assert client.accepted([2]) == [End(2, Ending.ACCEPTED)]
    assert client.num_open == 0


def test_one_that_goes_as_bytes_after_all_needs_credit():
    client = ClientState(credit_bytes=100)
    client.put(1, "q", 80)
    client.put(2, "q", 0, is_ready=False)
    assert client.ready(2, 80) == []
    assert client.accepted([1]) == [Send(2), End(1, Ending.ACCEPTED)]


def test_where_credit_has_no_end_nothing_is_kept_of_a_line_that_is_over():
    client = ClientState()
    client.put(1, "q", 80)
    client.put(2, "q", 0, is_ready=False)
    client.ready(2, 80)
    assert client._credits == {}
    assert client.accepted([1]) == [End(1, Ending.ACCEPTED)]
