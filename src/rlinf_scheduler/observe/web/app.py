"""What the page of a job answers, as a WSGI application: to whom, and what of the job."""

from __future__ import annotations

import hmac
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from rlinf_scheduler.observe.web.page import job_page
from rlinf_scheduler.observe.web.shared_look import SharedLook, Sighting

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

# So many pages may follow a job at once; each has a thread of the server's.
MAX_STREAMS = 16
# A browser sends its page's host along: another name than these is one that somebody else has pointed here.
OWN_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})
CLOSED = "who served the page has closed it"
_HEADERS = [
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
]
_TEXT, _JSON, _HTML, _STREAM = (
    "text/plain; charset=utf-8",
    "application/json",
    "text/html; charset=utf-8",
    "text/event-stream",
)
_BEARER = "Bearer "
_MAX_FIELDS = 16


class WebApp:
    """Answers who has the token: the page, what the job does now and every second, and why it does not go on.

    Args:
        token: the secret, which a page has in its address and its script sends as a header. No cookie: a browser would
            show that to whatever else listens on this machine.
        status: looks at what the job does,
        why: and at why it does not go on.
        metrics: what answers `/metrics`, if anything does.
        past: looks at what the job did in the last minutes, if anything does.
    """

    def __init__(
        self,
        token: str,
        status: SharedLook,
        why: SharedLook,
        metrics: WSGIApplication | None = None,
        past: SharedLook | None = None,
    ) -> None:
        self._token = token.encode()
        self._status = status
        self._metrics = metrics
        self._stream_places = threading.BoundedSemaphore(MAX_STREAMS)
        self._answers: dict[str, Callable[[StartResponse], Iterable[bytes]]] = {
            "/": _page,
            "/status.json": lambda start: _latest(start, status),
            "/why.json": lambda start: _latest(start, why),
            "/events": self._events,
        }
        self._looks = [status, why]
        if past is not None:
            self._answers["/past.json"] = lambda start: _latest(start, past)
            self._looks.append(past)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a question: what is refused is not told why."""
        if not _is_own_host(environ.get("HTTP_HOST", "")) or not self._has_token(environ):
            return _plain(start_response, HTTPStatus.FORBIDDEN)
        if environ["REQUEST_METHOD"] != "GET":
            return _plain(start_response, HTTPStatus.METHOD_NOT_ALLOWED, ("Allow", "GET"))
        path = environ.get("PATH_INFO", "")
        if path == "/metrics" and self._metrics is not None:
            return self._metrics(environ, start_response)
        answer = self._answers.get(path)
        return answer(start_response) if answer else _plain(start_response, HTTPStatus.NOT_FOUND)

    def close(self) -> None:
        """End the streams."""
        for look in self._looks:
            look.close()

    def _has_token(self, environ: WSGIEnvironment) -> bool:
        header = environ.get("HTTP_AUTHORIZATION", "")
        given = header.removeprefix(_BEARER) if header.startswith(_BEARER) else _token_of_query(environ)
        return hmac.compare_digest(given.encode(), self._token)

    def _events(self, start_response: StartResponse) -> Iterable[bytes]:
        if not self._stream_places.acquire(blocking=False):
            return _plain(start_response, HTTPStatus.SERVICE_UNAVAILABLE)
        start_response("200 OK", [("Content-Type", _STREAM), *_HEADERS])
        return StatusStream(self._status, self._stream_places.release)


class StatusStream(Iterator[bytes]):
    """What the job does, every second, as server-sent events; the last one says that the looks have ended.

    Not a generator: one that was never begun does nothing when it is closed.
    """

    def __init__(self, looks: SharedLook, on_close: Callable[[], None]) -> None:
        self._looks = looks
        self._on_close: Callable[[], None] | None = on_close
        self._seen = 0
        self._ended = False

    def __next__(self) -> bytes:
        if self._ended:
            raise StopIteration
        look = self._looks.newest(after=self._seen)
        if look is None:
            self._ended = True
            return _event("end", json.dumps(CLOSED).encode())
        self._seen = look.number
        return (
            _event("trouble", json.dumps(look.trouble).encode())
            if look.trouble
            else _event("status", look.data)
        )

    def close(self) -> None:
        """Give the place back."""
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()


def _event(kind: str, json_text: bytes) -> bytes:
    # JSON has no line breaks of its own.
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), json_text)


def _page(start_response: StartResponse) -> Iterable[bytes]:
    page = job_page()
    return _answer(start_response, page.html, _HTML, ("Content-Security-Policy", page.policy))


def _latest(start_response: StartResponse, looks: SharedLook) -> Iterable[bytes]:
    look = looks.newest() or Sighting(0, b"", CLOSED)
    if look.trouble:
        body = json.dumps({"error": look.trouble}).encode()
        return _answer(start_response, body, _JSON, status=HTTPStatus.SERVICE_UNAVAILABLE)
    return _answer(start_response, look.data, _JSON)


def _plain(start_response: StartResponse, status: HTTPStatus, *headers: tuple[str, str]) -> Iterable[bytes]:
    return _answer(start_response, f"{status.phrase}\n".encode(), _TEXT, *headers, status=status)


def _answer(
    start_response: StartResponse,
    body: bytes,
    content_type: str,
    *headers: tuple[str, str],
    status: HTTPStatus = HTTPStatus.OK,
) -> Iterable[bytes]:
    fixed = [("Content-Type", content_type), ("Content-Length", str(len(body)))]
    start_response(f"{status.value} {status.phrase}", [*fixed, *_HEADERS, *headers])
    return [body]


def _is_own_host(host: str) -> bool:
    try:
        return urlsplit(f"//{host}").hostname in OWN_HOSTS
    except ValueError:  # brackets that do not match, say
        return False


def _token_of_query(environ: WSGIEnvironment) -> str:
    try:
        found: dict[str, list[str]] = parse_qs(environ.get("QUERY_STRING", ""), max_num_fields=_MAX_FIELDS)
    except ValueError:  # more fields
        return ""
    return found.get("token", [""])[0]
