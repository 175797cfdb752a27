"""Who does not hold the cluster's key gets nowhere, whatever he sends."""

import contextlib
import logging
import os
import pickle
import secrets
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from rlinf_scheduler.comm import ClusterSecret, Messenger, framing
from rlinf_scheduler.comm.transport.handshake import _HEADER, MAGIC, PROTOCOL_VERSION
from rlinf_scheduler.errors import PeerDied

DEADLINE_S = 60.0


exploded = threading.Event()


class Bomb:
    """Its pickle says that it was read."""

    def __reduce__(self):
        return explode, ()


def explode():
    exploded.set()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_users_of_large_numbers_are_told_from_each_other():
    ask = (
        "import os, socket; from rlinf_scheduler.comm.transport.listener import uid_of;"
        "os.setuid(3_000_000_000); assert uid_of(socket.socketpair()[0]) == os.getuid()"
    )
    subprocess.run([sys.executable, "-c", ask], check=True, timeout=DEADLINE_S)


@pytest.fixture
def server(transport, new_messenger):
    server = new_messenger("server:0", "there" if transport == "tcp" else None)
    server.serve("echo", lambda request: request.reply(request.head, request.frames))
    return server


@pytest.fixture
def friend(transport, new_messenger, server):
    """Someone of the cluster, who must be served all the while."""
    friend = new_messenger("friend:0", "here" if transport == "tcp" else None)

    def check():
        assert friend.request(server.endpoint, "echo", 1).result(DEADLINE_S).head == 1

    check()
    return check


@pytest.fixture
def refused(caplog):
    """An event that is set when a refusal is logged."""
    noticed = threading.Event()

    class Notice(logging.Handler):
        def emit(self, record):
            if "refused" in record.getMessage() or "dropped" in record.getMessage():
                noticed.set()

    handler = Notice(logging.WARNING)
    logger = logging.getLogger("rlinf_scheduler.comm")
    logger.addHandler(handler)
    yield noticed
    logger.removeHandler(handler)


def connect(messenger):
    endpoint = messenger.endpoint
    if endpoint.tcp_address:
        host, port = endpoint.tcp_address.removeprefix("tcp://").rsplit(":", 1)
        connection = socket.create_connection((host, int(port)), DEADLINE_S)
    else:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(endpoint.unix_path)
    connection.settimeout(DEADLINE_S)
    return connection


def read_to_the_end(connection):
    received = b""
    try:
        while data := connection.recv(4096):
            received += data
    except ConnectionResetError:
        pass
    return received


GARBAGE = [
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + b" " * 100,
    secrets.token_bytes(10_000),
    bytes(1000),
    b"\xff" * 1000,
    pickle.dumps(Bomb()) * 100,
    b"".join(framing.pack(framing.REQUEST, 1, "echo", None, [pickle.dumps(Bomb())])) * 10,
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=["http", "random", "zeros", "ones", "pickle", "request"])
def test_garbage_is_dropped_and_logged(server, friend, refused, garbage):
    with connect(server) as connection:
        connection.sendall(garbage)
        read_to_the_end(connection)
    assert refused.wait(DEADLINE_S)
    assert not exploded.is_set()
    friend()


def test_someone_with_another_key_is_refused(server, friend, refused, transport):
    other = Messenger(
        ClusterSecret.generate(), machine_id="here" if transport == "tcp" else None, tcp=transport == "tcp"
    )
    with pytest.raises(PeerDied):
        other.request(server.endpoint, "echo", None).result(DEADLINE_S)
    other.close()
    assert refused.wait(DEADLINE_S)
    friend()


HEADERS = {which: _HEADER.pack(MAGIC, PROTOCOL_VERSION, which == "tcp") for which in ("unix", "tcp")}


def test_captured_bytes_are_worth_nothing(server, friend, refused, transport):
    captured = b"".join(
        [HEADERS[transport], bytes(32), bytes(32), *framing.pack(framing.NOTIFY, 0, "echo", None)]
    )
    with connect(server) as connection:
        connection.sendall(captured)
        answer = read_to_the_end(connection)
    assert len(answer) <= 71
    assert refused.wait(DEADLINE_S)
    friend()


