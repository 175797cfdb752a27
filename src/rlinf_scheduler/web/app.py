"""What the page of a job answers, as a WSGI application: to whom, and what of the job."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from importlib.resources import files
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import msgspec

from rlinf_scheduler.errors import SchedulerError

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


# In the order in which they use each other.
SCRIPTS = (
    "words.js",
    "history.js",
    "devices.js",
    "flow.js",
    "layers.js",
    "elements.js",
    "map_view.js",
    "flow_view.js",
    "timeline_view.js",
    "why_view.js",
    "tables.js",
    "details.js",
    "stream.js",
    "main.js",
)
_MARKER = re.compile(r"@([A-Z_]+)@")


@dataclass(frozen=True, slots=True)
class Page:
    """The page, and its policy on contents: its style and script, questions to who served it, nothing else."""

    html: bytes
    policy: str


@cache
def job_page() -> Page:
    """The page; the same for every job, whose data its script asks for."""
    style = page_file("job.css")
    script = "\n".join(page_file(name) for name in SCRIPTS)
    texts = {"STYLE": style, "SCRIPT": script}
    html = _MARKER.sub(lambda match: texts[match[1]], page_file("job.html"))
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return Page(html.encode(), policy)


def page_file(name: str) -> str:
    """One of the files that the page is made of."""
    return files("rlinf_scheduler.web").joinpath("static", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@dataclass(frozen=True, slots=True)
class Sighting:
    """What was found.

    Attributes:
        number: of this look, from 1.
        data: JSON; empty where nothing could be found.
        trouble: why not; "" where something was.
    """

    number: int
    data: bytes
    trouble: str = ""


class SharedLook:
    """Looks again, at most every so many seconds, when somebody asks; all who ask meanwhile get that look.

    Args:
        take: looks, and gives plain data; what it waits for has a deadline. A `SchedulerError` of it is what was found.
        every_s: for how long a look will do, in seconds.
    """

    def __init__(self, take: Callable[[], object], every_s: float) -> None:
        self._take = take
        self._every_s = every_s
        # Held by who looks; the others wait for that look.
        self._looking = threading.Lock()
        self._closed = threading.Event()
        self._last = Sighting(0, b"")
        self._due_s = 0.0

    def newest(self, after: int = 0) -> Sighting | None:
        """The newest look; None once it is closed.

        Args:
            after: the number of a look that is known: wait until there is one after it.
        """
        while not self._closed.is_set():
            with self._looking:
                if time.monotonic() >= self._due_s:
                    self._look()
                if self._last.number > after:
                    return self._last
                remaining_s = self._due_s - time.monotonic()
            self._closed.wait(remaining_s)
        return None

    def close(self) -> None:
        """Let nobody wait any longer."""
        self._closed.set()

    def _look(self) -> None:
        begun_s = time.monotonic()
        number = self._last.number + 1
        try:
            self._last = Sighting(number, msgspec.json.encode(self._take()))
        except SchedulerError as error:
            self._last = Sighting(number, b"", str(error))
        # By when it began, so that looks come at even times.
        self._due_s = max(begun_s + self._every_s, time.monotonic())


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
    """Answers requests with the token: the page, what the job does now and every second, and why it does not go on.

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
