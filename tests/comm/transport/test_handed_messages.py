"""A thread that hands a message over writes it by itself while the I/O thread sleeps: once, in order, or not at all."""

import contextlib
import itertools
import signal
import socket
import threading
import weakref

import numpy as np
import pytest

from interruptions import NUM_STEPS, SEED, Steps
from line_ends import DEADLINE_S, line_between, on_thread, shut, until
from rlinf.scheduler.comm.transport.handed_message import HandedMessage
from rlinf.scheduler.errors import CommTimeout


class Noting:
    """A link that notes what it is told."""

    def __init__(self):
        self.written = []

    def note_written(self, message):
        self.written.append(message)


@pytest.fixture
def ends():
    one, other = socket.socketpair()
    one.setblocking(False)
    other.setblocking(False)
    with one, other:
        yield one, other


def received(connection):
    try:
        return connection.recv(1 << 20)
    except BlockingIOError:
        return b""


def test_whoever_is_first_writes_a_message(ends):
    link = Noting()
    by_thread, by_owner = HandedMessage([b"one"]), HandedMessage([b"two"])
    by_thread.write(link, ends[0], b"before, one")
    by_thread.settle()
    by_owner.settle()
    by_owner.write(link, ends[0], b"two")
    assert (by_thread.is_written, by_owner.is_written) == (True, False)
    assert link.written == [by_thread]
    assert received(ends[1]) == b"before, one"


def test_what_a_thread_could_not_write_is_left(ends):
    one, other = ends
    whole, part, none = (HandedMessage([b"x"]) for _ in range(3))
    assert whole.write(Noting(), one, b"x" * 1000)
    assert not part.write(Noting(), one, b"x" * (8 << 20))
    assert not none.write(Noting(), one, b"x")
    assert bytes(whole.left()) == b""
    assert 0 < len(part.left()) < 8 << 20
    assert bytes(none.left()) == b"x"
    other.close()
    broken = HandedMessage([b"x"])
    broken.write(Noting(), one, b"x")
    assert bytes(broken.left()) == b"x"


@contextlib.contextmanager
def handlers():
    before = signal.getsignal(signal.SIGUSR1)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_thread_that_is_interrupted_anywhere_has_written_all_of_it_or_nothing(ends):
    sent = []

    def write():
        sent[-1].write(Noting(), ends[0], b"x")

    with handlers():
        steps = Steps(SEED)
        for _ in range(100):
            sent.append(HandedMessage([b"x"]))
            steps.attempt(write)
            sent[-1].settle()
            assert received(ends[1]) == b"x" * sent[-1].is_written
            if sent[-1].is_written:
                assert bytes(sent[-1].left()) == b""
    assert {message.is_written for message in sent} == {True, False}


def test_what_comes_to_the_io_thread_at_any_step_is_written_by_one_of_the_two(ends):
    sent = []

    def write():
        sent[-1].write(Noting(), ends[0], b"x")

    firsts = set()

    def settle(_number):
        sent[-1].settle()
        firsts.add(sent[-1].is_written)

    with handlers():
        steps = Steps(SEED, settle)
        for _ in range(100):
            before = steps.num_signals
            sent.append(HandedMessage([b"x"]))
            steps.attempt(write)
            if steps.num_signals > before:
                assert received(ends[1]) == b"x" * sent[-1].is_written
            received(ends[1])
    assert firsts == {True, False}


# -- between two processes' messengers -----------------------------------------------------------


@pytest.fixture
def near(new_messenger):
    """A client and a server of one machine that know each other, with what the server has heard."""
    client, server = new_messenger("client:0"), new_messenger("server:0")
    heard = []
    server.serve("note", lambda request: (heard.append(request.head), request.reply(request.head)))
    assert client.request(server.endpoint, "note", "first").result(DEADLINE_S).head == "first"
    return client, server, heard


def asleep(client, server):
    """Wait until nothing is to come that would wake the client's I/O thread, and that sleeps."""
    links = line_between(client, server).link, line_between(server, client).link
    until(lambda: not any(link._session.num_unacknowledged or link._ack_timer for link in links))
    until(lambda: client._loop._sleeping and not client._loop._ready)


@pytest.fixture
def unwoken(near, monkeypatch):
    """The same; nobody wakes the client's I/O thread but what comes from outside."""
    client, server, _ = near
    asleep(client, server)
    monkeypatch.setattr(client._loop, "_wake", lambda: None)
    yield near
    monkeypatch.undo()
    client._loop._wake()


def test_a_request_needs_no_io_thread_to_be_sent(unwoken):
    client, server, heard = unwoken
    assert client.request(server.endpoint, "note", 1).result(DEADLINE_S).head == 1
    assert heard == ["first", 1]


def test_who_waits_for_no_longer_than_a_time_wakes_the_io_thread(near):
    client, server, _ = near
    server.serve("never", lambda request: None)
    with pytest.raises(CommTimeout):
        client.request(server.endpoint, "never", 1, timeout_s=0.05).result(DEADLINE_S)


def test_nothing_overtakes_what_was_handed_over_before(unwoken):
    client, server, heard = unwoken
    client.notify(server.endpoint, "note", 1)
    last = client.request(server.endpoint, "note", 2)
    assert not last.wait(0.05)
    assert heard == ["first"]
    server.notify(client.endpoint, "nothing", None)  # wakes it
    assert last.result(DEADLINE_S).head == 2
    assert heard == ["first", 1, 2]


