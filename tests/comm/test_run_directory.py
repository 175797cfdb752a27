import fcntl
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rlinf_scheduler.comm.rundir import (
    DEBUGGER_NAME,
    JOB_NAME,
    MAX_NAMES,
    MIN_STALE_AGE_S,
    SOCKET_NAME,
    STACKS_NAME,
    RunDirectory,
    is_at,
    is_private,
    living_drivers,
    private_directory,
    private_file,
)
from rlinf_scheduler.errors import ClusterError
from rlinf_scheduler.tracing.span_file_folder import hold_folder


@pytest.fixture(autouse=True)
def base(monkeypatch, tmp_path_factory):
    """The directory for temporary files; its path is short enough for a socket."""
    # A process's first is made where `tempdir` says, and is for the tests after this one too.
    tmp_path_factory.getbasetemp()
    with tempfile.TemporaryDirectory(dir="/tmp") as path:
        monkeypatch.setattr(tempfile, "tempdir", path)
        yield Path(path)


@pytest.fixture
def parent(base):
    return base / f"rlinf-{os.getuid()}"


def make(path, *names):
    path.mkdir(mode=0o700, parents=True)
    for name in names:
        (path / name).touch()
    return path


def make_old(path):
    os.utime(path, (1, 1))
    return path


def test_a_living_process_keeps_its_directory_and_a_dead_ones_goes(parent):
    living = RunDirectory()
    make_old(living.path)
    dead = make_old(make(parent / "dead", "lock", SOCKET_NAME))
    RunDirectory().close()
    assert living.path.exists()
    assert not dead.exists()
    living.close()
    living.close()
    assert list(parent.iterdir()) == []


def test_what_a_traced_job_wrote_goes_when_the_last_process_that_held_it_is_gone(parent):
    RunDirectory().close()
    left, held = (make(parent / f"trace-{number}-b2", "0f3a.0", "0f3a.1") for number in ("a1", "a2"))
    os.close(hold_folder(left))
    descriptor = hold_folder(held)
    for folder in (left, held):
        make_old(folder)
    RunDirectory().close()
    assert list(parent.iterdir()) == [held]
    os.close(descriptor)
    RunDirectory().close()
    assert list(parent.iterdir()) == []


def test_a_folder_that_somebody_keeps_locked_is_not_waited_for_without_end(parent):
    folder = make(parent / "trace-a1-b2", "lock")
    with (folder / "lock").open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(
            ClusterError, match=r"trace-a1-b2/lock: another process has had it locked for 0\.05 s"
        ):
            hold_folder(folder, within_s=0.05)
    os.close(hold_folder(folder, within_s=0))


def test_a_folder_whose_own_folder_is_gone_is_not_said_to_be_locked(parent):
    with pytest.raises(FileNotFoundError, match="gone/trace-a1-b2"):
        hold_folder(parent / "gone" / "trace-a1-b2", within_s=0.05)


def test_whoever_wants_a_folder_that_is_being_removed_has_a_new_one(parent):
    folder = make(parent / "trace-a1-b2", "lock")
    with (folder / "lock").open() as remover, ThreadPoolExecutor(1) as beside:
        fcntl.flock(remover, fcntl.LOCK_EX)
        held = beside.submit(hold_folder, folder, 30.0)
        (folder / "lock").unlink()
        remover.close()
        descriptor = held.result(60)
    assert is_at(descriptor, folder / "lock")
    os.close(descriptor)


def test_a_young_directory_stays(parent):
    RunDirectory().close()
    starting = make(parent / "starting", "lock")
    assert MIN_STALE_AGE_S > 10
    RunDirectory().close()
    assert starting.exists()


def test_nothing_is_removed_that_is_not_ours(base, parent):
    results = make_old(make(base / "rlinf-results", "lock", "checkpoint.pt"))
    RunDirectory().close()
    inside = make_old(make(parent / "results", "lock", "checkpoint.pt"))
    linked = make(base / "elsewhere", "lock")
    (parent / "link").symlink_to(make_old(linked))
    RunDirectory().close()
    assert (results / "checkpoint.pt").exists()
    assert (inside / "checkpoint.pt").exists()
    assert (linked / "lock").exists()


