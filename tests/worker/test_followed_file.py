"""A file that takes what a process writes: somebody may empty it at any moment, to have room on a disk."""

import os

import pytest

from rlinf.scheduler.host import followed_file
from rlinf.scheduler.host.followed_file import FollowedFile


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rollout-0.log"


@pytest.fixture
def taken(path):
    """The descriptor whose text goes to the file."""
    descriptor = os.open(os.devnull, os.O_WRONLY)
    yield descriptor
    os.close(descriptor)


def said(file):
    return [line for lines in file.new_lines() for line in lines]


def test_a_file_that_somebody_empties_is_read_from_its_beginning(path, taken):
    file = FollowedFile(path, taken)
    os.write(taken, b"a long line before\n")
    assert said(file) == ["a long line before"]
    os.truncate(path, 0)
    os.write(taken, b"after\n")
    assert said(file) == ["after"]


def test_a_file_that_somebody_empties_while_it_is_put_aside_holds_nobody_up(path, taken, monkeypatch):
    file = FollowedFile(path, taken)
    monkeypatch.setattr(followed_file, "MAX_FILE_BYTES", 10)
    monkeypatch.setattr(os, "fchmod", lambda *_: os.truncate(path, 0))
    os.write(taken, b"more than ten bytes\n")
    assert said(file) == ["more than ten bytes"]
    os.write(taken, b"after\n")
    assert said(file) == ["after"]
