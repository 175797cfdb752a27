"""What the page of a job answers, and to whom: the application alone, without a socket."""

import io
import json
import threading
import time
from types import SimpleNamespace

import pytest

from rlinf_scheduler.errors import ClusterError
from rlinf_scheduler.observe.status import JobStatus
from rlinf_scheduler.web import app as web_app
from rlinf_scheduler.web.app import CLOSED, MAX_STREAMS, SharedLook, WebApp

TOKEN = "a-token-of-the-test"
LONG_S = 3600.0
DEADLINE_S = 60.0


class Answer:
    """What an application has answered."""

    def __init__(self, app, path="/", *, method="GET", host="127.0.0.1:8000", query="", token=TOKEN, **more):
        environ = {
            "REQUEST_METHOD": method,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "HTTP_HOST": host,
            "wsgi.input": io.BytesIO(),
            **more,
        }
        if token:
            environ["HTTP_AUTHORIZATION"] = f"Bearer {token}"
        self.body = app(environ, self._start)

    def _start(self, status, headers):
        self.status, self.headers = int(status.split()[0]), dict(headers)

    @property
    def text(self):
        return b"".join(self.body).decode()


class Counted:
    """Looks, and counts how often."""

    def __init__(self):
        self.number = 0

    def __call__(self):
        self.number += 1
        return {"look": self.number}


@pytest.fixture
def looks():
    return Counted()


@pytest.fixture
def app(looks):
    return WebApp(TOKEN, SharedLook(looks, LONG_S), SharedLook(lambda: {"headline": "none"}, LONG_S))


def event_of(frame):
    kind, data, end = frame.decode().split("\n", 2)
    assert end == "\n"
    return kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))


def test_who_has_the_token_gets_the_page_and_the_job(app):
    page = Answer(app, query=f"token={TOKEN}", token="")
    assert (page.status, page.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    status = Answer(app, "/status.json")
    assert (status.status, json.loads(status.text)) == (200, {"look": 1})
    assert json.loads(Answer(app, "/why.json").text) == {"headline": "none"}


def test_what_was_before_the_page_is_told_where_it_is_known(app):
    assert Answer(app, "/past.json").status == 404
    known = WebApp(
        TOKEN,
        SharedLook(dict, LONG_S),
        SharedLook(dict, LONG_S),
        None,
        SharedLook(lambda: {"at_s": 1}, LONG_S),
    )
    assert json.loads(Answer(known, "/past.json").text) == {"at_s": 1}
    known.close()
    assert Answer(known, "/past.json").status == 503


@pytest.mark.parametrize(
    "wrong",
    [
        {"token": ""},
        {"token": TOKEN[:-1]},
        {"token": TOKEN + "x"},
        {"token": "", "query": "token="},
        {"token": "", "query": "token=%ff%00"},
        {"token": "", "query": "&".join(f"a{i}=1" for i in range(99))},
        {"token": "", "HTTP_COOKIE": f"token={TOKEN}"},
        {"token": "", "HTTP_AUTHORIZATION": TOKEN},
        {"token": "é"},
        {"host": "evil.example"},
        {"host": "127.0.0.1.evil.example:8000"},
        {"host": "evil.example:127.0.0.1"},
        {"host": "[127.0.0.1"},
        {"host": ""},
        {"host": "10.0.0.1:8000"},
    ],
)
def test_anybody_else_gets_nothing_whatever_is_asked(app, looks, wrong):
    for path in ("/", "/status.json", "/why.json", "/events", "/metrics", "/nowhere"):
        for method in ("GET", "POST"):
            answer = Answer(app, path, method=method, **wrong)
            assert (answer.status, answer.text) == (403, "Forbidden\n")
    assert looks.number == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:9000", "LOCALHOST", "[::1]:8000"])
def test_names_of_this_machine_are_let_in_with_any_port_that_is_forwarded(app, host):
    assert Answer(app, host=host).status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "HEAD"])
def test_nothing_can_be_done_but_look(app, method):
    answer = Answer(app, "/status.json", method=method)
    assert (answer.status, answer.headers["Allow"]) == (405, "GET")


@pytest.mark.parametrize("path", ["/nowhere", "/metrics", "", "/../job.css", "/static/job.css"])
def test_other_paths_are_not_there(app, path):
    assert Answer(app, path).status == 404