def test_what_somebody_puts_into_a_living_directory_is_not_removed_with_it():
    directory = RunDirectory()
    (directory.path / "notes").touch()
    directory.close()
    assert (directory.path / "notes").exists()


def test_what_the_parts_of_a_process_put_there_goes_with_it(parent):
    kept = (STACKS_NAME, f"{DEBUGGER_NAME}4194304-1", JOB_NAME, "c7")
    directory = RunDirectory()
    for name in kept:
        (directory.path / name).touch()
    dead = make_old(make(parent / "dead", "lock", *kept))
    directory.close()
    RunDirectory().close()
    assert not directory.path.exists()
    assert not dead.exists()


@pytest.mark.parametrize("foreign", ["link", "wide", "file"])
def test_a_parent_that_is_not_this_users_alone_is_not_used(base, parent, foreign):
    if foreign == "link":
        parent.symlink_to(make(base / "elsewhere"))
    elif foreign == "wide":
        make(parent).chmod(0o777)
    else:
        parent.touch()
    directory = RunDirectory()
    assert parent.resolve() not in directory.path.resolve().parents
    assert directory.path.parent.stat().st_mode & 0o777 == 0o700
    directory.close()


def test_a_fall_back_is_common_to_all_processes_and_cleaned_up_like_the_first(base, parent):
    parent.touch()
    first, second = RunDirectory(), RunDirectory()
    assert first.path.parent == second.path.parent == base / f"{parent.name}-1"
    dead = make_old(make(first.path.parent / "dead", "lock", SOCKET_NAME))
    first.close()
    second.close()
    RunDirectory().close()
    assert not dead.exists()
    assert list((base / f"{parent.name}-1").iterdir()) == []


def test_where_every_common_name_is_taken_a_directory_of_its_own_goes_with_its_process(base, parent):
    for path in (parent, *(base / f"{parent.name}-{number}" for number in range(1, MAX_NAMES))):
        path.touch()
    before = set(base.iterdir())
    directory = RunDirectory()
    assert directory.path.parent not in before
    directory.close()
    assert set(base.iterdir()) == before


def test_the_socket_of_a_long_temporary_directory_still_has_a_path(base, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(make(base / ("x" * 100))))
    directory = RunDirectory()
    assert len(os.fsencode(directory.path / SOCKET_NAME)) <= 107
    directory.close()


@pytest.mark.parametrize("longest_bytes", [None, 39])
def test_a_temporary_directory_with_letters_that_ray_does_not_take_is_passed_over(
    base, monkeypatch, longest_bytes
):
    monkeypatch.setattr(tempfile, "tempdir", str(make(base / "ä")))
    path = private_directory(longest_bytes)
    assert path.parent == Path("/tmp")
    assert is_private(path)


def test_whoever_looks_for_drivers_asks_for_no_lock_that_another_process_is_about_to_take(
    parent, monkeypatch
):
    driver, worker = RunDirectory(), RunDirectory()
    for path in (driver.path, make(parent / "dead", "lock")):
        (path / JOB_NAME).touch()
    make(parent / "starting", "lock")
    flock, asked = fcntl.flock, set()

    def note(descriptor, operation):
        asked.add(Path(os.readlink(f"/proc/self/fd/{descriptor}")).parent.name)
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", note)
    assert list(living_drivers()) == [driver.path]
    assert asked == {driver.path.name, "dead"}
    for directory in (driver, worker):
        directory.close()


def test_a_file_of_the_library_s_own_is_this_user_s_alone_whatever_the_mask_says(tmp_path):
    before = os.umask(0)
    try:
        with open(tmp_path / "made", "ab", opener=private_file):
            pass
    finally:
        os.umask(before)
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o600
