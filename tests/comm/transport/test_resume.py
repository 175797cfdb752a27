"""A session outlives its connections: what is cut, falls silent or is dialled twice goes on where it stopped."""

import contextlib
import logging
import os
import random
import resource
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

import comm_peers
from rlinf_scheduler.comm.transport import peer_session as session_module
from rlinf_scheduler.comm.transport.peer_transport import PeerTransport
from rlinf_scheduler.errors import CommError, CommTimeout, PeerDied

DEADLINE_S = 60.0


def transport_between(messenger, other):
    return messenger._peers.by_id[other.endpoint.process_id].transport


def on_thread(messenger, function):
    """The function's result, from the I/O thread."""
    results, done = [], threading.Event()
    messenger.submit(lambda: (results.append(function()), done.set()))
    assert done.wait(DEADLINE_S)
    return results[0]


def until(condition):
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        os.sched_yield()


def shut(messenger, other):
    """Cut the connection as the network would: whatever is under way in either direction may be lost."""

    def cut():
        link = transport_between(messenger, other).link
        if link is not None:
            with contextlib.suppress(OSError):
                # Not the TLS socket's own method: that goes on in the clear afterwards.
                socket.socket.shutdown(link.connection, socket.SHUT_RDWR)

    on_thread(messenger, cut)


class Faulty:
    """A socket of a link that breaks after some more bytes, in the middle of whatever is then under way."""

    def __init__(self, connection, left):
        self.connection = connection
        self.left = left

    def _spend(self, wanted):
        if self.left <= 0:
            raise ConnectionResetError(104, "reset")
        self.left -= min(self.left, wanted)

    def send(self, data):
        data = memoryview(data)[: max(1, self.left)]
        self._spend(len(data))
        return self.connection.send(data)

    def sendmsg(self, pieces):
        return self.send(pieces[0])

    def recv_into(self, memory):
        memory = memory[: max(1, self.left)]
        count = self.connection.recv_into(memory)
        self._spend(count)
        return count

    def __getattr__(self, name):
        return getattr(self.connection, name)