def test_nobody_writes_while_the_io_thread_is_still_at_what_came_before(near, monkeypatch):
    """The line's first one may be taken from it between two looks: it is not over then."""
    client, server, heard = near
    loop = client._loop
    begun, may_go_on = threading.Event(), threading.Event()

    def notify():
        begun.set()
        assert may_go_on.wait(DEADLINE_S)
        client.notify_first(server.endpoint, "note", 1)

    def look_late(callback, look=loop._is_next):
        loop._wake()
        assert begun.wait(DEADLINE_S)
        return look(callback)

    until(lambda: loop._sleeping and not loop._ready)
    loop._ready.append(notify)  # as of a thread that has not come to waking it yet
    with monkeypatch.context() as patch:
        patch.setattr(loop, "_is_next", look_late)
        answer = client.request(server.endpoint, "note", 2)
    may_go_on.set()
    assert answer.result(DEADLINE_S).head == 2
    assert heard == ["first", 1, 2]


def test_a_reply_that_is_still_awaited_keeps_no_memory_of_what_was_sent(near):
    client, server, _ = near
    server.serve("never", lambda request: None)
    memory = np.zeros(1 << 20, np.uint8)
    sent = weakref.ref(memory)
    options = {"snapshot": False, "timeout_s": 2 * DEADLINE_S}
    answer = client.request(server.endpoint, "never", None, [memory.data], **options)
    del memory
    until(lambda: sent() is None)
    assert not answer.done()


def test_what_waits_to_be_sent_late_goes_before_it(near):
    client, server, heard = near
    line = line_between(client, server)
    # As the word that an answer was taken: it goes with what comes next.
    notice = client.prepare(server.endpoint, "note", "late").message.pieces
    on_thread(client, lambda: line.send(notice, late=True))
    assert client.request(server.endpoint, "note", "next").result(DEADLINE_S).head == "next"
    assert heard == ["first", "late", "next"]


def test_a_large_request_goes_over_the_io_thread(unwoken):
    client, server, _ = unwoken
    large = client.request(server.endpoint, "note", 1, [bytes(1 << 20)])
    assert not large.wait(0.05)
    server.notify(client.endpoint, "nothing", None)
    assert large.result(DEADLINE_S).head == 1


class Held:
    """A connection on which the first `send` waits until it may go on."""

    def __init__(self, connection):
        self.connection = connection
        self.begun, self.may_go_on = threading.Event(), threading.Event()

    def send(self, data, *_flags):
        if not self.begun.is_set():
            self.begun.set()
            assert self.may_go_on.wait(DEADLINE_S)
        return self.connection.send(data)

    def __getattr__(self, name):
        return getattr(self.connection, name)


def begin_to_write(client, server):
    """A thread that is in the middle of writing a request; the connection, and what gets its answer."""
    line = line_between(client, server)
    held = Held(line.link.connection)
    asleep(client, server)
    line.link.connection = held
    answers = []
    thread = threading.Thread(
        target=lambda: answers.append(client.request(server.endpoint, "note", 1)), daemon=True
    )
    thread.start()
    assert held.begun.wait(DEADLINE_S)
    return held, thread, answers


def test_what_others_send_meanwhile_waits_for_a_thread_that_is_writing(near):
    client, server, heard = near
    held, thread, answers = begin_to_write(client, server)
    second = client.request(server.endpoint, "note", 2)
    assert on_thread(client, lambda: line_between(client, server).link._handed) is not None
    assert not second.wait(0.05)
    held.may_go_on.set()
    assert second.result(DEADLINE_S).head == 2
    thread.join(DEADLINE_S)
    assert answers[0].result(DEADLINE_S).head == 1
    assert heard == ["first", 1, 2]


def test_a_connection_that_is_cut_while_a_thread_writes_is_closed_after_it(near):
    client, server, heard = near
    held, thread, answers = begin_to_write(client, server)
    second = client.request(server.endpoint, "note", 2)
    shut(server, client)
    assert not second.wait(0.05)
    assert held.connection.fileno() >= 0
    held.may_go_on.set()
    assert second.result(DEADLINE_S).head == 2
    thread.join(DEADLINE_S)
    assert answers[0].result(DEADLINE_S).head == 1
    assert heard == ["first", 1, 2]


def test_a_request_that_is_given_up_before_its_sender_knows_of_it_is_withdrawn(unwoken):
    client, server, _ = unwoken
    cancelled = threading.Event()
    server.serve("never", lambda request: request.on_cancel(cancelled.set))
    client.request(server.endpoint, "never", 1).cancel()
    server.notify(client.endpoint, "nothing", None)
    assert cancelled.wait(DEADLINE_S)


@pytest.mark.interrupted
@pytest.mark.parametrize("asks", [False, True], ids=["handlers raise", "handlers ask and wait"])
def test_requests_that_are_interrupted_anywhere_arrive_once_and_in_order(near, asks):
    client, server, heard = near
    numbers = itertools.count()
    answered = []

    def ask():
        number = next(numbers)
        answered.append(client.request(server.endpoint, "note", number).result(DEADLINE_S).head)

    with handlers():
        steps = Steps(SEED, (lambda _number: ask()) if asks else None)
        for _ in range(NUM_STEPS):
            steps.attempt(ask)
    assert steps.num_signals > 50
    ask()
    del heard[0]
    if asks:
        # A handler's request may stand before the one that it came in the middle of.
        assert sorted(heard) == sorted(answered) == list(range(len(heard)))
    else:
        assert heard == sorted(set(heard))
        assert set(answered) <= set(heard)
