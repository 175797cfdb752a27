import io
import json

import pytest
from rich.console import Console

from console import LearningProgress
from outcome import summary_lines, write_outcome
from phases import PhaseClock, mean_phases
from report import ChannelTraffic, TrainingReport, UpdateReport


def update(version, mean_return, num_judged=20):
    returns = (mean_return - 5, mean_return + 5)
    return UpdateReport(version, 1024 * version, returns, mean_return, num_judged, 1, 0.5, 0.01)


def training(*updates):
    return TrainingReport(
        mode="hybrid",
        updates=updates,
        startup_s=20.0,
        training_s=10.0,
        phases={"env": {"simulate": 1.0, "wait for decisions": 4.0}, "actor": {"learn": 6.0}},
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
    assert data["phases_s"]["env"]["simulate"] == 1.0


def test_summary_tells_time_by_phase_and_bytes_by_channel():
    text = "\n".join(summary_lines(training(update(1, 450.0))))
    for piece in ("simulate", "10%", "wait for a call", "12,000 items", "3.50 MB", "450.0", "reached"):
        assert piece in text
    assert "NOT" not in text


@pytest.mark.parametrize(
    "updates",
    [(), (update(1, 399.9),), (update(1, 450.0, num_judged=19),), (update(1, 450.0), update(2, 90.0))],
)
def test_too_low_a_mean_or_too_few_episodes_are_no_success(updates):
    assert not training(*updates).success


def test_phases_add_up_and_are_averaged_over_ranks():
    clock = PhaseClock()
    for _ in range(2):
        with clock.phase("learn"):
            pass
    assert clock.read()["learn"] > 0
    assert mean_phases([{"a": 1.0}, {"a": 3.0, "b": 4.0}]) == {"a": 2.0, "b": 2.0}


def test_in_a_pipe_progress_is_plain_lines_and_the_last_update_is_among_them():

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