@contextlib.contextmanager
def out_of_descriptors():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.close(free := os.open("/", os.O_RDONLY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_who_has_no_descriptor_to_connect_with_connects_when_it_has_one(new_messenger):
    server, client = new_messenger("server:0"), new_messenger("client:0")
    server.serve("echo", lambda request: request.reply(request.head))
    with out_of_descriptors():
        answer = client.request(server.endpoint, "echo", 1)
        until(lambda: "no socket to be had for it (EMFILE)" in client.condition(server.endpoint.process_id))
    assert answer.result(DEADLINE_S).head == 1


def break_after(messenger, other, num_bytes):
    def install():
        link = transport_between(messenger, other).link
        if link is not None and not isinstance(link.connection, Faulty) and link._secure is None:
            link.connection = Faulty(link.connection, num_bytes)

    on_thread(messenger, install)


@pytest.fixture
def plain_pair(transport, new_messenger):
    """Two messengers whose sockets can be made to break at any byte: not encrypted."""
    machines = ("here", "there") if transport == "tcp" else (None, None)
    names = ("client:0", "server:0")
    return tuple(
        new_messenger(name, machine, encryption=False) for name, machine in zip(names, machines, strict=True)
    )


def counting(messenger, total, heard):
    done = threading.Event()

    def note(request):
        heard.append((request.head, len(request.frames[0])))
        if len(heard) >= total:
            done.set()

    messenger.serve("note", note)
    return done


def size_of(number):
    return 300_000 if number % 97 == 0 else number % 5000


@pytest.mark.parametrize("seed", range(4))
def test_connections_cut_at_any_byte_lose_nothing_and_bring_nothing_twice(plain_pair, seed):
    rng = random.Random(seed)
    total = 3000
    heard = {messenger: [] for messenger in plain_pair}
    done = [counting(messenger, total, heard[messenger]) for messenger in plain_pair]
    for one, other in (plain_pair, plain_pair[::-1]):
        for number in range(total):
            one.notify(other.endpoint, "note", number, [bytes(size_of(number))])
    cuts = 0
    deadline = time.monotonic() + DEADLINE_S
    while not all(event.is_set() for event in done):
        assert time.monotonic() < deadline
        one, other = rng.sample(plain_pair, 2)
        if cuts < 40:
            break_after(one, other, rng.randrange(200_000))
            cuts += 1
        done[0].wait(0.005)
    for messenger in plain_pair:
        assert heard[messenger] == [(number, size_of(number)) for number in range(total)]


def test_encrypted_connections_that_are_cut_lose_nothing_and_bring_nothing_twice(pair):
    rng = random.Random(1)
    total = 2000
    heard = {messenger: [] for messenger in pair}
    lost = []
    for messenger in pair:
        messenger.on_peer_lost(lambda _process_id, messenger=messenger: lost.append(messenger.name))
    done = [counting(messenger, total, heard[messenger]) for messenger in pair]
    for one, other in (pair, pair[::-1]):
        for number in range(total):
            one.notify(other.endpoint, "note", number, [bytes(size_of(number))])
    for _ in range(15):
        assert lost == []
        shut(*rng.sample(pair, 2))
        done[0].wait(0.01)
    for event, messenger in zip(done, pair, strict=True):
        assert event.wait(DEADLINE_S)
        assert heard[messenger] == [(number, size_of(number)) for number in range(total)]


def test_requests_under_way_are_answered_once_after_a_cut(pair):
    client, server = pair
    asked, held = [], []
    server.serve("hold", lambda request: (asked.append(request.head), held.append(request)))
    server.serve("echo", lambda request: request.reply(request.head))
    answers = [client.request(server.endpoint, "hold", number) for number in range(20)]
    client.request(server.endpoint, "echo", None).result(DEADLINE_S)
    lost = []
    client.on_peer_lost(lost.append)
    server.on_peer_lost(lost.append)
    shut(client, server)
    on_thread(server, lambda: [request.reply(request.head) for request in held] and None)
    assert [answer.result(DEADLINE_S).head for answer in answers] == asked == list(range(20))
    assert lost == []


def test_both_ends_dial_again_at_once_and_end_up_with_one_connection(pair):
    client, server = pair
    for messenger in pair:
        messenger.serve("echo", lambda request: request.reply(request.head))
    assert client.request(server.endpoint, "echo", 0).result(DEADLINE_S).head == 0
    for number in range(30):
        shut(*(pair if number % 2 else pair[::-1]))
        both = [one.request(other.endpoint, "echo", number) for one, other in (pair, pair[::-1])]
        assert [answer.result(DEADLINE_S).head for answer in both] == [number, number]
    transports = [transport_between(client, server), transport_between(server, client)]
    assert all(
        on_thread(messenger, lambda transport=transport: transport.link is not None)
        for messenger, transport in zip(pair, transports, strict=True)
    )


def test_what_was_received_is_not_kept_by_its_sender(pair):
    client, server = pair
    server.serve("echo", lambda request: request.reply(len(request.frames[0])))
    for _ in range(20):
        assert (
            client.request(server.endpoint, "echo", None, [bytes(1 << 20)]).result(DEADLINE_S).head == 1 << 20
        )
    deadline = time.monotonic() + DEADLINE_S
    while on_thread(client, lambda: transport_between(client, server).session.num_unacknowledged):
        assert time.monotonic() < deadline


@pytest.fixture
def impatient(transport, new_messenger):
    machines = ("here", "there") if transport == "tcp" else (None, None)
    return tuple(
        new_messenger(name, machine, unreachable_after_s=0.5)
        for name, machine in zip(("client:0", "server:0"), machines, strict=True)
    )


@contextlib.contextmanager
def unreachable(*messengers):
    """Nobody can connect meanwhile, and nobody is refused: as if the network were gone."""

    def connect(opening, _endpoint, _on_reached):
        opening.fail("no route to it (EHOSTUNREACH)")

    with pytest.MonkeyPatch.context() as patch:
        for messenger in messengers:
            patch.setattr(messenger._peers.sockets, "connect", connect)
        yield


def test_a_deadline_that_passes_meanwhile_is_told_with_the_reason(pair):
    client, server = pair
    server.serve("echo", lambda request: request.reply(request.head))
    assert client.request(server.endpoint, "echo", 1).result(DEADLINE_S).head == 1
    with unreachable(*pair):
        shut(client, server)
        until(lambda: client.condition(server.endpoint.process_id))
        late = client.request(server.endpoint, "echo", 2, timeout_s=0.1)
        with pytest.raises(CommTimeout, match=r"its answer; it is unreachable for \d+\.\d s: .*EHOSTUNREACH"):
            late.result(DEADLINE_S)


def test_after_the_grace_it_is_dead_for_both_and_they_may_begin_anew(impatient):
    client, server = impatient
    server.serve("never", lambda request: None)
    server.serve("echo", lambda request: request.reply(request.head))
    lost = {messenger: threading.Event() for messenger in impatient}
    for messenger in impatient:
        messenger.on_peer_lost(lambda _process_id, messenger=messenger: lost[messenger].set())
    waiting = client.request(server.endpoint, "never", None)
    assert client.request(server.endpoint, "echo", 1).result(DEADLINE_S).head == 1
    with unreachable(*impatient):
        shut(client, server)
        with pytest.raises(PeerDied, match=r"unreachable for \d+\.\d s: no route to it \(EHOSTUNREACH\)"):
            waiting.result(DEADLINE_S)
        assert all(event.wait(DEADLINE_S) for event in lost.values())
    assert client.request(server.endpoint, "echo", 2).result(DEADLINE_S).head == 2


def test_one_that_gave_the_other_up_for_dead_does_not_go_on_with_the_old_session(impatient):
    client, server = impatient
    server.serve("echo", lambda request: request.reply(request.head))
    assert client.request(server.endpoint, "echo", 1).result(DEADLINE_S).head == 1
    lost = threading.Event()
    server.on_peer_lost(lambda _process_id: lost.set())
    peer = client._peers.by_id[server.endpoint.process_id]
    on_thread(client, lambda: client._peers.lose(peer, "as if its grace had been over"))
    assert lost.wait(DEADLINE_S)
    assert client.request(server.endpoint, "echo", 2).result(DEADLINE_S).head == 2


def test_a_stopped_process_is_waited_for_and_goes_on(transport, new_messenger, start_process):
    messenger = new_messenger("driver", "here" if transport == "tcp" else None, unreachable_after_s=0.5)
    process, server = start_process(comm_peers.serve_echo)
    assert messenger.request(server, "echo", 1).result(DEADLINE_S).head == 1
    os.kill(process.pid, signal.SIGSTOP)
    until(lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    answer = messenger.request(server, "echo", 2)
    with pytest.raises(TimeoutError):
        answer.result(1.5)
    os.kill(process.pid, signal.SIGCONT)
    assert answer.result(DEADLINE_S).head == 2


def test_a_killed_process_is_noticed_at_once(transport, new_messenger, start_process):
    messenger = new_messenger("driver", "here" if transport == "tcp" else None)
    process, server = start_process(comm_peers.serve_echo)
    waiting = messenger.request(server, "never", None)
    assert messenger.request(server, "echo", 1).result(DEADLINE_S).head == 1
    process.kill()
    killed = time.monotonic()
    with pytest.raises(
        PeerDied,
        match=r"nothing listens at (its address|127\.0\.0\.1:\d+) any more \((ECONNREFUSED|ENOENT)\)",
    ):
        waiting.result(DEADLINE_S)
    assert time.monotonic() - killed < session_module.GRACE_S / 2


def test_an_io_thread_that_ends_takes_its_process_out_of_the_job_loudly(transport, new_messenger, caplog):
    machines = ("here", "there") if transport == "tcp" else (None, None)
    failures, failed = [], threading.Event()
    client = new_messenger("client:0", machines[0])
    server = new_messenger(
        "server:0", machines[1], on_failed=lambda error: (failures.append(error), failed.set())
    )
    server.serve("never", lambda request: None)
    client.serve("never", lambda request: None)
    waiting = client.request(server.endpoint, "never", None)
    own = server.request(client.endpoint, "never", None)
    client.request(server.endpoint, "unknown", None).exception(DEADLINE_S)
    server.call_later(30 * 86_400, lambda: None)

    def end():
        raise SystemExit

    server.submit(end)
    assert failed.wait(DEADLINE_S)
    with pytest.raises(CommError, match="I/O thread ended: SystemExit"):
        own.result(DEADLINE_S)
    with pytest.raises(PeerDied, match="server:0"):
        waiting.result(DEADLINE_S)
    with pytest.raises(CommError, match="I/O thread ended"):
        server.request(client.endpoint, "never", None).result(DEADLINE_S)
    assert any(record.levelno == logging.CRITICAL for record in caplog.records)
    server.close()


def test_what_comes_and_is_no_message_ends_the_session(pair, caplog):
    client, server = pair
    server.serve("never", lambda request: None)
    pending = client.request(server.endpoint, "never", None)
    client.request(server.endpoint, "unknown", None).exception(DEADLINE_S)
    on_thread(client, lambda: transport_between(client, server).send([b"\xff" * 100]))
    assert isinstance(pending.exception(DEADLINE_S), PeerDied)
    assert "it sent bytes that are no message" in caplog.text


def test_timers_and_silence_leave_nothing_behind_when_all_peers_have_gone(pair):
    client, server = pair
    server.serve("echo", lambda request: request.reply(request.head))
    assert client.request(server.endpoint, "echo", 1).result(DEADLINE_S).head == 1
    lost = threading.Event()
    client.on_peer_lost(lambda _process_id: lost.set())
    server.close()
    assert lost.wait(DEADLINE_S)
    assert (
        on_thread(
            client,
            lambda: [p for p in client._peers.by_id.values() if isinstance(p.transport, PeerTransport)],
        )
        == []
    )
    assert not client._peers.sockets._dirty


def test_the_defaults_are_what_the_documents_say():
    assert session_module.GRACE_S == 30.0
