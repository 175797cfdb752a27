"""Who reaches whom, and what time it is there."""

import socket
import threading
import time
from types import SimpleNamespace

import pytest

from rlinf_scheduler.doctor import links
from rlinf_scheduler.doctor.links import NodeListener, Place, try_all, try_to_reach

PATIENCE_S = 60.0


@pytest.fixture
def listener():
    with_clock = NodeListener("127.0.0.1")
    yield with_clock
    with_clock.close()


def test_who_listens_is_reached_and_says_what_time_it_is(listener):
    reach = try_to_reach(
        "a", Place("b", "127.0.0.1", listener.port, "processes", tells_time=True), PATIENCE_S
    )
    assert (reach.source, reach.target, reach.error) == ("a", "b", "")
    assert 0 < reach.round_trip_s < 60
    assert abs(reach.offset_s) <= reach.round_trip_s


def test_a_clock_that_is_wrong_is_seen(listener, monkeypatch):
    here = threading.current_thread()

    def wrong():
        """Of the side that listens: an hour ahead."""
        return time.time() + (0 if threading.current_thread() is here else 3600)

    monkeypatch.setattr(links, "time", SimpleNamespace(monotonic=time.monotonic, time=wrong))
    place = Place("b", "127.0.0.1", listener.port, "processes", tells_time=True)
    reach = try_to_reach("a", place, PATIENCE_S)
    assert reach.offset_s == pytest.approx(3600, abs=60)


def test_a_port_that_is_closed_is_an_error_in_the_kernels_words(listener):
    port = listener.port
    listener.close()
    (reach,) = try_all("a", [Place("b", "127.0.0.1", port, "Ray's head")])
    assert reach.error == "Connection refused"


def test_who_says_nothing_is_not_waited_for(listener):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = Place("b", "127.0.0.1", silent.getsockname()[1], "processes", tells_time=True)
        assert try_to_reach("a", target, 0.2).error == "no answer in 0 s"


def test_many_are_tried_at_once(listener):
    target = Place("b", "127.0.0.1", listener.port, "processes", tells_time=True)
    assert all(not reach.error for reach in try_all("a", [target] * 100, PATIENCE_S))
    assert try_all("a", []) == []
