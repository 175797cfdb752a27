"""When a journal is written whole: after so many turns, or when it has grown by so much; less often if it fails."""

from __future__ import annotations

import pytest

from rlinf_scheduler.durable import durable_channel
from rlinf_scheduler.durable.durable_channel import JournalGrowth


@pytest.fixture(autouse=True)
def four_commits_and_a_hundred_bytes(monkeypatch):
    monkeypatch.setattr(durable_channel, "GROWN_COMMITS", 4)
    monkeypatch.setattr(durable_channel, "GROWN_BYTES", 100)


def due_commits(growth, on_due, num_commits=100):
    """After which turns it is written whole."""
    due = []
    for commit in range(1, num_commits + 1):
        if growth.add_commit(0):
            due.append(commit)
            growth.begin()
            on_due(0)
    return due


def test_it_is_written_whole_after_so_many_commits_each_time():
    growth = JournalGrowth()
    assert due_commits(growth, growth.succeed, 15) == [5, 10, 15]
    assert JournalGrowth(num_commits=4).add_commit(0)


def test_one_that_fails_is_tried_after_twice_as_many_commits_each_time_until_it_succeeds():
    growth = JournalGrowth()
    assert due_commits(growth, growth.fail) == [5, 5 + 9, 5 + 9 + 17, 5 + 9 + 17 + 33]
    growth.succeed(0)
    growth.begin()
    assert due_commits(growth, growth.succeed, 5) == [5]


def test_commits_that_happen_while_it_is_written_count_towards_the_next():
    growth = JournalGrowth()
    growth.begin()
    assert not any(growth.add_commit(0) for _ in range(4))
    growth.fail(0)
    assert [growth.add_commit(0) for _ in range(5)] == [False] * 4 + [True]


@pytest.mark.parametrize(("size", "grown"), [(0, 100), (10, 100), (1_000, 2_000)])
def test_it_is_written_whole_when_it_has_grown_by_so_much_and_by_twice_what_it_was(size, grown):
    for growth in (JournalGrowth(size_bytes=size), failed(size)):
        assert not growth.add_commit(size + grown)
        assert growth.add_commit(size + grown + 1)


def failed(size):
    growth = JournalGrowth()
    growth.fail(size)
    return growth
