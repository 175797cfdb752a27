"""`breakpoint()` of a rank without a rank: whatever becomes of its debugger, the method goes on as it would have."""

import bdb
import os
import re
import socket
import sys
import threading
from contextlib import ExitStack

import pytest

from rlinf_scheduler.host import breakpoints
from rlinf_scheduler.host.breakpoints import VARIABLE, Breakpoints, serve_breakpoints
from waits import DEADLINE_S


class Debugged:
    """A thread whose method comes to breakpoints, and what it tells of them."""

    def __init__(self, directory, monkeypatch, method):
        self.told = []
        self._news = threading.Condition()
        self._stop_here = Breakpoints("actor:0", directory)
        monkeypatch.setattr(self._stop_here, "_tell", self._tell)
        self.outcome = None
        self._thread = threading.Thread(target=self._run, args=(method,), daemon=True)
        self._thread.start()

    def _run(self, method):
        try:
            self.outcome = method(self._stop_here)
        except BaseException as error:  # noqa: BLE001 - what the debugger raises is what is looked for
            self.outcome = error

    def _tell(self, what):
        with self._news:
            self.told.append(what)
            self._news.notify_all()

    def path(self, number=0):
        with self._news:
            assert self._news.wait_for(lambda: len(self.told) > number, DEADLINE_S)
        return re.search("`rlinf pdb (.*)`", self.told[number])[1]

    def result(self):
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()
        return self.outcome


class Client:
    """Who debugs."""

    def __init__(self, path, connection):
        self.connection = connection
        self.connection.settimeout(DEADLINE_S)
        self.connection.connect(path)

    def say(self, line):
        self.connection.sendall(line.encode() + b"\n")

    def hear(self, until=b"(rlinf) "):
        heard = b""
        while not heard.endswith(until):
            data = self.connection.recv(4096)
            assert data, heard
            heard += data
        return heard.decode()

    def rest(self):
        heard = b""
        while data := self.connection.recv(4096):
            heard += data
        return heard.decode()


@pytest.fixture
def debugged(tmp_path, monkeypatch):
    yield lambda method: Debugged(tmp_path, monkeypatch, method)
    assert not list(tmp_path.iterdir())
    assert not bdb.Breakpoint.bplist


@pytest.fixture
def connect():
    with ExitStack() as sockets:
        yield lambda path: Client(path, sockets.enter_context(socket.socket(socket.AF_UNIX)))


def loops(stop_here):
    total = 0
    stop_here()
    for number in range(3):
        total += number  # the line of breaks
    return total


BREAK = f"b {loops.__code__.co_filename}:{loops.__code__.co_firstlineno + 4}"


def test_continue_goes_to_the_next_break_and_after_the_last_one_the_connection_ends(debugged, connect):
    method = debugged(loops)
    client = connect(method.path())
    client.hear()
    client.say(BREAK)
    assert "Breakpoint" in client.hear()
    for number in range(3):
        client.say("c")
        client.hear()
        client.say("p number")
        assert client.hear().startswith(f"{number}\n")
    client.say("q")
    assert client.rest() == ""
    assert method.result() == 3


@pytest.mark.parametrize("last", ["n", "c", "r", "", "p number"])
def test_a_client_that_is_gone_lets_the_method_go_on(debugged, connect, last):
    method = debugged(loops)
    client = connect(method.path())
    client.hear()
    client.say(BREAK)
    client.hear()
    if last:
        client.say(last)
    client.connection.close()
    assert method.result() == 3


@pytest.mark.parametrize("command", ["run", "restart 1 2"])
def test_a_method_is_not_restarted(debugged, connect, command):
    method = debugged(loops)
    client = connect(method.path())
    client.hear()
    client.say(command)
    assert "cannot be restarted" in client.hear()
    client.say("c")
    assert client.rest() == ""
    assert method.result() == 3


def test_what_is_no_utf8_ends_nothing(debugged, connect):
    method = debugged(loops)
    client = connect(method.path())
    client.hear()
    client.connection.sendall(b"p '\xff'\n")
    assert "\ufffd" in client.hear()
    client.say("c")
    assert method.result() == 3


def test_a_breakpoint_on_the_way_of_who_debugs_already_is_theirs(debugged, connect):
    def comes_to_three(stop_here):
        stop_here()
        stop_here()
        stop_here()
        return sys.gettrace()

    method = debugged(comes_to_three)
    client = connect(method.path())
    client.hear()
    shown = []
    # Where the first breakpoint stops, at it or behind it, depends on the version of Python.
    while not shown or "-> return sys.gettrace()\n" not in shown[-1]:
        client.say("n" if shown else "s")
        shown.append(client.hear())
        assert "comes_to_three()" in shown[-1]
    assert 2 <= len(shown) <= 6
    client.say("c")
    assert client.rest() == ""
    assert method.result() is None
    assert len(method.told) == 1


def test_two_breakpoints_of_a_process_are_two_places(debugged, connect):
    def both(stop_here):
        other = threading.Thread(target=stop_here)
        other.start()
        stop_here()
        other.join(DEADLINE_S)
        return other.is_alive()

    method = debugged(both)
    paths = {method.path(0), method.path(1)}
    assert len(paths) == 2
    for client in [connect(path) for path in paths]:
        client.hear()
        client.say("c")
    assert method.result() is False


def test_nobody_who_comes_and_no_place_to_wait_at_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr(breakpoints, "WAIT_S", 0.01)
    waited = Debugged(tmp_path, monkeypatch, loops)
    assert waited.result() == 3
    assert "nobody came within" in waited.told[-1]
    placeless = Debugged(tmp_path / "gone", monkeypatch, loops)
    assert placeless.result() == 3
    assert "No such file or directory" in placeless.told[-1]


@pytest.mark.parametrize("of_ray", ["ray.util.rpdb.set_trace", "ray.util.rpdb._driver_set_trace"])
@pytest.mark.parametrize(
    ("at_start", "now", "chosen"),
    [
        (None, None, None),
        (None, "OF RAY", None),
        ("OF RAY", "OF RAY", None),
        ("ipdb.set_trace", "OF RAY", "ipdb.set_trace"),
        (None, "0", "0"),
    ],
)
def test_what_ray_sets_is_no_choice_of_the_users(tmp_path, monkeypatch, of_ray, at_start, now, chosen):
    at_start, now = (of_ray if value == "OF RAY" else value for value in (at_start, now))
    monkeypatch.setattr(breakpoints, "variable_of", lambda process, variable: at_start)
    monkeypatch.setattr(sys, "breakpointhook", sys.__breakpointhook__)
    monkeypatch.delenv(VARIABLE, raising=False)
    if now is not None:
        monkeypatch.setenv(VARIABLE, now)
    serve_breakpoints("actor:0", tmp_path)
    if chosen is None:
        assert isinstance(sys.breakpointhook, Breakpoints)
    else:
        assert sys.breakpointhook is sys.__breakpointhook__
        assert os.environ[VARIABLE] == chosen
