"""The question to a Ray: whom it takes for one, and for whom it has time."""

import socket
import time

import pytest

from fake_gcs import SETTINGS, as_ray, listening, trailers
from rlinf_scheduler.ray_backend.gcs_question import GcsAnswer, ask_gcs


def asked(answer, token=None):
    with listening(answer) as (host, port):
        return ask_gcs(host, port, token, 60)


@pytest.mark.parametrize(
    ("wanted", "given", "answer"),
    [
        (None, None, GcsAnswer.ACCEPTED),
        (None, "unasked", GcsAnswer.ACCEPTED),
        ("secret", None, GcsAnswer.REFUSED),
        ("secret", "wrong", GcsAnswer.REFUSED),
        ("secret", "secret", GcsAnswer.ACCEPTED),
        ("s" * 500, "s" * 500, GcsAnswer.ACCEPTED),
    ],
)
def test_a_ray_accepts_who_has_its_token(wanted, given, answer):
    assert asked(as_ray(wanted), given) is answer


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"-ERR unknown command\r\n",
        SETTINGS,
        SETTINGS + b"\0\0\4\3\0\0\0\0\1\0\0\0\1",  # it gives the question up
        b"\xff\xff\xff\1\5\0\0\0\1" + bytes(200_000),
    ],
    ids=["nothing", "HTTP/1.1", "Redis", "only its settings", "a reset", "a frame without end"],
)
def test_who_speaks_otherwise_is_no_ray(said):
    assert asked(lambda question: said) is GcsAnswer.NOT_RAY


def test_an_answer_may_come_in_pieces():
    with socket.create_server(("127.0.0.1", 0)) as server:
        import threading

        def serve():
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                for byte in SETTINGS + trailers(b"16"):
                    connection.sendall(bytes((byte,)))
                connection.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        assert ask_gcs(*server.getsockname(), None, 60) is GcsAnswer.REFUSED
        thread.join(60)


def test_where_nobody_listens_nobody_answers():
    assert ask_gcs("127.0.0.1", 1, None, 5) is GcsAnswer.NOBODY
    assert ask_gcs("no-such-host.invalid", 1, None, 5) is GcsAnswer.NOBODY


def test_who_says_nothing_is_not_waited_for_longer_than_allowed():
    with socket.create_server(("127.0.0.1", 0)) as server:
        begun = time.monotonic()
        assert ask_gcs(*server.getsockname(), None, 0.2) is GcsAnswer.NOT_RAY
        assert time.monotonic() - begun < 30
