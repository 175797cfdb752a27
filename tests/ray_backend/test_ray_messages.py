"""Which of Ray's messages a user sees."""

import logging

import pytest
from ray._private import worker as ray_worker

from rlinf_scheduler.ray_backend.patches import keep_off_terminal


@pytest.fixture
def printed(monkeypatch):
    """What Ray would print."""
    lines = []
    monkeypatch.setattr(ray_worker, "print_worker_logs", lambda data, *_args: lines.extend(data["lines"]))
    return lines


def test_lines_of_actors_and_tasks_are_shown_and_those_of_ray_itself_are_for_debugging(printed, caplog):
    undo = keep_off_terminal()
    with caplog.at_level(logging.DEBUG, "rlinf.ray"):
        for origin in (
            {"pid": 1, "actor_name": "Mine"},
            {"pid": 2, "task_name": "f"},
            {"pid": "raylet"},
            {"pid": 3},
        ):
            ray_worker.print_worker_logs({**origin, "lines": [f"of {origin['pid']}"]}, None)
    undo()
    assert printed == ["of 1", "of 2"]
    assert caplog.messages == ["raylet: of raylet", "3: of 3"]
    ray_worker.print_worker_logs({"pid": "raylet", "lines": ["again"]}, None)
    assert printed == ["of 1", "of 2", "again"]
