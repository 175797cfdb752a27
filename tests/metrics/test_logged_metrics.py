"""What ranks and the driver log, from `log_metrics` to a file."""

import json

import pytest
from metrics_roles import Trainer

from forked_job import ForkedJob
from rlinf.scheduler import Channel, PackedPlacementStrategy, Worker
from rlinf_scheduler.config.metrics import MetricsConfig
from rlinf_scheduler.errors import ConfigError, WorkerDied
from rlinf_scheduler.metrics import sending
from rlinf_scheduler.metrics.collecting import write_metrics
from rlinf_scheduler.metrics.sending import MetricsSender, log_metrics
from rlinf_scheduler.session import set_current
from waits import wait_until

DEADLINE_S = 60


@pytest.fixture
def job():
    job = ForkedJob()
    yield job
    job.close()


def trainers(job, **options):
    return Trainer.create_group().launch(job, PackedPlacementStrategy(0, 1), name="actor", **options)


def write(job, folder, **options):
    write_metrics(job.session, MetricsConfig(str(folder), {"jsonl": {}}, **options))


def written(folder):
    path = folder / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_what_ranks_log_is_there_when_the_job_has_ended(job, tmp_path):
    write(job, tmp_path)
    Channel.create("trajectories").put("an item")
    trainers(job).train(range(3)).wait(DEADLINE_S)
    log_metrics(job.session, "", "driver", 1, ({"epoch": 7}, 2, None))
    job.session.close()
    rows = written(tmp_path)
    of_actor = [row for row in rows if "actor/loss" in row["values"]]
    assert [row["step"] for row in of_actor] == [0, 1, 2]
    assert {row["num_ranks"] for row in of_actor} == {2}
    values = of_actor[1]["values"]
    assert (values["actor/loss"], values["actor/return_max"], values["actor/tokens_total"]) == (
        0.5,
        1.0,
        20.0,
    )
    assert 0 < values["actor/time/train/learn"] <= values["actor/time/train/learn/max"]
    assert [row["values"]["epoch"] for row in rows if "epoch" in row["values"]] == [7.0]
    assert [
        row["values"]["queue/trajectories/items"]
        for row in rows
        if "queue/trajectories/items" in row["values"]
    ]


def test_the_last_step_is_here_before_the_result_of_the_call_that_logs_it(job, tmp_path):
    write(job, tmp_path)
    trainers(job).train_while_busy(3).wait(DEADLINE_S)
    job.session.close()
    assert [(row["step"], row["num_ranks"]) for row in written(tmp_path)] == [(2, 2), (3, 2)]


def test_a_look_at_channels_that_fails_costs_no_row(job, tmp_path, monkeypatch):
    def fails(_asked):
        raise ValueError("a part of the sums")

    monkeypatch.setattr("rlinf_scheduler.metrics.collecting.received", fails)
    write(job, tmp_path)
    for step in range(3):
        log_metrics(job.session, "", "driver", 1, ({"epoch": 7}, step, None))
    wait_until(lambda: [row["step"] for row in written(tmp_path)] == [0, 1])
    job.session.close()
    assert [row["step"] for row in written(tmp_path)] == [0, 1, 2]


def test_a_rank_that_dies_holds_no_step_for_ever(job, tmp_path):
    write(job, tmp_path, wait_s=0.5)
    group = trainers(job, on_failure="ignore")
    with pytest.raises(WorkerDied):
        group.train_or_die([0]).wait(DEADLINE_S)
    wait_until(lambda: [row["step"] for row in written(tmp_path)][:1] == [0])


def test_where_nothing_is_configured_a_process_asks_once(job, tmp_path):
    sender = job.session.service(MetricsSender)
    for _ in range(2):
        log_metrics(job.session, "", "driver", 1, ({"loss": 1.0}, 1, None))
        wait_until(lambda: not sender._is_wanted)
    trainers(job).train([1]).wait(DEADLINE_S)
    assert not list(tmp_path.iterdir())


def test_what_the_home_does_not_take_is_counted(job, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(sending, "MAX_UNTAKEN", 0)
    write(job, tmp_path)
    log_metrics(job.session, "", "driver", 1, ({"loss": 1.0, "kl": 2.0}, 1, None))
    sender = job.session.service(MetricsSender)
    wait_until(lambda: sender._num_dropped)
    num_dropped = sender._num_dropped  # with what timers of other tests have measured in this process
    monkeypatch.undo()
    assert num_dropped >= 2
    log_metrics(job.session, "", "driver", 1, ({"loss": 1.0}, 2, None))
    job.session.close()
    assert [row["step"] for row in written(tmp_path)] == [2]
    assert f"metrics: {num_dropped} values were dropped on their way here" in [
        each.getMessage() for each in caplog.records
    ]


def test_a_worker_without_a_job_checks_what_it_logs():
    set_current(None)
    worker = Worker()
    worker.log_metrics({"loss": 1.0}, step=1)
    with pytest.raises(ConfigError, match="or log in the block of `at_step`"):
        worker.log_metrics({"loss": 1.0})
    with worker.at_step(3):
        worker.log_metrics({"loss": 1.0})
