"""What somebody can do to the TCP port who has no key: take up a descriptor for a while, and be logged."""

import contextlib
import logging
import os
import pickle
import secrets
import socket
import threading
import time
from msgspec.structs import replace

import pytest
import zmq

from rlinf.scheduler.comm.transport.curve import CurveKeys

DEADLINE_S = 20.0
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01"
exploded = threading.Event()


class Bomb:
    """Its pickle says that it was read."""

    def __reduce__(self):
        return explode, ()


def explode():
    exploded.set()


@pytest.fixture
def server(new_messenger):
    server = new_messenger("server:0", "there")
    server.serve("echo", lambda request: request.reply(request.head, request.frames))
    return server


@pytest.fixture
def gate(server):
    return server._tcp._gate


@pytest.fixture
def friend(new_messenger, server):
    """Asks the server for an echo, which it must give all the while."""
    friend = new_messenger("friend:0", "here")

    def check():
        assert friend.request(server.endpoint, "echo", 1).result(DEADLINE_S).head == 1

    check()
    return check


def address_of(messenger):
    host, port = messenger.endpoint.tcp_address.removeprefix("tcp://").rsplit(":", 1)
    return host, int(port)


def connect(server):
    return socket.create_connection(address_of(server), DEADLINE_S)


def connect_and_be_seen(server):
    """A connection that the server has taken note of."""
    connection = connect(server)
    host, port = connection.getsockname()
    until(lambda: any(s.where == f"{host}:{port}" for s in list(server._tcp._gate._strangers.values())))
    return connection


def until(condition):
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        os.sched_yield()


def hung_up(connection):
    """Whether the other side ends the connection by its deadline."""
    with contextlib.suppress(ConnectionError):
        while connection.recv(4096):
            pass
    return True


def num_descriptors():
    return len(os.listdir("/proc/self/fd"))


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr("rlinf.scheduler.comm.transport.tcp_gate.SILENT_TIMEOUT_S", 0.5)


@pytest.mark.usefixtures("impatient")
def test_who_says_nothing_is_dropped_in_time_and_named(server, gate, friend, caplog):
    with connect_and_be_seen(server) as connection:
        name = "{}:{}".format(*connection.getsockname())
        assert hung_up(connection)
    until(lambda: warnings(caplog))
    (line,) = warnings(caplog)
    assert f"a connection from {name} is refused: it did not begin to talk in time" in line
    friend()


def test_silent_strangers_take_up_a_bounded_number_of_descriptors(server, friend, gate, caplog, monkeypatch):
    monkeypatch.setattr("rlinf.scheduler.comm.transport.tcp_gate.CROWDED_TIMEOUT_S", 0.05)
    gate._crowd = 5
    with contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(connect(server)) for _ in range(50)]
        assert all(hung_up(connection) for connection in crowd[:45])
        until(lambda: len(gate._strangers) == 5)
        friend()
    until(lambda: not gate._strangers)
    assert len(warnings(caplog)) <= 2  # one a kind: dropped, gone


def test_a_friend_among_many_strangers_is_let_in(server, gate, new_messenger, monkeypatch):
    monkeypatch.setattr("rlinf.scheduler.comm.transport.tcp_gate.CROWDED_TIMEOUT_S", 0.5)
    gate._crowd = 5
    with contextlib.ExitStack() as stack:
        for _ in range(30):
            stack.enter_context(connect(server))
        late = new_messenger("late:0", "here")
        assert late.request(server.endpoint, "echo", 1).result(DEADLINE_S).head == 1
        until(lambda: len(gate._strangers) == 5)
        assert late.request(server.endpoint, "echo", 2).result(DEADLINE_S).head == 2


def greeting(mechanism, *, as_server=False):
    """A whole greeting of ZMTP 3.1 (RFC 37)."""
    return (GREETING + mechanism.ljust(20, b"\0") + bytes([as_server])).ljust(64, b"\0")


STRANGERS = {
    "half a greeting": GREETING[:10],
    "a null mechanism": greeting(b"NULL"),
    "a null mechanism and a ready command": greeting(b"NULL") + b"\x04\x06\x05READY",
    "a plain mechanism": greeting(b"PLAIN") + b"\x04\x0a\x05HELLO\x01a\x01b",
    "a curve server": greeting(b"CURVE", as_server=True),
    "curve and garbage": greeting(b"CURVE") + secrets.token_bytes(1000),
    "curve and a huge frame": greeting(b"CURVE") + b"\x02" + b"\x7f" * 8,
    "an old version": b"\x01\x00",
    "a pickle": pickle.dumps(Bomb()) * 20,
}