@contextlib.contextmanager
def recording(server, transport, path):
    """A proxy before the server; gives the endpoint that leads through it, and the pieces of what a client says."""
    said = []
    if transport == "tcp":
        bound_socket = socket.create_server(("127.0.0.1", 0))
        through = replace(server.endpoint, tcp_address=f"tcp://127.0.0.1:{bound_socket.getsockname()[1]}")
    else:
        bound_socket = socket.socket(socket.AF_UNIX)
        bound_socket.bind(str(path))
        bound_socket.listen()
        through = replace(server.endpoint, unix_path=str(path))
    with bound_socket, connect(server) as onward:
        bound_socket.settimeout(DEADLINE_S)

        def forward():
            client, _ = bound_socket.accept()
            client.settimeout(DEADLINE_S)
            back = threading.Thread(target=pump, args=(onward, client, []))
            back.start()
            pump(client, onward, said)
            back.join(DEADLINE_S)
            client.close()

        thread = threading.Thread(target=forward)
        thread.start()
        yield through, said
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


def pump(source, target, said):
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            said.append(data)
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def test_a_recorded_session_is_worth_nothing(server, friend, refused, new_messenger, transport, tmp_path):
    served = []
    server.serve("secret", lambda request: served.append(bytes(request.frames[0])) or request.reply(None))
    victim = new_messenger("victim:0", "here" if transport == "tcp" else None)
    with recording(server, transport, tmp_path / "proxy") as (through, said):
        victim.request(through, "secret", None, [b"take this"]).result(DEADLINE_S)
        victim.close()
    recorded = b"".join(said)
    # What goes over the network cannot be read.
    assert (b"take this" in recorded) == (transport == "unix")
    with connect(server) as connection:
        connection.sendall(recorded)
        read_to_the_end(connection)
    assert refused.wait(DEADLINE_S)
    assert served == [b"take this"]
    friend()


def test_nonces_are_never_used_twice(server, transport):
    answers = []
    for _ in range(2):
        with connect(server) as connection:
            connection.sendall(HEADERS[transport] + bytes(32))
            answers.append(connection.recv(71, socket.MSG_WAITALL))
    assert answers[0][7:39] != answers[1][7:39]
    assert answers[0][39:] != answers[1][39:]


def test_without_encryption_the_key_is_asked_for_all_the_same(secret):
    with contextlib.ExitStack() as stack:
        client, server, stranger = (
            Messenger(key, name=name, machine_id=name, tcp=True, encryption=False)
            for key, name in ((secret, "client"), (secret, "server"), (ClusterSecret.generate(), "stranger"))
        )
        for messenger in (client, server, stranger):
            stack.callback(messenger.close)
        server.serve("echo", lambda request: request.reply(request.head))
        assert client.request(server.endpoint, "echo", 1).result(DEADLINE_S).head == 1
        assert client.transports()[server.endpoint.process_id] == "tcp"
        with pytest.raises(PeerDied, match="does not hold the cluster's key"):
            stranger.request(server.endpoint, "echo", None).result(DEADLINE_S)


def test_two_that_do_not_agree_on_encryption_say_so(secret):
    with contextlib.ExitStack() as stack:
        client, server = (
            Messenger(secret, name=name, machine_id=name, tcp=True, encryption=name == "server")
            for name in ("client", "server")
        )
        for messenger in (client, server):
            stack.callback(messenger.close)
        with pytest.raises(PeerDied, match="it has encryption on, and this process has it off"):
            client.request(server.endpoint, "echo", None).result(DEADLINE_S)


def test_another_version_of_the_protocol_is_named_to_who_dials_it(
    server, friend, transport, new_messenger, caplog
):
    with connect(server) as connection:
        connection.sendall(_HEADER.pack(MAGIC, 77, transport == "tcp") + bytes(32))
        answer = read_to_the_end(connection)
    assert answer == HEADERS[transport]
    said = f"it speaks version 77 of the protocol, and this process version {PROTOCOL_VERSION}"
    until(lambda: said in caplog.text)
    friend()


