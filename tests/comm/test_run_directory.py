import os

import pytest

from rlinf.scheduler.comm.rundir import MIN_STALE_AGE_S, RunDirectory


@pytest.fixture(autouse=True)
def parent(tmp_path, monkeypatch):
    monkeypatch.setattr("rlinf.scheduler.comm.rundir._parent", lambda: tmp_path)
    return tmp_path


def make_old(path):
    status = path.stat()
    os.utime(path, (status.st_atime, status.st_mtime - MIN_STALE_AGE_S - 1))


def test_a_living_process_keeps_its_directory_and_a_dead_ones_goes(parent):
    living = RunDirectory()
    make_old(living.path)
    dead = parent / "rlinf-dead"
    dead.mkdir()
    (dead / "lock").touch()
    make_old(dead)
    RunDirectory().close()
    assert living.path.exists()
    assert not dead.exists()
    living.close()
    living.close()
    assert list(parent.iterdir()) == []


def test_a_young_directory_and_what_is_not_ours_stay(parent):
    starting = parent / "rlinf-starting"
    starting.mkdir()
    (starting / "lock").touch()
    other = parent / "rlinf-something-else"
    other.mkdir()
    make_old(other)
    RunDirectory().close()
    assert starting.exists()
    assert other.exists()
