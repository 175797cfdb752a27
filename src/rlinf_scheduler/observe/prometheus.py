"""Metrics of a job for Prometheus: a WSGI application that measures when it is asked."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from rlinf_scheduler.errors import ClusterError, SchedulerError
from rlinf_scheduler.observe.metrics import COUNTER, FAMILIES, MetricFamily
from rlinf_scheduler.observe.status import JobStatus

if TYPE_CHECKING:
    from prometheus_client.core import Metric

PATH = "/metrics"
MISSING = (
    "metrics for Prometheus need the package prometheus-client, which is not installed: "
    "pip install 'rlinf-scheduler[metrics]'"
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
