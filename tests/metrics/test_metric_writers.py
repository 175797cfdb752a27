"""The files that writers leave, and writers that are slow, fail, or are not there."""

import csv
import json
import threading
import time

import pytest
from metrics_roles import Failing, Stuck

from forked_job import ForkedJob
from rlinf_scheduler.config import read_cluster_config
from rlinf_scheduler.config.metrics import MetricsConfig
from rlinf_scheduler.errors import ConfigError
from rlinf_scheduler.metrics import collecting
from rlinf_scheduler.metrics.collecting import _WriterThread
from rlinf_scheduler.metrics.sending import log_metrics
from rlinf_scheduler.metrics.steps import MetricsRow
from rlinf_scheduler.metrics.writers import writer_factory
from waits import wait_until

ROWS = [
    MetricsRow(step, {"actor/loss": step / 2, "note": float("nan")}, 2, 1000.0 + step) for step in range(3)
]


@pytest.fixture
def job():
    job = ForkedJob()
    yield job
    job.close()


def factory(name, folder, **options):
    return writer_factory(name, MetricsConfig(str(folder), {name: options}))


def written(name, folder, **options):
    writer = factory(name, folder, **options)()
    writer.write(ROWS[:2])
    writer.write(ROWS[2:])
    writer.close()


def threaded(name, folder):
    return _WriterThread(name, factory(name, folder))


def closed(writer, within_s=20.0):
    writer.end()
    writer.close(collecting.time.monotonic() + within_s)


