import io
import json
from types import SimpleNamespace

import pytest
from rich.console import Console

import console
from console import LearningProgress
from outcome import summary_lines, write_outcome
from report import ChannelTraffic, TrainingReport, UpdateReport
from rlinf_scheduler.observe.report import report_of
from rlinf_scheduler.observe.time_service import JobTimes
from rlinf_scheduler.observe.time_sheets import CallSum, TimeSheet


def update(version, mean_return, num_judged=20):
    returns = (mean_return - 5, mean_return + 5)
    return UpdateReport(version, 1024 * version, returns, mean_return, num_judged, 1, 0.5, 0.01)


def training(*updates):
    return TrainingReport(
        mode="hybrid",
        updates=updates,
        startup_s=20.0,
        training_s=10.0,
        times=report_of(JobTimes((TimeSheet("actor:0", 10.0, (CallSum("update", 2, 6.0),)),))),
        traffic={"steps": ChannelTraffic(12_000, 3_500_000), "weights": ChannelTraffic(40, 1_500_000)},
        window=20,
        required_return=400.0,
    )


def test_outcome_is_a_picture_and_a_summary(tmp_path):
    curve, summary = write_outcome(training(update(1, 30.0), update(2, 450.0)), tmp_path / "new" / "folder")
    assert curve.read_bytes().startswith(b"\x89PNG")
    data = json.loads(summary.read_text())
    assert data["success"] is True
    assert data["final_mean_return"] == 450.0
    assert (data["updates"], data["episodes"], data["env_steps"]) == (2, 4, 2048)
    assert data["channels"]["steps"] == {"items": 12_000, "size_bytes": 3_500_000}
    assert data["times"]["groups"][0]["methods"][0]["spent"]["mean_s"] == 6.0


def test_summary_tells_time_by_method_and_bytes_by_channel():
    text = "\n".join(summary_lines(training(update(1, 450.0))))
    for piece in ("update()", "60%", "12,000 items", "3.50 MB", "450.0", "reached"):
        assert piece in text
    assert "NOT" not in text


@pytest.mark.parametrize(
    "updates",
    [(), (update(1, 399.9),), (update(1, 450.0, num_judged=19),), (update(1, 450.0), update(2, 90.0))],
)
def test_too_low_a_mean_or_too_few_episodes_are_no_success(updates):
    assert not training(*updates).success


def test_in_a_pipe_progress_is_plain_lines_and_the_last_update_is_among_them(monkeypatch):
    monkeypatch.setattr(console, "time", SimpleNamespace(monotonic=lambda: 7.0))  # all in one moment
    output = io.StringIO()
    settings = type("Settings", (), {"stop_return": 450.0})()
    with LearningProgress(Console(file=output, width=200), settings) as progress:
        for version in range(1, 6):
            progress.show(update(version, 30.0 * version))
    lines = output.getvalue().splitlines()
    assert len(lines) == 2, "the first and the last: lines are two seconds apart"
    assert "update   1" in lines[0]
    assert "update   5" in lines[1]
    assert "150.0" in lines[1]
    assert "\x1b" not in output.getvalue()


def test_on_a_terminal_progress_is_a_bar():

    output = io.StringIO()
    settings = type("Settings", (), {"stop_return": 450.0})()
    with LearningProgress(Console(file=output, width=100, force_terminal=True), settings) as progress:
        progress.show(update(1, 225.0))
    assert "225.0 of 450" in output.getvalue()
    assert "\x1b[" in output.getvalue()
