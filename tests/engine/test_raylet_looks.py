"""Which raylets have ended and which answer, as sockets show it; and what is known while Ray itself does not answer."""

import contextlib
import socket

import pytest

from fake_gcs import SETTINGS, listening
from rlinf.scheduler.engine import lost_nodes
from rlinf.scheduler.engine.lost_nodes import HEAD, NodeLooks, ask_raylets


@pytest.fixture
def places():
    """Where a raylet answers, where one is stopped, and where none is any more."""
    with contextlib.ExitStack() as stack:
        stopped = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        with socket.create_server(("127.0.0.1", 0)) as ended:
            nobody = ended.getsockname()
        answers = stack.enter_context(listening(lambda _: SETTINGS, wants=b"PRI * HTTP/2.0"))
        yield {"answers": answers, "stopped": stopped.getsockname(), "ended": nobody}


def test_a_connection_that_is_taken_is_no_answer(places):
    assert ask_raylets(places, 1.0) == ({"ended"}, {"answers"})


def test_nobody_asks_ray_while_its_head_does_not_answer(places, monkeypatch):
    def asked():
        raise AssertionError("whoever asks waits for a minute")

    monkeypatch.setattr(lost_nodes.ray, "nodes", asked)
    monkeypatch.setattr(lost_nodes, "_LOOK_S", 1.0)
    looks = NodeLooks("{}:{}".format(*places["stopped"]))
    looks.raylets = dict(places)
    seen = looks(["answers", "ended"], ["stopped"])
    assert seen.gone == {"ended": "its raylet ended"}
    assert set(seen.silent) == {"stopped", HEAD}
    assert set(seen.answering) == {"answers"}
