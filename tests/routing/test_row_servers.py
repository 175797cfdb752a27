"""Rows of whoever asks, in batches of what is there; each answer goes to its asker."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from rlinf.testing import LocalRuntime
from rlinf_scheduler import Channel
from rlinf_scheduler.errors import ChannelClosed, ChannelTimeout, CodecError, RouteError
from rlinf_scheduler.routing import RowServer, ask_rows
from waits import wait_until

WAIT_S = 60.0


@pytest.fixture
def requests():
    with LocalRuntime():
        yield Channel.create("requests")


def asked(requests, *sizes):
    """Handles of questions of such sizes, in the queue by now."""
    handles = [
        ask_rows(requests, [(n, row) for row in range(size)], async_op=True) for n, size in enumerate(sizes)
    ]
    wait_until(lambda: requests.qsize() == len(sizes))
    return handles


def test_each_asker_gets_the_answers_to_its_rows(requests):
    handles = asked(requests, 3, 1, 2)
    batch = RowServer(requests, 64).next(WAIT_S)
    assert (batch.sizes, len(batch), batch.asked_by) == ((3, 1, 2), 6, ("driver",) * 3)
    batch.reply([("answer", *row) for row in batch.rows])
    assert [handle.wait(WAIT_S) for handle in handles] == [
        [("answer", n, row) for row in range(size)] for n, size in enumerate((3, 1, 2))
    ]


def test_a_batch_has_at_most_so_many_rows_and_the_rest_comes_first_in_the_next(requests):
    handles = asked(requests, 3, 3, 3, 1, 9, 2)
    server = RowServer(requests, 7, 0.0)
    sizes = []
    while sum(map(len, sizes)) < 6:
        batch = server.next(WAIT_S)
        sizes.append(batch.sizes)
        batch.reply(batch.rows)
    # One that alone has more is a batch of its own.
    assert sizes == [(3, 3), (3, 1), (9,), (2,)]
    assert [len(handle.wait(WAIT_S)) for handle in handles] == [3, 3, 3, 1, 9, 2]


def test_a_batch_waits_for_more_only_so_long(requests):
    server = RowServer(requests, 64, 0.05)
    (handle,) = asked(requests, 2)
    batch = server.next(WAIT_S)
    assert batch.sizes == (2,)
    batch.reply([0, 0])
    handle.wait(WAIT_S)


def test_a_full_batch_does_not_wait(requests):
    handles = asked(requests, 2, 2)
    batch = RowServer(requests, 4, WAIT_S).next(WAIT_S)
    batch.reply(np.arange(4))
    assert [list(handle.wait(WAIT_S)) for handle in handles] == [[0, 1], [2, 3]]


def test_an_error_of_the_server_is_every_askers(requests):
    handles = asked(requests, 1, 2)
    assert not RowServer(requests, 8).next(WAIT_S).answer(lambda rows: rows[7])
    for handle in handles:
        with pytest.raises(IndexError):
            handle.wait(WAIT_S)


def test_an_answer_that_cannot_be_sent_to_one_asker_fails_for_those_who_have_none(requests):
    first, *others = asked(requests, 1, 1, 1)
    batch = RowServer(requests, 8).next(WAIT_S)
    assert not batch.answer(lambda rows: ["fine", threading.Lock(), "late"])
    assert first.wait(WAIT_S) == ["fine"]
    for handle in others:
        with pytest.raises(CodecError, match="lock"):
            handle.wait(WAIT_S)


def test_an_answer_with_other_rows_answers_nobody_and_can_be_given_again(requests):
    (handle,) = asked(requests, 2)
    batch = RowServer(requests, 8).next(WAIT_S)
    with pytest.raises(RouteError, match="parts of 2 rows are not the batch's 3"):
        batch.reply([1, 2, 3])
    batch.reply([1, 2])
    assert handle.wait(WAIT_S) == [1, 2]


def test_questions_that_do_not_fit_are_answered_with_why_and_the_server_goes_on(requests):
    with ThreadPoolExecutor(1) as pool:
        served = pool.submit(
            lambda: [(len(batch), batch.reply(batch.rows)) for batch in RowServer(requests, 4)]
        )
        with pytest.raises(RouteError, match="nothing in it has rows"):
            requests.ask("no rows", timeout_s=WAIT_S)
        with pytest.raises(RouteError, match="a batch without rows asks nothing"):
            requests.ask([], timeout_s=WAIT_S)
        assert ask_rows(requests, [1, 2], timeout_s=WAIT_S) == [1, 2]
        requests.close()
        assert served.result(WAIT_S) == [(2, None)]


def test_rows_of_different_forms_in_one_batch_are_answered_with_why(requests):
    handles = [ask_rows(requests, batch, async_op=True) for batch in ([1], {"a": [1]})]
    wait_until(lambda: requests.qsize() == 2)
    with pytest.raises(ChannelTimeout):
        RowServer(requests, 4).next(0.2)
    for handle in handles:
        with pytest.raises(RouteError, match="batch is not the same in all parts: a list, a dict"):
            handle.wait(WAIT_S)


def test_a_batch_that_is_dropped_is_another_servers(requests):
    (handle,) = asked(requests, 2)
    RowServer(requests, 8).next(WAIT_S)
    batch = RowServer(requests, 8).next(WAIT_S)
    batch.reply([1, 2])
    assert handle.wait(WAIT_S) == [1, 2]


def test_a_server_ends_with_the_channel_and_says_when_nobody_asks(requests):
    server = RowServer(requests, 8)
    with pytest.raises(ChannelTimeout):
        server.next(0.01)
    requests.close()
    assert list(server) == []
    with pytest.raises(ChannelClosed):
        server.next(WAIT_S)


def test_what_has_no_rows_is_not_asked(requests):
    with pytest.raises(RouteError, match="a batch without rows asks nothing"):
        ask_rows(requests, [])
    with pytest.raises(RouteError, match="max_rows=0: a whole number from 1 on"):
        RowServer(requests, 0)
    assert requests.qsize() == 0


def test_many_askers_and_servers_lose_and_double_no_row(requests):

    def serve():
        seen = 0
        for batch in RowServer(requests, 16, 0.001):
            assert len(batch) <= 16
            seen += len(batch)
            batch.reply(batch.rows * 2)
        return seen

    def ask(asker):
        for step in range(30):
            rows = np.arange(1 + (asker + step) % 5) + 1000 * asker
            assert np.array_equal(ask_rows(requests, rows, timeout_s=WAIT_S), rows * 2)
        return sum(1 + (asker + step) % 5 for step in range(30))

    with ThreadPoolExecutor(8) as pool:
        servers = [pool.submit(serve) for _ in range(2)]
        askers = [pool.submit(ask, asker) for asker in range(4)]
        total = sum(asker.result(WAIT_S) for asker in askers)
        requests.close()
        assert sum(server.result(WAIT_S) for server in servers) == total
