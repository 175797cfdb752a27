"""A worker class may use any name: its methods win on its group, its attributes on its workers; ours go on working."""

import copy
import logging
import os

import pytest

from local_group import DEADLINE_S, LocalJob
from rlinf.scheduler import FlexiblePlacementStrategy, Worker
from rlinf_scheduler import WorkerGroup
from rlinf_scheduler.errors import PlacementError
from waits import wait_until

OWN_OF_GROUPS = [name for name in vars(WorkerGroup) if not name.startswith("_")]
OWN_OF_WORKERS = [
    name
    for name in dir(Worker)
    if not name.startswith("__") and not callable(getattr(Worker, name)) and name != "cancelled"
]


def launched(worker_class, job, name="workers"):
    strategy = FlexiblePlacementStrategy([[0], [1]])
    return worker_class.create_group().launch(job, placement_strategy=strategy, name=name)


def wait(result):
    return result.wait(DEADLINE_S)


def method_named(name):
    def method(self, value=0):
        return name, value, self.address.rank

    method.__name__ = name
    return method


class Greedy(Worker):
    """It has a method of every name that a group has."""

    def act(self, value):
        return value + self.rank


for _name in OWN_OF_GROUPS:
    setattr(Greedy, _name, method_named(_name))


@pytest.mark.parametrize("name", OWN_OF_GROUPS)
def test_a_method_of_the_class_wins_on_its_group(name, greedy):
    assert wait(getattr(greedy, name)(3)) == [(name, 3, 0), (name, 3, 1)]
    assert wait(getattr(greedy, name)()) == [(name, 0, 0), (name, 0, 1)]


@pytest.fixture(scope="module")
def greedy():
    job = LocalJob()
    yield job.launch(Greedy, 2, name="greedy")
    job.close()


def test_what_a_group_has_itself_is_reached_through_its_class(greedy):
    plain = WorkerGroup.plain(greedy)
    assert (plain.name, plain.world_size, plain.ranks) == ("greedy", 2, (0, 1))
    assert [place.rank for place in plain.placements] == [0, 1]
    assert [health.state for health in WorkerGroup.health(greedy)] == ["alive", "alive"]
    assert wait(WorkerGroup.call(greedy, Greedy.shutdown, 7)) == [("shutdown", 7, 0), ("shutdown", 7, 1)]
    assert wait(plain.call_method("get", (1,), {})) == [("get", 1, 0), ("get", 1, 1)]
    assert wait(WorkerGroup.get(greedy, "rank")) == [0, 1]
    assert wait(plain.act(10)) == [10, 11]
    with pytest.raises(AttributeError, match=r"WorkerGroup\.get\(group, 'rank'\) reads it"):
        greedy.rank()


def test_a_view_of_a_group_has_the_names_of_the_class_too(greedy):
    last = greedy[1:]
    assert wait(last.shutdown()) == [("shutdown", 0, 1)]
    assert wait(greedy[::-1].name()) == [("name", 0, 1), ("name", 0, 0)]
    assert WorkerGroup.plain(last).ranks == (1,)
    shared = WorkerGroup.scatter(greedy, [5, 6])
    assert wait(shared.restart()) == [("restart", 5, 0), ("restart", 6, 1)]
    assert wait(WorkerGroup.plain(shared).act()) == [5, 7]
    assert wait(WorkerGroup.retrying(greedy).act(1)) == [1, 2]
    with pytest.raises(PlacementError, match=r"shutdown\(\) is for all 2 ranks of 'greedy'"):
        WorkerGroup.shutdown(last)
    assert isinstance(shared, WorkerGroup)
    assert "WorkerGroup('greedy', 2 x Greedy" in repr(greedy)
    assert set(OWN_OF_GROUPS) <= set(dir(greedy))


def test_a_copy_of_a_group_is_that_group(greedy, job):
    assert wait(copy.copy(greedy).shutdown(4)) == [("shutdown", 4, 0), ("shutdown", 4, 1)]
    assert copy.copy(WorkerGroup.plain(greedy[1:])).ranks == (1,)
    modest = job.launch(Worker, 1, name="copied")
    assert copy.copy(modest).name == "copied"


def test_a_block_ends_a_group_whatever_its_class_calls_shutdown(forked_job):
    with launched(Greedy, forked_job, name="block") as group:
        assert wait(group.shutdown()) == [("shutdown", 0, 0), ("shutdown", 0, 1)]
    assert {health.state for health in WorkerGroup.health(group)} == {"ended"}
    broken = launched(Greedy, forked_job, name="broken")
    with pytest.raises(LookupError), broken:
        raise LookupError
    assert {health.state for health in WorkerGroup.health(broken)} == {"ended"}


def test_a_class_without_such_names_keeps_what_a_group_has(job):
    class Modest(Worker):
        name = "a text, not a method"

        @property
        def ranks(self):
            return "mine"

    group = job.launch(Modest, 1, name="modest")
    assert (group.name, group.ranks) == ("modest", (0,))
    assert wait(group.get("ranks")) == ["mine"]
    assert type(group) is WorkerGroup


class Busy(Worker):
    def exchange(self):
        """Use what a worker has for others, by the library's own functions."""
        rank = int(os.environ["RANK"])
        handle = Worker.send(self, "hello", "workers", 1 - rank, async_op=True)
        got = Worker.recv(self, "workers", 1 - rank)
        handle.wait()
        channel = Worker.create_channel(f"of {rank}")
        channel.put(got)
        with Worker.device_lock(self):
            Worker.log_info(self, "alive")
            Worker.log_on_first_rank(self, "first")
        return channel.get(), Worker.acquire_free_port(self) > 0


class Methods(Busy):
    """Its methods have the names of what a worker knows of itself, and of what the library had for itself."""


for _name in (*OWN_OF_WORKERS, "_log", "_session", "_role"):
    setattr(Methods, _name, method_named(_name))


class Attributes(Busy):
    """It sets every name of what a worker knows of itself."""

    def __init__(self):
        super().__init__()
        self.known = {name: getattr(self, name) for name in ("rank", "placement", "_rank", "_world_size")}
        for name in (*OWN_OF_WORKERS, "cancelled", "_session", "_role"):
            setattr(self, name, None)
        self.placement = "mine"


@pytest.mark.parametrize("worker_class", [Methods, Attributes])
def test_a_worker_works_whatever_names_its_class_takes(worker_class, forked_job, caplog):
    caplog.set_level(logging.INFO, "rlinf.worker")
    group = launched(worker_class, forked_job)
    assert wait(group.exchange()) == [("hello", True)] * 2
    expected = ["[workers:0] alive", "[workers:0] first", "[workers:1] alive"]
    wait_until(lambda: sorted(record.getMessage() for record in caplog.records) == expected)


def test_what_a_worker_sets_is_what_it_and_its_group_find(forked_job):
    group = launched(Attributes, forked_job)
    assert wait(group.get("placement")) == ["mine"] * 2
    known = wait(group.get("known"))
    assert [each["rank"] for each in known] == [0, 1]
    assert [each["placement"].rank for each in known] == [0, 1]
    assert {each["_rank"] == each["rank"] and each["_world_size"] == 2 for each in known} == {True}