@pytest.mark.parametrize("transport", ["unix"], indirect=True)
def test_the_socket_lies_in_a_directory_that_only_its_user_may_enter(server):
    path = Path(server.endpoint.unix_path)
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert len(str(path)) < 108
    server.close()
    assert not path.parent.exists()


def test_a_connection_that_says_nothing_is_dropped_at_its_deadline(server, friend, refused, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("rlinf_scheduler.comm.transport.listener.HANDSHAKE_TIMEOUT_S", 0.1)
        with connect(server) as connection:
            assert read_to_the_end(connection) == b""
        assert refused.wait(DEADLINE_S)
    friend()


def test_who_has_said_what_it_owes_is_not_dropped_when_it_is_this_process_that_is_late(
    server, transport, monkeypatch
):
    listener, begun, sent, kept = listener_of(server), *(threading.Event() for _ in range(3))

    def be_late():
        begun.set()
        assert sent.wait(DEADLINE_S)
        monkeypatch.setattr("rlinf_scheduler.comm.transport.listener.HANDSHAKE_TIMEOUT_S", 0.0)
        listener._drop_late()
        monkeypatch.undo()
        kept.set()

    with connect(server) as connection:
        until(lambda: listener.guests)
        server.submit(be_late)
        assert begun.wait(DEADLINE_S)
        connection.sendall(HEADERS[transport] + bytes(32))
        sent.set()
        assert kept.wait(DEADLINE_S)
        assert connection.recv(7) == HEADERS[transport]


@pytest.mark.parametrize("transport", ["tcp"], indirect=True)
def test_a_connection_that_was_taken_is_not_given_up_by_who_is_itself_late(pair):
    client, server = pair
    server.serve("echo", lambda request: request.reply(request.head))
    kept = []

    def dial_and_be_late():
        transport = client._peers.at(server.endpoint).transport
        attempt = transport._attempt
        until(attempt.is_answered)  # which this thread has not seen yet
        transport._on_no_answer(attempt)
        kept.append(transport._attempt is attempt)

    client.submit(dial_and_be_late)
    assert client.request(server.endpoint, "echo", 1).result(DEADLINE_S).head == 1
    assert kept == [True]


def test_friends_that_come_and_go_are_no_strangers(server, friend, new_messenger, transport, caplog):
    for number in range(3):
        guest = new_messenger(f"guest:{number}", "here" if transport == "tcp" else None)
        assert guest.request(server.endpoint, "echo", 1).result(DEADLINE_S).head == 1
        gone = threading.Event()
        server.on_peer_lost(lambda _process_id, gone=gone: gone.set())
        guest.close()
        assert gone.wait(DEADLINE_S)
        friend()
    assert caplog.text == ""


@pytest.mark.parametrize("transport", ["tcp"], indirect=True)
def test_it_listens_only_where_it_was_told(server):
    assert server.endpoint.tcp_address.startswith("tcp://127.0.0.1:")


def test_a_peer_that_is_too_busy_to_answer_is_not_taken_for_dead(pair):
    client, server = pair
    server.serve("echo", lambda request: request.reply(request.head))
    free, stands = threading.Event(), threading.Event()
    server.submit(lambda: (stands.set(), free.wait(DEADLINE_S)))
    assert stands.wait(DEADLINE_S)
    answer = client.request(server.endpoint, "echo", 1)
    until(lambda: "does not answer" in client.condition(server.endpoint.process_id))
    free.set()
    assert answer.result(DEADLINE_S).head == 1
    until(lambda: client.condition(server.endpoint.process_id) == "")


def test_who_was_held_up_in_the_middle_of_its_own_handshake_dials_again(pair, refused, monkeypatch):
    monkeypatch.setattr("rlinf_scheduler.comm.transport.listener.HANDSHAKE_TIMEOUT_S", 0.05)
    client, server = pair
    server.serve("echo", lambda request: request.reply(request.head))
    free = threading.Event()
    client.submit(lambda: free.wait(DEADLINE_S))
    answer = client.request(server.endpoint, "echo", 1)
    # After the connection is dialled, before it is read; the next one has its time.
    client.submit(lambda: (refused.wait(DEADLINE_S), monkeypatch.undo()))
    free.set()
    assert answer.result(DEADLINE_S).head == 1


# -- how much it costs ---------------------------------------------------------------------------


def listener_of(messenger):
    sockets = messenger._peers.sockets
    return sockets.tcp_listener or sockets.unix_listener


def until(condition):
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        os.sched_yield()


def num_descriptors():
    return len(os.listdir("/proc/self/fd"))


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


class CountedGuests(dict):
    """How many there were at a time, after each was let in."""

    most = 0

    def __setitem__(self, guest, value):
        super().__setitem__(guest, value)
        self.most = max(self.most, len(self))


def test_silent_strangers_take_up_a_bounded_number_of_descriptors(server, friend, caplog, monkeypatch):
    monkeypatch.setattr("rlinf_scheduler.comm.transport.listener.CROWDED_TIMEOUT_S", 0.05)
    listener = listener_of(server)
    listener.crowd = 5
    guests = listener.guests = CountedGuests()
    with contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(connect(server)) for _ in range(50)]
        for connection in crowd[:45]:
            read_to_the_end(connection)
        friend()
    until(lambda: not listener.guests)
    assert 0 < guests.most <= 5
    assert len(warnings(caplog)) <= 3  # one a kind: late, gone before we read, gone before we write


