"""Who does not hold the cluster's key gets nowhere, whatever he sends."""

import contextlib
import logging
import pickle
import secrets
import socket
import threading
from msgspec.structs import replace
from pathlib import Path

import pytest
import zmq

from rlinf.scheduler.comm import ClusterSecret, Messenger, framing
from rlinf.scheduler.comm.transport.curve import CurveKeys
from rlinf.scheduler.comm.transport.handshake import MAGIC
from rlinf.scheduler.errors import PeerDied

DEADLINE_S = 20.0


exploded = threading.Event()


class Bomb:
    """Its pickle says that it was read."""

    def __reduce__(self):
        return explode, ()


def explode():
    exploded.set()


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
    logger = logging.getLogger("rlinf.scheduler.comm")
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


@pytest.mark.parametrize("transport", ["unix"], indirect=True)
def test_captured_bytes_are_worth_nothing(server, friend, refused):
    captured = b"".join(
        [MAGIC, bytes(32), bytes(32), *framing.pack(framing.HELLO, 0, "x", ["a", "b", "c", "d"])]
    )
    with connect(server) as connection:
        connection.sendall(captured)
        answer = read_to_the_end(connection)
    assert len(answer) <= 64
    assert refused.wait(DEADLINE_S)
    friend()


@contextlib.contextmanager
def recording(server, path):
    """A proxy at `path` before the server; gives the pieces of what a client says to it."""
    said = []
    with socket.socket(socket.AF_UNIX) as listener, connect(server) as onward:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(DEADLINE_S)

        def forward():
            client, _ = listener.accept()
            client.settimeout(DEADLINE_S)
            back = threading.Thread(target=pump, args=(onward, client, []))
            back.start()
            pump(client, onward, said)
            back.join(DEADLINE_S)
            client.close()

        thread = threading.Thread(target=forward)
        thread.start()
        yield said
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


def pump(source, target, said):
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            said.append(data)
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("transport", ["unix"], indirect=True)
def test_a_recorded_session_is_worth_nothing(server, friend, refused, new_messenger, tmp_path):
    served = []
    server.serve("secret", lambda request: served.append(bytes(request.frames[0])) or request.reply(None))
    victim = new_messenger("victim:0")
    with recording(server, tmp_path / "proxy") as said:
        through = replace(server.endpoint, unix_path=str(tmp_path / "proxy"))
        victim.request(through, "secret", None, [b"take this"]).result(DEADLINE_S)
        victim.close()
    recorded = b"".join(said)
    assert b"take this" in recorded
    with connect(server) as connection:
        connection.sendall(recorded)
        read_to_the_end(connection)
    assert refused.wait(DEADLINE_S)
    assert served == [b"take this"]
    friend()


@pytest.mark.parametrize("transport", ["unix"], indirect=True)
def test_nonces_are_never_used_twice(server):
    answers = []
    for _ in range(2):
        with connect(server) as connection:
            connection.sendall(MAGIC + bytes(32))
            answers.append(connection.recv(64))
    assert answers[0][:32] != answers[1][:32]
    assert answers[0][32:] != answers[1][32:]


@pytest.mark.parametrize("transport", ["tcp"], indirect=True)
@pytest.mark.parametrize("client_key", ["another", "none"])
def test_the_servers_public_key_alone_does_not_open(server, friend, refused, secret, client_key):
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.linger = 0
        if client_key == "another":
            stranger.curve_publickey, stranger.curve_secretkey = zmq.curve_keypair()
            stranger.curve_serverkey = CurveKeys(secret).server_public
        monitor = stranger.get_monitor_socket()
        stranger.connect(server.endpoint.tcp_address)
        stranger.send_multipart([b"D" + bytes(16), pickle.dumps(Bomb())])
        assert refused.wait(DEADLINE_S)
        stranger.disable_monitor()
        monitor.close()
    assert not exploded.is_set()
    friend()


@pytest.mark.parametrize("transport", ["unix"], indirect=True)
def test_the_socket_lies_in_a_directory_that_only_its_user_may_enter(server):
    path = Path(server.endpoint.unix_path)
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert len(str(path)) < 108
    server.close()
    assert not path.parent.exists()


@pytest.mark.parametrize("transport", ["unix"], indirect=True)
def test_a_connection_that_says_nothing_is_dropped_at_its_deadline(server, friend, refused, monkeypatch):
    monkeypatch.setattr("rlinf.scheduler.comm.transport.unix_link.HANDSHAKE_TIMEOUT_S", 0.1)
    with connect(server) as connection:
        assert read_to_the_end(connection) == b""
    assert refused.wait(DEADLINE_S)
    friend()


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


def test_a_peer_that_is_too_busy_to_answer_is_not_taken_for_dead(pair, transport, monkeypatch):
    module = f"{transport}_{'link' if transport == 'unix' else 'transport'}"
    monkeypatch.setattr(f"rlinf.scheduler.comm.transport.{module}.HANDSHAKE_TIMEOUT_S", 0.05)
    client, server = pair
    server.serve("echo", lambda request: request.reply(request.head))
    free = threading.Event()
    server.submit(lambda: free.wait(DEADLINE_S))
    answer = client.request(server.endpoint, "echo", 1)
    client.call_later(0.2, free.set)
    assert answer.result(DEADLINE_S).head == 1


@pytest.mark.parametrize("transport", ["unix"], indirect=True)
def test_who_was_held_up_in_the_middle_of_its_own_handshake_dials_again(pair, refused, monkeypatch):
    monkeypatch.setattr("rlinf.scheduler.comm.transport.unix_link.HANDSHAKE_TIMEOUT_S", 0.05)
    client, server = pair
    server.serve("echo", lambda request: request.reply(request.head))
    free = threading.Event()
    client.submit(lambda: free.wait(DEADLINE_S))
    answer = client.request(server.endpoint, "echo", 1)
    client.submit(lambda: refused.wait(DEADLINE_S))  # after the connection is dialled, before it is read
    free.set()
    assert answer.result(DEADLINE_S).head == 1
    assert refused.is_set()
