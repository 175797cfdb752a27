"""Which folders of Ray's sessions are removed: old ones of Rays that have ended, and nothing else."""

import os
import socket
import tempfile
import time
from pathlib import Path

import pytest

from rlinf_scheduler.ray_backend.folders import KEPT_SESSIONS, QUIET_S, prune_sessions
from rlinf_scheduler.ray_backend.this_node import NodeOptions, start_node, stop_node

OLDEST = "session_2026-11-01_00-00-00_000000_1"


@pytest.fixture
def folder():
    # The names of sockets are not to be long.
    with tempfile.TemporaryDirectory(prefix="rl", dir="/tmp") as name:
        yield Path(name)


def make_session(folder, name=OLDEST, *, age_s=2 * QUIET_S):
    session = folder / name
    for part in ("logs", "sockets"):
        (session / part).mkdir(parents=True)
    (session / "logs" / "raylet.out").write_text("a line")
    then = time.time() - age_s
    for path in (session / "logs" / "raylet.out", session):
        os.utime(path, (then, then))
    return session


def make_newer(folder, number=KEPT_SESSIONS):
    return {
        make_session(folder, f"session_2026-11-{2 + day:02}_00-00-00_000000_1").name for day in range(number)
    }


def left(folder):
    return {path.name for path in folder.iterdir()}


def test_of_those_that_have_ended_the_newest_stay_for_their_logs(folder):
    kept = make_newer(folder)
    make_session(folder)
    make_session(folder, "session_2025-12-31_00-00-00_000000_99999")
    prune_sessions(folder)
    assert left(folder) == kept


def test_one_that_is_written_to_stays(folder):
    kept = make_newer(folder)
    session = make_session(folder)
    os.utime(session / "logs" / "raylet.out")
    prune_sessions(folder)
    assert left(folder) == {*kept, session.name}


@pytest.mark.parametrize("takes_connections", [True, False])
def test_one_whose_raylet_listens_stays_also_where_that_is_stopped(folder, takes_connections):
    kept = make_newer(folder)
    session = make_session(folder)
    with socket.socket(socket.AF_UNIX) as raylet, socket.socket(socket.AF_UNIX) as other:
        raylet.bind(str(session / "sockets" / "raylet"))
        raylet.listen(0)
        if not takes_connections:
            other.connect(str(session / "sockets" / "raylet"))
        prune_sessions(folder)
        assert left(folder) == {*kept, session.name}
    prune_sessions(folder)
    assert left(folder) == kept


def test_what_is_no_session_of_rays_stays(folder):
    kept = make_newer(folder)
    outside = make_session(folder / "elsewhere", "session_of_somebody")
    (folder / OLDEST).symlink_to(outside)
    for name in ("session_latest", "ray_current_cluster"):
        (folder / name).touch()
    prune_sessions(folder)
    assert left(folder) == {*kept, OLDEST, "elsewhere", "session_latest", "ray_current_cluster"}
    assert (outside / "logs" / "raylet.out").exists()


def test_where_ray_never_was_there_is_nothing_to_do(folder):
    prune_sessions(folder / "ray")
    assert left(folder) == set()


def test_a_node_that_is_started_prunes_its_folder_and_no_other(machine, private, tmp_path):
    ours, rays = private / "ray", tmp_path / "ray"
    for folder in (ours, rays):
        make_newer(folder)
        make_session(folder)
    stop_node(start_node(NodeOptions(ip="127.0.0.9", port=6555), machine).record)
    assert len(left(ours)) == KEPT_SESSIONS
    assert len(left(rays)) == KEPT_SESSIONS + 1
