"""Metrics of a job for OpenTelemetry: observable instruments over the same families as those of Prometheus."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from rlinf_scheduler.errors import ClusterError, SchedulerError
from rlinf_scheduler.metrics.families import COUNTER, FAMILIES, MetricFamily
from rlinf_scheduler.observe.status import JobStatus

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation

MISSING = (
    "metrics for OpenTelemetry need the package opentelemetry-api, which is not installed: "
    "pip install opentelemetry-sdk, and an exporter"
)
# What was found is told for so long.
LOOK_S = 1.0
# As the Unified Code for Units of Measure has them.
_UNITS = {"seconds": "s", "bytes": "By", "": "1"}


class Observable(Protocol):
    """Whatever says what a job does: a `Cluster`, or a `LocalRuntime`."""

    def status(self) -> JobStatus:
        """What the job does."""


def observe_with_opentelemetry(cluster: Observable, meter: Meter | None = None) -> None:
    """Let OpenTelemetry observe a job: an observable instrument for each family of metrics.

    They measure when a reader collects; all of one collection get one look at the job. Their names are those of
    Prometheus' metrics with dots, without units: `rlinf.channel.held` in "By". Set up a `MeterProvider` with a reader
    first, or pass the meter of one.

    Args:
        cluster: the job's.
        meter: what makes the instruments; None: the meter "rlinf" of the global provider.

    Raises:
        ClusterError: opentelemetry-api is not installed.
    """
    try:
        from opentelemetry import metrics  # noqa: PLC0415 - optional
    except ImportError as error:
        raise ClusterError(MISSING) from error
    used, look = meter or metrics.get_meter("rlinf"), _OnePoll(cluster)
    for family in FAMILIES:
        make: Any = used.create_observable_counter if family.kind == COUNTER else used.create_observable_gauge
        callback = _observing(look, family)
        make(dotted(family), [callback], unit=_UNITS[family.unit], description=family.help)


class _OnePoll:
    """One look at the job for all instruments of a collection: each asks, and a look may take seconds."""

    def __init__(self, cluster: Observable) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._found: JobStatus | SchedulerError | None = None
        self._until = 0.0

    def status(self) -> JobStatus:
        """What the job does, as of the last look if that ended less than `LOOK_S` ago, also if it failed."""
        with self._lock:
            if self._found is None or time.monotonic() >= self._until:
                try:
                    self._found = self._cluster.status()
                except SchedulerError as error:
                    self._found = error
                self._until = time.monotonic() + LOOK_S
            if isinstance(self._found, SchedulerError):
                raise self._found
            return self._found


def dotted(family: MetricFamily) -> str:
    """What OpenTelemetry calls a family: units and kinds are said beside the name.

    >>> [dotted(family) for family in FAMILIES if "channel_put" in family.name]
    ['rlinf.channel.put_items', 'rlinf.channel.put']
    """
    name = family.name.removesuffix("_total").removesuffix(f"_{family.unit}")
    prefix, subject, rest = name.split("_", 2) if name.count("_") > 1 else (*name.split("_", 1), "")
    return ".".join(filter(None, (prefix, subject, rest)))


def _observing(look: _OnePoll, family: MetricFamily) -> Callable[[CallbackOptions], Iterable[Observation]]:
    from opentelemetry.metrics import Observation  # noqa: PLC0415 - optional

    def observe(_options: CallbackOptions) -> Iterable[Observation]:
        return [
            Observation(value, dict(zip(family.labels, labels, strict=True)))
            for labels, value in family.samples(look.status())
        ]

    return observe
