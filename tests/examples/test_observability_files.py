"""The dashboard and the configuration of Prometheus: what they name is there."""

import json
import re
import shutil
import subprocess
import threading
import urllib.parse
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from wsgiref.simple_server import WSGIRequestHandler, make_server

import pytest
import yaml

from rlinf_scheduler.metrics.families import COUNTER, FAMILIES
from rlinf_scheduler.metrics.prometheus import metrics_app
from status_cases import whole_job
from waits import wait_until

FOLDER = Path(__file__).parents[2] / "examples" / "observability"
TOKEN, TOKEN_FILE = "open sesame", "metrics-token"
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


def test_the_page_has_each_metric_with_its_labels():
    page = (FOLDER.parents[1] / "docs" / "how-to" / "export-metrics.md").read_text()
    rows = re.findall(r"^\| (`rlinf_.*?) \| (.*?) \|", page, re.MULTILINE)
    said = {
        name: tuple(re.findall(r"`(\w+)`", labels))
        for names, labels in rows
        for name in re.findall(r"\w+", names)
    }
    assert said == {family.name: family.labels for family in FAMILIES}


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


class Quiet(WSGIRequestHandler):
    def log_message(self, *_):
        pass


@contextmanager
def served():
    """The metrics of a job; the port that they are read at."""
    with make_server("127.0.0.1", 0, metrics_app(whole_job, token=TOKEN), handler_class=Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def prometheus(folder, port):
    """A real Prometheus that reads there; asks it."""
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "200ms", "scrape_timeout": "200ms"}
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{port}"]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    (folder / TOKEN_FILE).write_text(TOKEN)
    command = [
        "prometheus",
        "--config.file",
        folder / "prometheus.yml",
        "--storage.tsdb.path",
        folder / "data",
    ]
    with subprocess.Popen(
        [*command, "--web.listen-address", "127.0.0.1:0"], stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            said = ""
            while "Server is ready" not in said:
                said += (line := process.stderr.readline())
                assert line, said
            address = re.search(r"Listening on\" address=(127\.0\.0\.1:\d+)", said)[1]
            threading.Thread(target=process.stderr.read, daemon=True).start()

            def ask(query):
                url = f"http://{address}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
                with urllib.request.urlopen(url, timeout=30) as answer:
                    return json.loads(answer.read())["data"]["result"]

            yield ask
        finally:
            process.terminate()
            process.wait(30)


def test_prometheus_shows_the_token_that_the_page_has_the_metrics_served_with():
    (scraped,) = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["scrape_configs"]
    assert scraped["authorization"] == {"credentials_file": TOKEN_FILE}
    page = (FOLDER / "README.md").read_text()
    assert f"base64 > {TOKEN_FILE}" in page
    assert f"rlinf metrics --port 9464 --token-file {TOKEN_FILE}" in page


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus is not installed here")
def test_a_real_prometheus_answers_every_query_of_the_dashboard(queries, tmp_path):
    with served() as port, prometheus(tmp_path, port) as ask:
        for query in queries:
            known = (
                query.replace("$job", "training").replace("$group", ".*").replace("$__rate_interval", "10s")
            )
            wait_until(lambda known=known: ask(known))


@pytest.mark.skipif(shutil.which("promtool") is None, reason="Prometheus is not installed here")
def test_promtool_finds_no_fault(tmp_path):
    (tmp_path / TOKEN_FILE).write_text(TOKEN)
    shutil.copy(FOLDER / "prometheus.yml", tmp_path)
    with served() as port:
        header = {"Authorization": f"Bearer {TOKEN}"}
        asked = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers=header)
        with urllib.request.urlopen(asked, timeout=30) as answer:
            text = answer.read()
    for arguments in (["metrics"], ["config", str(tmp_path / "prometheus.yml")]):
        done = subprocess.run(
            ["promtool", "check", *arguments], input=text, capture_output=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr.decode()
