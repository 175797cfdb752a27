"""Metrics of a job for OpenTelemetry."""

import sys

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from rlinf_scheduler.errors import ClusterError
from rlinf_scheduler.metrics import open_telemetry
from rlinf_scheduler.metrics.families import FAMILIES
from rlinf_scheduler.metrics.open_telemetry import dotted, observe_with_opentelemetry
from rlinf_scheduler.observe.status import ChannelStatus, GroupStatus, JobStatus, RankStatus

STATUS = JobStatus(
    1.0,
    "train",
    7,
    groups=(GroupStatus("actor", (RankStatus("actor:0", 0, cpu_s=12.5),)),),
    channels=(ChannelStatus("rollouts", "Channels:0", bytes=90, num_put=9),),
)


class Job:
    """What a cluster says."""

    def status(self):
        return STATUS


def test_no_two_instruments_have_one_name():
    names = [dotted(family) for family in FAMILIES]
    assert len(set(names)) == len(names)
    assert all(name.startswith("rlinf.") for name in names)


def test_a_reader_collects_what_the_job_does():
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
    observe_with_opentelemetry(Job(), provider.get_meter("test"))
    (resource,) = reader.get_metrics_data().resource_metrics
    found = {metric.name: metric for scope in resource.scope_metrics for metric in scope.metrics}
    (held,) = found["rlinf.channel.held"].data.data_points
    assert (held.value, dict(held.attributes), found["rlinf.channel.held"].unit) == (
        90,
        {"channel": "rollouts"},
        "By",
    )
    (cpu,) = found["rlinf.rank.cpu"].data.data_points
    assert (cpu.value, dict(cpu.attributes)) == (12.5, {"group": "actor", "rank": "0"})
    assert found["rlinf.rank.cpu"].data.is_monotonic
    provider.shutdown()


class SilentJob:
    """Its driver does not answer; to find that out takes a while."""

    def __init__(self):
        self.num_looks = 0

    def status(self):
        self.num_looks += 1
        raise ClusterError("the job's driver does not answer")


def test_a_collection_looks_once_at_a_job_that_does_not_answer(caplog, monkeypatch):
    monkeypatch.setattr(open_telemetry, "LOOK_S", 60.0)
    job, reader = SilentJob(), InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
    observe_with_opentelemetry(job, provider.get_meter("test"))
    reader.get_metrics_data()
    provider.shutdown()
    assert job.num_looks == 1
    assert "does not answer" in caplog.text


def test_without_the_library_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ClusterError, match="pip install opentelemetry-sdk"):
        observe_with_opentelemetry(Job())
