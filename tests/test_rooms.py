"""Rooms: one that is missing is told as left out, one that is there is loaded, whoever is interrupted."""

import signal
import threading
from importlib import import_module

import pytest

from rlinf_scheduler import rooms

DEADLINE_S = 30.0


@pytest.mark.parametrize(
    ("missing", "told"),
    [
        ("rlinf_scheduler.web", "web is not installed"),
        ("rlinf_scheduler.web.server", "web is not installed"),
        ("web", "no module"),  # of a user's
        ("rlinf_scheduler.webb", "no module"),
        (None, "no module"),
    ],
)
def test_what_is_missing_is_told_as_a_room_if_it_is_one(missing, told, monkeypatch):
    monkeypatch.setattr(rooms, "has_room", lambda _room: False)
    assert str(rooms.not_installed(ModuleNotFoundError("no module", name=missing))).startswith(told)


def test_what_is_loaded_for_who_is_interrupted_is_loaded_to_its_end(monkeypatch):
    loaded = threading.Event()

    def load(name):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        module = import_module(name)
        loaded.set()
        return module

    monkeypatch.setattr(rooms, "import_module", load)
    monkeypatch.setattr(rooms, "_loaded", {})
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            rooms.of_room("durable.streams:Stream")
    finally:
        signal.signal(signal.SIGINT, before)
    assert loaded.wait(DEADLINE_S)
    assert rooms.of_room("durable.streams:Stream").__name__ == "Stream"


def test_what_cannot_be_loaded_says_why(monkeypatch):
    with pytest.raises(ModuleNotFoundError, match=r"durable\.nothing"):
        rooms.of_room("durable.nothing:name")
    monkeypatch.setattr(rooms, "LOAD_TIMEOUT_S", 0.01)
    goes_on = threading.Event()
    monkeypatch.setattr(rooms, "import_module", lambda _: goes_on.wait(DEADLINE_S))
    monkeypatch.setattr(rooms, "_loaded", {})
    with pytest.raises(rooms.ClusterError, match=r"durable\.streams was not imported within 0\.01 s"):
        rooms.of_room("durable.streams:Stream")
    goes_on.set()