@pytest.mark.parametrize("said", STRANGERS.values(), ids=[name.replace(" ", "-") for name in STRANGERS])
def test_whatever_a_stranger_says_leads_nowhere_and_is_logged(server, friend, gate, caplog, said):
    with connect_and_be_seen(server) as connection:
        name = "{}:{}".format(*connection.getsockname())
        connection.sendall(said)
        friend()
    until(lambda: not gate._strangers and warnings(caplog))
    (line,) = warnings(caplog)
    assert f"a connection from {name} is refused" in line
    assert not exploded.is_set()
    friend()


def test_a_key_that_is_not_the_clusters_is_named_once(server, friend, gate, secret, caplog):
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.linger = 0
        stranger.curve_publickey, stranger.curve_secretkey = zmq.curve_keypair()
        stranger.curve_serverkey = CurveKeys(secret).server_public
        stranger.connect(server.endpoint.tcp_address)
        stranger.send_multipart([b"D" + bytes(16), pickle.dumps(Bomb())])
        until(lambda: warnings(caplog))
        stranger.disconnect(server.endpoint.tcp_address)
        until(lambda: not gate._strangers and warnings(caplog))
    (line,) = warnings(caplog)
    assert "a connection from 127.0.0.1 is refused: it does not hold the cluster's key" in line
    assert not exploded.is_set()
    friend()


def test_many_strangers_leave_nothing_behind_and_do_not_flood_the_log(server, friend, gate, caplog):
    descriptors, threads = num_descriptors(), threading.active_count()
    for number in range(200):
        with connect(server) as connection:
            connection.sendall(list(STRANGERS.values())[number % len(STRANGERS)])
            if number % 10 == 0:
                friend()
    until(lambda: num_descriptors() <= descriptors)
    friend()
    until(lambda: not gate._strangers)
    assert threading.active_count() == threads
    assert not gate._denied
    assert len(server._tcp._accepted) == len(server._tcp._by_descriptor) == 1
    until(lambda: warnings(caplog))
    assert len(warnings(caplog)) <= 4


class Recorder:
    """A proxy before `server` that keeps what a client says to it, cut as it came."""

    def __init__(self, server):
        self.said = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._server = connect(server)
        self._threads = [threading.Thread(target=self._forward)]
        self._threads[0].start()

    def _forward(self):
        client, _ = self._listener.accept()
        self._threads.append(threading.Thread(target=self._return, args=(client,)))
        self._threads[1].start()
        with contextlib.suppress(ConnectionError):
            while data := client.recv(1 << 16):
                self.said.append(data)
                self._server.sendall(data)
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_WR)

    def _return(self, client):
        with client, contextlib.suppress(ConnectionError):
            while data := self._server.recv(1 << 16):
                client.sendall(data)

    def close(self):
        for thread in list(self._threads):
            thread.join(DEADLINE_S)
            assert not thread.is_alive()
        self._server.close()
        self._listener.close()


# What a CURVE client says before it has an answer, and the answer (RFC 26): greeting, HELLO and WELCOME.
TURNS = ((64, 64), (202, 170))


def replay(connection, recorded, in_turn):
    with contextlib.suppress(ConnectionError):
        for ours, theirs in TURNS if in_turn else ():
            connection.sendall(recorded[:ours])
            recorded = recorded[ours:]
            while theirs:
                theirs -= len(connection.recv(theirs))
        connection.sendall(recorded)
        return hung_up(connection)
    return True


@pytest.mark.parametrize("in_turn", [False, True], ids=["at-once", "in-turn"])
def test_a_recorded_session_is_worth_nothing_when_replayed(
    server, friend, gate, new_messenger, caplog, in_turn
):
    served = []
    server.serve("secret", lambda request: served.append(bytes(request.frames[0])) or request.reply(None))
    recorder = Recorder(server)
    victim = new_messenger("victim:0", "here")
    through = replace(server.endpoint, tcp_address=recorder.address)
    victim.request(through, "secret", None, [b"take this" * 1000]).result(DEADLINE_S)
    victim.close()
    recorder.close()
    assert served == [b"take this" * 1000]
    recorded = b"".join(recorder.said)
    assert len(recorded) > 9000
    assert b"take this" not in recorded
    with connect_and_be_seen(server) as connection:
        assert replay(connection, recorded, in_turn)
    until(lambda: not gate._strangers and warnings(caplog))
    (line,) = warnings(caplog)
    assert "did not finish the handshake" in line
    assert served == [b"take this" * 1000]
    friend()
