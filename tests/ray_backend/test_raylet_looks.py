"""Which raylets have ended and which answer, as sockets show it; and what is known while Ray itself does not answer."""

import contextlib
import socket
import threading

import pytest

from fake_gcs import SETTINGS, listening
from rlinf_scheduler.ray_backend import lost_nodes
from rlinf_scheduler.ray_backend.lost_nodes import HEAD, NodeLooks, ask_raylets, check_patience, what_is_gone
from waits import seen

PATIENCE_S = 60.0


@pytest.fixture
def places():
    """Where a raylet answers, where one is stopped, and where none is any more."""
    with contextlib.ExitStack() as stack:
        stopped = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        ended = stack.enter_context(socket.socket())  # whose port nobody else is given
        ended.bind(("127.0.0.1", 0))
        answers = stack.enter_context(listening(lambda _: SETTINGS, wants=b"PRI * HTTP/2.0"))
        yield {"answers": answers, "stopped": stopped.getsockname(), "ended": ended.getsockname()}


@pytest.fixture
def patient(places, monkeypatch):
    """Looks wait for who answers, however late; for who never does, not."""

    def ask(raylets, _):
        mute = {name: place for name, place in raylets.items() if place == places["stopped"]}
        others = {name: place for name, place in raylets.items() if name not in mute}
        both = ask_raylets(others, PATIENCE_S), ask_raylets(mute, 0.1)
        return tuple(one | other for one, other in zip(*both, strict=True))

    monkeypatch.setattr(lost_nodes, "ask_raylets", ask)
    return ask


def test_a_connection_that_is_taken_is_no_answer(places, patient):
    assert patient(places, None) == ({"ended"}, {"answers"})


def test_who_does_not_answer_hides_nobody_else(places):
    # One that is held up answers a later look.
    seen(lambda: ask_raylets(places, 1.0), lambda found: found == ({"ended"}, {"answers"}))


def test_nobody_asks_ray_while_its_head_does_not_answer(places, patient, monkeypatch):
    def asked():
        raise AssertionError("whoever asks waits for a minute")

    monkeypatch.setattr(lost_nodes.ray, "nodes", asked)
    looks = NodeLooks("{}:{}".format(*places["stopped"]))
    looks.raylets = dict(places)
    found = looks(["answers", "ended"], ["stopped"])
    assert found.gone == {"ended": "its raylet ended"}
    assert set(found.silent) == {"stopped", HEAD}
    assert set(found.answering) == {"answers"}
    assert not found.refusing
    assert set(NodeLooks("{}:{}".format(*places["ended"]))([]).refusing) == {HEAD}


def test_a_head_that_is_gone_before_it_answers_a_look_is_seen_by_the_next_one(places, patient, monkeypatch):
    dies, questions = threading.Event(), []

    def ask():
        dies.wait(60)
        return []

    monkeypatch.setattr(lost_nodes.ray, "nodes", ask)
    monkeypatch.setattr(lost_nodes, "draining_nodes", dict)
    monkeypatch.setattr(lost_nodes, "_LOOK_S", 0.2)
    with listening(lambda _: SETTINGS, wants=b"PRI * HTTP/2.0") as head:
        looks = NodeLooks("{}:{}".format(*head))
        looks.raylets = dict(places)
        for _ in range(2):
            found = looks(["answers", "ended"])
            assert found.gone == {"ended": "its raylet ended"}
            assert set(found.answering) == {"answers", HEAD}
            questions.append(looks._asked)
    looks.address = "{}:{}".format(*places["ended"])
    assert set(looks([]).refusing) == {HEAD}
    assert questions == [looks._asked] * 2, "one question at a time"
    dies.set()
    questions[0].result(60)
    monkeypatch.setattr(lost_nodes, "_LOOK_S", PATIENCE_S)
    with listening(lambda _: SETTINGS, wants=b"PRI * HTTP/2.0") as head:
        looks.address = "{}:{}".format(*head)
        assert looks(["answers"]).gone == {"answers": "Ray does not know it any more"}
    assert looks._asked is not questions[0]


def test_what_is_gone_is_told_by_rays_list_or_sooner_by_the_raylets(places, patient):
    asked = [
        {"NodeID": name, "NodeManagerAddress": host, "NodeManagerPort": port}
        for name, (host, port) in places.items()
    ]
    living = [{"NodeID": name, "Alive": True} for name in places]
    assert what_is_gone(asked, living) == (
        "node 127.0.0.1 does not answer; node 127.0.0.1 is gone: its raylet ended"
    )
    assert what_is_gone(asked[:1], living) == ""
    lost = {"NodeID": "answers", "Alive": False, "DeathReasonMessage": "SIGTERM"}
    assert what_is_gone(asked[:1], [lost]) == "node 127.0.0.1 is gone: its raylet ended (SIGTERM)"


@pytest.mark.parametrize(("unreachable_after_s", "threshold"), [(30.0, None), (65.0, None), (180.0, 14)])
def test_who_wants_to_wait_longer_for_a_node_than_ray_does_is_told_how(
    caplog, unreachable_after_s, threshold
):
    check_patience(unreachable_after_s)  # by Ray's own limits: five looks, of 13 s each
    assert ("gives a node up that has not answered for 65 s" in caplog.text) == (threshold is not None)
    assert (f'"health_check_failure_threshold": {threshold}' in caplog.text) == (threshold is not None)