def test_a_friend_among_many_strangers_is_let_in(server, new_messenger, monkeypatch, transport):
    monkeypatch.setattr("rlinf_scheduler.comm.transport.listener.CROWDED_TIMEOUT_S", 0.2)
    listener_of(server).crowd = 5
    with contextlib.ExitStack() as stack:
        for _ in range(30):
            stack.enter_context(connect(server))
        late = new_messenger("late:0", "here" if transport == "tcp" else None)
        assert late.request(server.endpoint, "echo", 1).result(DEADLINE_S).head == 1


def test_many_strangers_leave_nothing_behind_and_do_not_flood_the_log(server, friend, caplog):
    listener = listener_of(server)
    descriptors, threads = num_descriptors(), threading.active_count()
    for number in range(200):
        with connect(server) as connection:
            connection.sendall(GARBAGE[number % len(GARBAGE)][: 5 if number % 7 == 0 else None])
            if number % 10 == 0:
                friend()
    until(lambda: num_descriptors() <= descriptors and not listener.guests)
    friend()
    assert threading.active_count() < threads + 10  # 200 were here; others may begin one
    until(lambda: warnings(caplog))
    assert len(warnings(caplog)) <= 3  # one a kind


def test_strangers_that_each_choose_another_number_are_one_kind(server, friend, transport, caplog):
    listener = listener_of(server)
    for version in range(1000, 1300):
        with connect(server) as connection:
            connection.sendall(_HEADER.pack(MAGIC, version, transport == "tcp"))
            read_to_the_end(connection)
    until(lambda: warnings(caplog))
    until(lambda: not listener.guests)
    assert len(warnings(caplog)) <= 2  # one a kind: its version, gone before we write
    assert len(listener._log._told) <= 2
    friend()


def test_a_process_that_is_out_of_descriptors_takes_connections_again_when_it_has_some(
    server, friend, monkeypatch, caplog
):
    listener = listener_of(server)
    bound_socket = listener._bound_socket

    class Exhausted:
        def __init__(self, left):
            self.left = left

        def accept(self):
            self.left -= 1
            if self.left >= 0:
                raise OSError(24, "too many open files")
            return bound_socket.accept()

        def __getattr__(self, name):
            return getattr(bound_socket, name)

    monkeypatch.setattr(listener, "_bound_socket", Exhausted(3))
    with connect(server) as connection:
        connection.sendall(b"x" * 100)
        read_to_the_end(connection)
    assert "no connection can be taken for now" in caplog.text
    friend()
