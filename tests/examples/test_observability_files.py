"""The dashboard and the configuration of Prometheus: what they name is there."""

import json
import re
from pathlib import Path

import pytest
import yaml

from rlinf.scheduler.observe.metrics import COUNTER, FAMILIES

FOLDER = Path(__file__).parents[2] / "examples" / "observability"
KNOWN = {family.name: family for family in FAMILIES}


@pytest.fixture(scope="module")
def dashboard():
    return json.loads((FOLDER / "dashboard.json").read_text())


@pytest.fixture(scope="module")
def queries(dashboard):
    return [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]


def test_each_metric_has_a_panel_and_each_panel_a_metric(queries):
    named = {name for query in queries for name in re.findall(r"\brlinf_\w+", query)}
    assert named == set(KNOWN)


def test_labels_and_rates_are_used_as_the_metrics_have_them(queries):
    for query in queries:
        for name, selector in re.findall(r"\b(rlinf_\w+)\{([^}]*)\}", query):
            labels = set(re.findall(r"(\w+)=~?\"", selector))
            assert labels <= {"job", *KNOWN[name].labels}, query
        for function, name in re.findall(r"\b(rate|increase)\((rlinf_\w+)", query):
            assert KNOWN[name].kind == COUNTER, f"{function} of a gauge: {query}"
        assert query.count("(") == query.count(")")


def test_legends_name_labels_that_are_there(dashboard):
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            (name, *_) = re.findall(r"\brlinf_\w+", target["expr"])
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= set(KNOWN[name].labels)


def test_panels_do_not_cover_each_other_and_have_numbers_of_their_own(dashboard):
    cells = [
        (x, y)
        for panel in dashboard["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
    numbers = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(numbers)) == len(numbers)


def test_its_variables_are_those_that_the_queries_use(dashboard, queries):
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    used = {name for text in (*queries, json.dumps(dashboard)) for name in re.findall(r"\$\{?(\w+)", text)}
    assert variables == {"datasource", "job", "group"}
    assert used - {"__rate_interval"} == variables


def test_prometheus_is_told_to_read_what_the_page_serves():
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    (target,) = job["static_configs"][0]["targets"]
    assert f"rlinf metrics --port {target.rpartition(':')[2]}" in (FOLDER / "README.md").read_text()
