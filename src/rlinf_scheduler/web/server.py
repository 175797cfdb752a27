"""Serves the page of a job to browsers on this machine, from threads of its own."""

from __future__ import annotations

import io
import logging
import secrets
import socket
import socketserver
import sys
import threading
from collections.abc import Callable
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import msgspec

from rlinf_scheduler.errors import ClusterError
from rlinf_scheduler.observe.own_stats import JobPast
from rlinf_scheduler.observe.status import JobStatus
from rlinf_scheduler.observe.status_service import ask_past, begin_status, received
from rlinf_scheduler.observe.why import Why, why
from rlinf_scheduler.rooms import of_room
from rlinf_scheduler.session import Session
from rlinf_scheduler.web.app import SharedLook, WebApp

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication


LOOPBACK = "127.0.0.1"
# How often the job is looked at while somebody has its page open, and how old an answer to why may be, in seconds.
STATUS_EVERY_S, WHY_EVERY_S = 1.0, 2.0
# So many connections may be open at once, and so long may one not send its question, or not take its answer.
MAX_CONNECTIONS, PATIENCE_S = 48, 10.0
# The end of the server is noticed after so long at the latest.
_POLL_S = 0.1
_TOKEN_BYTES = 24
THREADS = "rlinf-web"
FAILED = "a question to the page of the job failed"
_log = logging.getLogger(__name__)


class WebServer:
    """The page of a job, on a port of this machine's loopback address, until it is closed.

    Args:
        status: looks at what the job does, with a deadline, and gives plain data; or raises a `SchedulerError`.
        why: looks at why it does not go on, likewise.
        metrics: what answers `/metrics`, if anything does.
        port: 0: any that is free.
        past: looks at what the job did in the last minutes, likewise.

    Attributes:
        url: where the page is, with the secret that lets its reader in.

    Raises:
        ClusterError: the port cannot be had.
    """

    def __init__(
        self,
        status: Callable[[], object],
        why: Callable[[], object],
        metrics: WSGIApplication | None = None,
        port: int = 0,
        past: Callable[[], object] | None = None,
    ) -> None:
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        looks = SharedLook(status, STATUS_EVERY_S), SharedLook(why, WHY_EVERY_S)
        self._app = WebApp(token, *looks, metrics, None if past is None else SharedLook(past, WHY_EVERY_S))
        try:
            self._server = ThreadedServer(LOOPBACK, port)
        except (OSError, OverflowError) as error:
            raise ClusterError(
                f"the page cannot listen on port {port} of {LOOPBACK}: {error}; port 0 takes any that is free"
            ) from error
        self._server.set_app(self._app)
        self.url = f"http://{LOOPBACK}:{self._server.server_port}/?token={token}"
        serve = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name=THREADS, daemon=True
        )
        serve.start()

    def close(self) -> None:
        """End it, and the streams that it has open."""
        self._app.close()
        self._server.shutdown()
        self._server.server_close()

    def abandon(self) -> None:
        """Give up the port in a forked child; the parent goes on."""
        self._server.server_close()


class ThreadedServer(ThreadingMixIn, WSGIServer):
    """A thread for each connection; more than `MAX_CONNECTIONS` are closed at once.

    Args:
        host: the address to listen on, of version 4 or 6 of the protocol.
        port: 0: any that is free.
    """

    # Else the kernel lets who comes sixth wait for a second.
    request_queue_size = MAX_CONNECTIONS
    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str, port: int) -> None:
        self._places = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Take the port; HTTPServer's own asks the resolver for this machine's name, which may take long."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.socket.getsockname()[:2]
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, if there is a place."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread can be had
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer; in that thread."""
        threading.current_thread().name = f"{THREADS}-answer"
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away is no news."""
        del request, client_address
        if not isinstance(sys.exception(), OSError):
            _log.warning(FAILED, exc_info=True)


class _Handler(WSGIRequestHandler):
    """Says nothing on the terminal; what a question failed at goes to the log."""

    timeout = PATIENCE_S

    def log_message(self, format: str, *args: Any) -> None:
        """Keep no record of who asked for what."""
        del format, args

    def get_stderr(self) -> io.StringIO:
        return _FailureLog()


class _FailureLog(io.StringIO):
    """Where a traceback is written to, and then flushed."""

    def flush(self) -> None:
        text = self.getvalue()
        self.truncate(0)
        if text and not isinstance(sys.exception(), OSError):
            _log.warning("%s:\n%s", FAILED, text)


# Looks come a second apart, and none is to be taken for the one before.
_MAX_AGE_S = 0.5 * STATUS_EVERY_S
_first_asked = threading.Lock()


def serve_job(session: Session, port: int = 0) -> WebServer:
    """Serve the page of a job until the session is left.

    Args:
        session: of a process of the job, or of one that only looks.
        port: of this machine's loopback address; 0: any that is free.

    Raises:
        ClusterError: the port cannot be had.
    """

    def status() -> JobStatus:
        return received(begin_status(session, _MAX_AGE_S))

    server = WebServer(
        status, lambda: why_data(why(session)), _metrics(status), port, lambda: past_data(ask_past(session))
    )
    session.on_close(server.close)
    session.on_fork(server.abandon)
    return server


def page_url(session: Session) -> str:
    """Where the page of the job is that this process serves, from the first time that somebody asks."""
    with _first_asked:
        server = session.fact(WebServer)
        if server is None:
            session.provide(WebServer, server := serve_job(session))
    return server.url


def metrics_url(session: Session) -> str:
    """Where the same server answers Prometheus on this machine.

    Raises:
        ClusterError: prometheus-client is not installed, or metrics are not.
    """
    _metrics_app(lambda: received(begin_status(session)))  # it says what is missing
    return page_url(session).replace("/?", f"{of_room('metrics.prometheus:PATH')}?", 1)


def _metrics(status: Callable[[], JobStatus]) -> WSGIApplication | None:
    try:
        return _metrics_app(status)
    except ClusterError:  # what it needs is not installed
        return None


def _metrics_app(status: Callable[[], JobStatus]) -> WSGIApplication:
    app: WSGIApplication = of_room("metrics.prometheus:metrics_app")(status)
    return app


def why_data(found: Why) -> dict[str, Any]:
    """What the page shows of why a job does not go on; `rlinf why --json` has all of it."""
    culprits = [{"address": each.address, "reason": each.reason} for each in found.culprits]
    return {"headline": found.headline, "culprits": culprits, "text": str(found), "took_s": found.took_s}


def past_data(past: JobPast) -> dict[str, Any]:
    """What the page shows of the minutes before it was opened."""
    data: dict[str, Any] = msgspec.structs.asdict(past)
    return data
