"""A file that takes what a process writes: read on while others write to it, empty it, and its beginning goes."""

import contextlib
import errno
import os
import threading

import pytest

from rlinf_scheduler.host import output_file
from rlinf_scheduler.host.output_file import FollowedFile, last_lines
from waits import DEADLINE_S


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rollout-0.log"


@pytest.fixture
def taken():
    """The descriptor whose text goes to the file."""
    descriptor = os.open(os.devnull, os.O_WRONLY)
    yield descriptor
    os.close(descriptor)


@contextlib.contextmanager
def followed(path, taken):
    file = FollowedFile(path)
    file.take(taken)
    yield file
    file.close()


def said(file):
    return [line for lines in file.new_lines() for line in lines]


def test_a_file_that_somebody_empties_is_read_from_its_beginning(path, taken):
    with followed(path, taken) as file:
        os.write(taken, b"a long line before\n")
        assert said(file) == ["a long line before"]
        os.truncate(path, 0)
        os.write(taken, b"after\n")
        assert said(file) == ["after"]


@pytest.fixture(params=["moves", "holes"])
def shortened(request, tmp_path, small_disk, monkeypatch):
    """A file on a system that moves up what follows what was taken away, or leaves a hole; its limits are small."""
    monkeypatch.setattr(output_file, "MAX_FILE_BYTES", 64 << 10)
    monkeypatch.setattr(output_file, "KEPT_BYTES", 32 << 10)
    return (tmp_path if request.param == "moves" else small_disk.path) / "rollout-0.log"


def test_a_file_that_grows_stays_within_its_bounds_and_every_line_is_read(shortened, taken):
    with followed(shortened, taken) as file:
        lines = []
        for number in range(20_000):
            os.write(taken, b"line %d\n" % number)
            if number % 100 == 99:
                lines += said(file)
                if file.is_full:
                    file.shorten()
            assert os.stat(shortened).st_blocks * 512 <= (64 << 10) + 8192
        assert lines == [f"line {number}" for number in range(20_000)]
        assert last_lines(str(shortened))[-1] == "line 19999"


def test_a_file_that_is_written_to_without_a_pause_is_shortened_and_no_line_is_lost(
    shortened, taken, monkeypatch
):
    monkeypatch.setattr(output_file, "MAX_BEHIND_BYTES", 1 << 30)
    num_lines, written, lines = 30_000, threading.Event(), []
    last = f"line {num_lines - 1}"

    def write():
        for number in range(num_lines):
            os.write(taken, b"line %d\n" % number)
            if number % 500 == 0:  # what goes before it was read would be told of, not shown
                caught_up.wait(DEADLINE_S)
                caught_up.clear()
        written.set()

    caught_up = threading.Event()
    with followed(shortened, taken) as file:
        writer = threading.Thread(target=write)
        writer.start()
        num_shortened = 0
        while not (written.is_set() and lines and lines[-1] == last):
            lines += said(file)
            caught_up.set()
            if file.is_full:
                file.shorten()
                num_shortened += 1
        writer.join()
    assert num_shortened > 3
    assert lines == [f"line {number}" for number in range(num_lines)]


def test_what_goes_before_it_was_read_is_told_of(shortened, taken, monkeypatch):
    monkeypatch.setattr(output_file, "MAX_BEHIND_BYTES", 16 << 10)
    with followed(shortened, taken) as file:
        for number in range(20_000):
            os.write(taken, b"line %d\n" % number)
            if file.is_full:
                file.shorten()
        first, *rest = said(file)
    size = sum(len(f"line {number}\n") for number in range(20_000))
    shown = sum(len(line) + 1 for line in rest)
    assert first.startswith("... ")
    assert first.endswith(f" MiB more, in {shortened}")
    assert abs(float(first.split()[1]) * (1 << 20) - (size - shown)) < 1e5
    assert rest[-1] == "line 19999"


def test_a_child_that_was_started_before_goes_on_writing_where_it_is_read(shortened, taken):
    child = os.dup(taken)
    with followed(shortened, taken) as file:
        os.dup2(taken, child)
        os.write(taken, b"x" * 100 * 1000 + b"\n")
        file.shorten()
        said(file)
        os.write(child, b"of the child\n")
        assert said(file) == ["of the child"]
    os.close(child)


def test_nobody_who_reads_waits_while_the_disk_does_not_answer(stopping_disk, taken, monkeypatch):
    monkeypatch.setattr(output_file, "MAX_FILE_BYTES", 64 << 10)
    monkeypatch.setattr(output_file, "KEPT_BYTES", 32 << 10)
    with followed(stopping_disk.path / "rollout-0.log", taken) as file:
        for number in range(1000):
            os.write(taken, b"line %d %s\n" % (number, b"x" * 100))
        with stopping_disk.stopped():
            shortening = threading.Thread(target=file.shorten)
            shortening.start()
            assert file.is_full
            assert said(file) in ([], [f"line {number} {'x' * 100}" for number in range(1000)])
        shortening.join(DEADLINE_S)
        assert not file.is_full


def test_a_file_is_shortened_once_at_a_time_however_long_that_takes(shortened, taken):
    with followed(shortened, taken) as file:
        os.write(taken, b"x" * 100 * 1000 + b"\n")
        assert [file.begin_shortening() for _ in range(3)] == [True, False, False]
        file.shorten()
        assert not file.begin_shortening()
        os.write(taken, b"x" * 100 * 1000 + b"\n")
        assert [file.begin_shortening() for _ in range(3)] == [True, False, False]


def test_a_file_that_cannot_be_shortened_is_left_alone_until_it_has_grown_further(
    shortened, taken, monkeypatch
):
    def take_front(*_):
        raise OSError(errno.EOPNOTSUPP, "no such operation on this file system")

    monkeypatch.setattr(output_file, "take_front", take_front)
    with followed(shortened, taken) as file:
        os.write(taken, b"x" * 100 * 1000 + b"\n")
        assert file.begin_shortening()
        file.shorten()
        assert not file.begin_shortening()
        os.write(taken, b"x" * 33 * 1024 + b"\n")
        assert file.begin_shortening()
