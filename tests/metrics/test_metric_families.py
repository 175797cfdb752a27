"""Metrics of a job: their names and units, and what Prometheus' own parser makes of them."""

import re

import pytest
from prometheus_client import parser as plain_parser
from prometheus_client.openmetrics import parser as strict_parser

from rlinf_scheduler.errors import ClusterError
from rlinf_scheduler.metrics.families import COUNTER, FAMILIES
from rlinf_scheduler.metrics.prometheus import metrics_app
from status_cases import whole_job

UNITS = ("seconds", "bytes")
# What `promtool check metrics` finds fault with in names, and some more of the same.
NO_NAMES = r"_(ms|us|milliseconds|minutes|hours|kb|mb|gb|kib|mib|gib|kilobytes|percent|gauge|counter|sum|bucket)(_|$)"
OPEN_METRICS = "application/openmetrics-text; version=1.0.0"


def answered(app, path="/metrics", method="GET", **headers):
    """Its status, headers and text."""
    said = []
    environ = {"PATH_INFO": path, "REQUEST_METHOD": method, "QUERY_STRING": "", **headers}
    body = b"".join(app(environ, lambda status, headers: said.extend((status, dict(headers)))))
    return *said, body.decode()


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_its_name_and_help_keep_the_conventions(family):
    assert re.fullmatch(r"rlinf_[a-z][a-z0-9_]*[a-z0-9]", family.name)
    assert not re.search(NO_NAMES, family.name)
    assert (family.kind == COUNTER) == family.name.endswith("_total")
    units = [unit for unit in UNITS if unit in family.name.split("_")]
    assert units == ([family.unit] if family.unit else [])
    if family.unit:
        assert family.name.removesuffix("_total").endswith(f"_{family.unit}")
    assert family.help[0].isupper() or family.help[0].isdecimal()
    assert family.help.endswith(".")
    assert not {"job", "instance", "le", "quantile"} & set(family.labels)
    samples = list(family.samples(whole_job()))
    assert samples
    assert all(len(labels) == len(family.labels) for labels, _ in samples)
    assert len({labels for labels, _ in samples}) == len(samples)


def test_no_two_families_have_one_name():
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)


def test_the_strict_parser_reads_what_is_exposed():
    status, headers, text = answered(metrics_app(whole_job), HTTP_ACCEPT=OPEN_METRICS)
    assert status.startswith("200")
    assert headers["Content-Type"].startswith("application/openmetrics-text")
    found = {family.name: family for family in strict_parser.text_string_to_metric_families(text)}
    assert found.keys() == {family.name.removesuffix("_total") for family in FAMILIES}
    for family in FAMILIES:
        parsed = found[family.name.removesuffix("_total")]
        assert (parsed.type, parsed.unit, parsed.documentation) == (family.kind, family.unit, family.help)
        assert {(*each.labels.values(), each.value) for each in parsed.samples} == {
            (*labels, float(value)) for labels, value in family.samples(whole_job())
        }


def test_the_plain_format_has_them_too():
    _, headers, text = answered(metrics_app(whole_job))
    assert headers["Content-Type"].startswith("text/plain")
    names = {
        sample.name
        for family in plain_parser.text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert names == {family.name for family in FAMILIES}


def test_another_path_or_method_or_a_wrong_token_is_refused():
    app = metrics_app(whole_job, token="open sesame")
    assert answered(app, "/")[0].startswith("404")
    assert answered(app, method="POST")[0].startswith("405")
    assert answered(app)[0].startswith("401")
    assert answered(app, HTTP_AUTHORIZATION="Bearer open sesam")[0].startswith("401")
    assert answered(app, HTTP_AUTHORIZATION="Bearer open sesame")[0].startswith("200")
    mounted = answered(app, "", SCRIPT_NAME="/metrics", HTTP_AUTHORIZATION="Bearer open sesame")
    assert mounted[0].startswith("200")


def test_a_job_that_does_not_answer_is_unavailable():

    def silent():
        raise ClusterError("the job's driver does not answer")

    status, _, text = answered(metrics_app(silent))
    assert (status, text) == ("503 Service Unavailable", "the job's driver does not answer\n")


def test_without_the_library_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    with pytest.raises(ClusterError, match="pip install prometheus-client"):
        metrics_app(whole_job)