def test_csv_has_a_line_a_value_and_is_continued(tmp_path):
    for _ in range(2):
        written("csv", tmp_path)
    with (tmp_path / "metrics.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 12
    assert lines[2] == {
        "step": "1",
        "name": "actor/loss",
        "value": "0.5",
        "num_ranks": "2",
        "time_s": "1001.000",
    }


def test_json_has_a_line_a_row(tmp_path):
    written("jsonl", tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines[1] == {
        "step": 1,
        "time_s": 1001.0,
        "num_ranks": 2,
        "values": {"actor/loss": 0.5, "note": "nan"},
    }


@pytest.mark.filterwarnings("ignore")  # of these libraries
def test_tensorboard_reads_what_is_written(tmp_path):
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    written("tensorboard", tmp_path)
    events = reading.EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(each.step, each.value) for each in events.Scalars("actor/loss")] == [
        (0, 0.0),
        (1, 0.5),
        (2, 1.0),
    ]


@pytest.mark.filterwarnings("ignore")  # of these libraries
def test_a_run_of_weights_and_biases_is_written_offline(tmp_path):
    pytest.importorskip("wandb")
    written("wandb", tmp_path, mode="offline", project="tried")
    assert list(tmp_path.rglob("*.wandb"))


@pytest.mark.filterwarnings("ignore")  # of these libraries
@pytest.mark.parametrize("store", ["sqlite", "file"])
def test_mlflow_reads_what_is_written(tmp_path, store, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    if store == "sqlite":
        pytest.importorskip("sqlalchemy")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    place = {"sqlite": f"sqlite:///{tmp_path}/mlflow.db", "file": tmp_path.as_uri()}[store]
    options = {} if store == "sqlite" else {"tracking_uri": place}
    written("mlflow", tmp_path, experiment="tried", run_name="first", **options)
    client = mlflow.MlflowClient(place)
    (run,) = client.search_runs([client.get_experiment_by_name("tried").experiment_id])
    history = client.get_metric_history(run.info.run_id, "actor/loss")
    assert sorted((each.step, each.value) for each in history) == [(0, 0.0), (1, 0.5), (2, 1.0)]


def test_a_writer_that_fails_is_told_once_and_given_the_next_rows(caplog):
    writer = threaded("metrics_roles:Failing", "")
    for row in ROWS:
        writer.put(row)
        wait_until(writer._rows.empty)
    closed(writer)
    assert Failing.rows[-1].step == 2
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert (
        "'metrics_roles:Failing' does not write what it is given: it has failed: OSError: the disk is full"
        in told[0]
    )
    assert "has not written" in told[1]


def test_a_writer_that_cannot_begin_costs_its_own_rows(caplog):
    writer = threaded("metrics_roles:broken", "")
    for row in ROWS:
        writer.put(row)
    closed(writer)
    assert "it cannot begin: ConnectionError: no such server" in caplog.records[0].getMessage()
    assert "has not written 3 rows" in caplog.records[-1].getMessage()


def test_a_writer_that_is_stuck_holds_up_nobody(caplog, monkeypatch):
    monkeypatch.setattr(collecting, "MAX_ROWS", 5)
    Stuck.go_on.clear()
    writer = threaded("metrics_roles:Stuck", "")
    writer.put(ROWS[0])
    wait_until(writer._rows.empty)
    for _ in range(8):
        writer.put(ROWS[1])
    closed(writer, 0.1)
    Stuck.go_on.set()
    assert "it is slow: 5 rows wait for it" in caplog.records[0].getMessage()
    assert "has not written" in caplog.records[-1].getMessage()


class Clock:
    """For who closes, it goes on when another writer has ended: then the time is over."""

    def __init__(self, other):
        self._closer, self._other, self._looks = threading.current_thread(), other, 0

    def monotonic(self):
        if threading.current_thread() is not self._closer:
            return time.monotonic()
        self._looks += 1
        if self._looks == 1:
            return 0.0
        wait_until(lambda: self._other not in [thread.name for thread in threading.enumerate()])
        return collecting.CLOSE_S

    time = staticmethod(time.time)


def test_a_writer_that_is_stuck_takes_no_time_of_others(job, caplog, monkeypatch, tmp_path):
    monkeypatch.setattr(collecting, "CLOSE_S", 60.0)
    Stuck.go_on.clear()
    collecting.write_metrics(
        job.session, MetricsConfig(str(tmp_path), {"metrics_roles:Stuck": {}, "jsonl": {}})
    )
    log_metrics(job.session, "", "driver", 1, ({"epoch": 7}, 2, None))
    with monkeypatch.context() as patch:
        patch.setattr(collecting, "time", Clock("rlinf-metrics-jsonl"))
        job.session.close()
    Stuck.go_on.set()
    assert '"step": 2' in (tmp_path / "metrics.jsonl").read_text()
    assert "Stuck" in caplog.text
    assert "jsonl" not in caplog.text


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("tensorbord", "there is no writer 'tensorbord'; there are csv, jsonl, tensorboard, wandb, mlflow"),
        ("no_such_module:Writer", "cannot be imported"),
        ("metrics_roles:Nothing", "cannot be imported"),
    ],
)
def test_a_writer_that_is_not_there_is_an_error_at_once(name, problem, tmp_path):
    with pytest.raises(ConfigError, match=problem):
        factory(name, tmp_path)


def test_a_library_that_is_not_installed_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("rlinf_scheduler.metrics.writers.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="wandb is not installed here"):
        factory("wandb", tmp_path)


def read(**section):
    return read_cluster_config({"metrics": section}).metrics


def test_the_section_names_writers_or_has_their_options(tmp_path):
    assert read(folder=str(tmp_path)).writers == {"csv": {}}
    assert read(folder="x", writers="jsonl").writers == {"jsonl": {}}
    assert read(folder="x", writers=["csv", "wandb"]).writers == {"csv": {}, "wandb": {}}
    assert read(folder="x", writers={"csv": None, "wandb": {"project": "p"}}, wait_s=5).writers == {
        "csv": {},
        "wandb": {"project": "p"},
    }


@pytest.mark.parametrize(
    "section",
    [
        {},
        {"folder": ""},
        {"folder": "x", "writers": 3},
        {"folder": "x", "writers": []},
        {"folder": "x", "wait_s": 0},
    ],
)
def test_mistakes_in_the_section_have_their_place(section):
    with pytest.raises(ConfigError, match=r"cluster\.metrics"):
        read(**section)
