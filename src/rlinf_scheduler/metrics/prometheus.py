"""Metrics of a job for Prometheus: a WSGI application that measures when it is asked, and the token of its readers."""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from rlinf_scheduler.comm.rundir import private_directory
from rlinf_scheduler.errors import ClusterError, SchedulerError
from rlinf_scheduler.metrics.families import COUNTER, FAMILIES, MetricFamily
from rlinf_scheduler.observe.status import JobStatus

if TYPE_CHECKING:
    from prometheus_client.core import Metric


PATH = "/metrics"
MISSING = (
    "metrics for Prometheus need the package prometheus-client, which is not installed: "
    "pip install prometheus-client"
)
_TEXT = ("Content-Type", "text/plain; charset=utf-8")
StartResponse: TypeAlias = Callable[[str, list[tuple[str, str]]], Any]
WsgiApp: TypeAlias = Callable[[dict[str, Any], StartResponse], Iterable[bytes]]


class JobCollector:
    """A collector of prometheus_client's: register it where other metrics of the program are, too.

    Args:
        source: says what the job does; e.g. `cluster.status`.
    """

    def __init__(self, source: Callable[[], JobStatus]) -> None:
        self._source = source

    def describe(self) -> Iterator[Metric]:
        """The families without samples; nobody is asked for them."""
        return (_exposed(family, ()) for family in FAMILIES)

    def collect(self) -> Iterator[Metric]:
        """The families with what the job does now.

        Raises:
            ClusterError: the job's driver does not answer.
        """
        status = self._source()
        return (_exposed(family, family.samples(status)) for family in FAMILIES)


def _exposed(family: MetricFamily, samples: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415 - optional

    # It adds the "_total" of a counter itself, behind the unit.
    exposed: GaugeMetricFamily | CounterMetricFamily
    if family.kind == COUNTER:
        name = family.name.removesuffix("_total")
        exposed = CounterMetricFamily(name, family.help, labels=family.labels, unit=family.unit)
    else:
        exposed = GaugeMetricFamily(family.name, family.help, labels=family.labels, unit=family.unit)
    for labels, value in samples:
        exposed.add_metric(labels, value)
    return exposed


def metrics_app(source: Callable[[], JobStatus], *, token: str = "") -> WsgiApp:
    """A WSGI application that answers `GET /metrics` in the format of Prometheus, or in that of OpenMetrics on request.

    It answers 503 while the job's driver does not answer. A server may mount it beside other paths.

    Args:
        source: says what the job does; e.g. `cluster.status`.
        token: who asks has to show it (`Authorization: Bearer ...`), else it answers 401; "": everybody may ask.

    Raises:
        ClusterError: prometheus-client is not installed.
    """
    try:
        from prometheus_client import CollectorRegistry, make_wsgi_app  # noqa: PLC0415 - optional
    except ImportError as error:
        raise ClusterError(MISSING) from error
    registry = CollectorRegistry()
    registry.register(JobCollector(source))
    metrics: WsgiApp = make_wsgi_app(registry)

    def app(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        refusal = _refusal(environ, token)
        if refusal is None:
            try:
                return metrics(environ, start_response)
            except SchedulerError as error:
                refusal = "503 Service Unavailable", str(error)
        status, text = refusal
        start_response(status, [_TEXT])
        return [f"{text}\n".encode()]

    return app


def _refusal(environ: dict[str, Any], token: str) -> tuple[str, str] | None:
    path = f"{environ.get('SCRIPT_NAME', '')}{environ.get('PATH_INFO', '')}"
    if path.rstrip("/") != PATH:
        return "404 Not Found", f"the metrics are at {PATH}"
    if environ.get("REQUEST_METHOD", "GET") not in ("GET", "HEAD"):
        return "405 Method Not Allowed", "metrics are read with GET"
    shown = environ.get("HTTP_AUTHORIZATION", "").removeprefix("Bearer ")
    if token and not hmac.compare_digest(shown.encode(), token.encode()):
        return "401 Unauthorized", "this job's metrics are read with its token: Authorization: Bearer TOKEN"
    return None


_NAME = "metrics-token"
_TOKEN_BYTES = 24


def own_token_file() -> Path:
    """The file of this user's token on this machine, of mode 0600; made if it is not there, and the same from then on.

    Raises:
        ClusterError: no folder is this user's alone, or the file is not.
    """
    folder = private_directory()
    if folder is None:
        raise ClusterError(
            "no directory for temporary files is this user's alone: name a file by `--token-file`"
        )
    file = folder / _NAME
    if not file.exists():
        _make(file)
    status = file.lstat()
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise ClusterError(
            f"{file} is not this user's alone: remove it, or name another one by `--token-file`"
        )
    return file


def _make(file: Path) -> None:
    """Put a fresh token there, whole, unless another process has just done so."""
    fresh = file.with_name(f"{_NAME}.{secrets.token_hex(8)}")
    descriptor = os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as made:
            made.write(f"{secrets.token_urlsafe(_TOKEN_BYTES)}\n")
        with contextlib.suppress(FileExistsError):
            os.link(fresh, file)
    finally:
        fresh.unlink()