def test_metrics_are_answered_by_the_application_that_was_given():
    def metrics(environ, start_response):
        start_response("200 OK", [])
        return [environ["PATH_INFO"].encode()]

    app = WebApp(TOKEN, SharedLook(dict, LONG_S), SharedLook(dict, LONG_S), metrics)
    assert Answer(app, "/metrics").text == "/metrics"
    assert Answer(app, "/metrics", token="").status == 403


def test_no_answer_is_kept_or_shown_to_other_pages(app):
    for path in ("/", "/status.json", "/events", "/nowhere"):
        headers = Answer(app, path).headers
        assert headers["Cache-Control"] == "no-store"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert not [name for name in headers if name.startswith("Access-Control")]


def test_all_who_ask_within_a_second_get_the_same_look(app, looks):
    texts = {Answer(app, "/status.json").text for _ in range(5)}
    streams = [Answer(app, "/events") for _ in range(3)]
    assert [event_of(next(stream.body)) for stream in streams] == [("status", {"look": 1})] * 3
    assert (texts, looks.number) == ({'{"look":1}'}, 1)


def test_streams_go_on_together_with_one_look_each_time(monkeypatch):
    looks, passed = Counted(), []
    # Time passes when all have seen the last look.
    monkeypatch.setattr(web_app, "time", SimpleNamespace(monotonic=lambda: 0.05 * len(passed)))
    together = threading.Barrier(6, lambda: passed.append(True), DEADLINE_S)
    app = WebApp(TOKEN, SharedLook(looks, 0.04), SharedLook(dict, LONG_S))
    found = {}

    def follow(name):
        stream, found[name] = Answer(app, "/events").body, []
        for _ in range(4):
            found[name].append(event_of(next(stream))[1]["look"])
            together.wait()

    followers = [threading.Thread(target=follow, args=(name,)) for name in range(6)]
    for each in followers:
        each.start()
    for each in followers:
        each.join(DEADLINE_S)
    assert list(found.values()) == [[1, 2, 3, 4]] * 6
    assert looks.number == 4


def test_nobody_looks_while_nobody_asks():
    looks, threads = Counted(), set(threading.enumerate())
    look = SharedLook(looks, 0.001)
    assert looks.number == 0
    look.newest()
    assert (looks.number, set(threading.enumerate()) - threads) == (1, set())


def test_a_look_that_fails_is_told_and_the_stream_goes_on():
    answers = iter([ClusterError("the driver does not\nanswer"), {"look": 2}])

    def take():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    app = WebApp(TOKEN, SharedLook(take, 0.01), SharedLook(dict, LONG_S))
    stream = Answer(app, "/events").body
    assert event_of(next(stream)) == ("trouble", "the driver does not\nanswer")
    assert event_of(next(stream)) == ("status", {"look": 2})


def test_a_question_that_cannot_be_answered_is_told_as_such():
    def take():
        raise ClusterError("the driver does not answer")

    app = WebApp(TOKEN, SharedLook(dict, LONG_S), SharedLook(take, LONG_S))
    answer = Answer(app, "/why.json")
    assert (answer.status, json.loads(answer.text)) == (503, {"error": "the driver does not answer"})


def test_streams_are_bounded_and_give_their_places_back(app):
    streams = [Answer(app, "/events") for _ in range(MAX_STREAMS)]
    assert {stream.status for stream in streams} == {200}
    assert Answer(app, "/events").status == 503
    streams[0].body.close()  # before anything was read
    next(streams[1].body)
    streams[1].body.close()
    streams[1].body.close()
    assert [Answer(app, "/events").status for _ in range(3)] == [200, 200, 503]


def test_closing_ends_a_stream_that_waits(app):
    stream = Answer(app, "/events").body
    next(stream)
    ends = []
    follower = threading.Thread(target=lambda: ends.extend(stream))
    follower.start()
    app.close()
    follower.join(DEADLINE_S)
    assert [event_of(frame) for frame in ends] == [("end", CLOSED)]
    assert Answer(app, "/status.json").status == 503


def test_a_status_is_data_of_one_line():
    status = JobStatus(time.time(), "python a\nb </script> \u2028.py", 1)
    look = SharedLook(lambda: status, LONG_S).newest()
    assert json.loads(look.data) == json.loads(json.dumps(status.to_dict()))
    assert b"\n" not in look.data
