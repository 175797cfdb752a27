"""Serves the page of the job that a session takes part in."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import msgspec

from rlinf_scheduler.errors import ClusterError
from rlinf_scheduler.observe.past import JobPast
from rlinf_scheduler.observe.prometheus import PATH, WsgiApp, metrics_app
from rlinf_scheduler.observe.status import JobStatus
from rlinf_scheduler.observe.status_service import ask_past, begin_status, received
from rlinf_scheduler.observe.web.server import STATUS_EVERY_S, WebServer
from rlinf_scheduler.observe.why import Why, why
from rlinf_scheduler.session import Session

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
        ClusterError: prometheus-client is not installed.
    """
    metrics_app(lambda: received(begin_status(session)))  # it says what is missing
    return page_url(session).replace("/?", f"{PATH}?", 1)


def _metrics(status: Callable[[], JobStatus]) -> WsgiApp | None:
    try:
        return metrics_app(status)
    except ClusterError:  # what it needs is not installed
        return None


def why_data(found: Why) -> dict[str, Any]:
    """What the page shows of why a job does not go on; `rlinf why --json` has all of it."""
    culprits = [{"address": each.address, "reason": each.reason} for each in found.culprits]
    return {"headline": found.headline, "culprits": culprits, "text": str(found), "took_s": found.took_s}


def past_data(past: JobPast) -> dict[str, Any]:
    """What the page shows of the minutes before it was opened."""
    data: dict[str, Any] = msgspec.structs.asdict(past)
    return data
