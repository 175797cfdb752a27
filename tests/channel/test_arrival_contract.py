"""Who asked first is served first, and leases of consumer groups are their own: everywhere, and between machines."""

from __future__ import annotations

import itertools

import arrival_roles as roles
import pytest
from channel_workers import Runner

from job_processes import THERE, Job
from rlinf.scheduler import NodePlacementStrategy
from rlinf_scheduler.channel import Channel
from rlinf_scheduler.errors import WorkerDied

DEADLINE_S = 60.0
_numbers = itertools.count()


class BetweenMachines:
    """The channels are held here; each task is a process of another machine, reached by TCP."""

    def __init__(self, job):
        self.job = job

    def create(self):
        return Channel.create(f"arrivals-{next(_numbers)}")

    def run(self, function, *args):
        return self.job.start(roles.run, function, args, where=THERE)


@pytest.fixture
def machines():
    with Job("tcp") as job:
        yield BetweenMachines(job)


BACKENDS = ["in_process", "sockets", "machines", pytest.param("on_ray", marks=pytest.mark.ray)]


@pytest.fixture(params=BACKENDS)
def anywhere(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(params=BACKENDS[1:])
def doomed(request):
    """A backend, and what runs a function in a process of it that the function is the end of."""
    backend = request.getfixturevalue(request.param)
    if request.param != "on_ray":
        return backend, lambda *args: backend.run(*args).process.join(DEADLINE_S)
    cluster = request.getfixturevalue("ray_cluster")
    mortal = Runner.create_group().launch(cluster, NodePlacementStrategy([1]), name="mortal")

    def let_die(*args):
        with pytest.raises(WorkerDied):
            mortal.run(*args).wait(DEADLINE_S)
        mortal.terminate()

    return backend, let_die


def waiting(anywhere, function, channel, *args):
    """A task that has asked, and waits."""
    ready = anywhere.create()
    task = anywhere.run(function, channel, ready, *args)
    assert ready.get(timeout_s=DEADLINE_S) == "waiting"
    return task


def test_readers_of_one_name_are_served_as_they_asked_and_take_nothing_from_consumers(anywhere):
    channel = anywhere.create()
    with channel.subscribe("log") as seen:
        first = seen.get(async_op=True)
        channel.qsize()  # answered after the get has its place in line
        second = waiting(anywhere, roles.wait_as_reader, channel)
        third = seen.get(async_op=True)
        consumers = [channel.get_batch(max_items=2, min_items=2, async_op=True), channel.get(async_op=True)]
        for item in "abc":
            channel.put(item)
        assert [first.wait(DEADLINE_S), second.result(DEADLINE_S), third.wait(DEADLINE_S)] == ["a", "b", "c"]
        assert [each.wait(DEADLINE_S) for each in consumers] == [["a", "b"], "c"]


def test_a_reader_of_all_queues_sees_what_several_put_as_it_was_accepted(anywhere):
    channel = anywhere.create()
    with channel.subscribe("log", None) as seen:
        channel.put("a", queue_name="x")
        anywhere.run(roles.put, channel, "b", "y").result(DEADLINE_S)
        channel.put("c", queue_name="x")
        assert [seen.get(timeout_s=DEADLINE_S) for _ in range(3)] == ["a", "b", "c"]
    assert (channel.drain("x"), channel.drain("y")) == (["a", "c"], ["b"])


def test_the_group_that_is_complete_first_goes_to_whoever_asked_first(anywhere):
    channel = anywhere.create()
    first = channel.get_group(2, async_op=True)
    channel.qsize()
    second = waiting(anywhere, roles.wait_for_a_group, channel, 2)
    for sample, group in enumerate(("slow", "quick", "quick", "slow")):
        channel.put(sample, group=group)
    assert first.wait(DEADLINE_S) == [1, 2]
    assert second.result(DEADLINE_S) == ("slow", [0, 3])


def test_what_a_reader_gives_back_goes_to_another_of_its_name_and_to_nobody_else(anywhere):
    channel = anywhere.create()
    with channel.subscribe("log") as seen, channel.subscribe("stats") as other:
        for item in "ab":
            channel.put(item)
        with other.lease(timeout_s=DEADLINE_S) as held:
            given_back = anywhere.run(roles.fail_as_reader, channel)
            with pytest.raises(ZeroDivisionError):
                given_back.result(DEADLINE_S)
            assert (held.item, held.attempt) == ("a", 1)
        assert channel.drain() == ["a", "b"]
        channel.end()
        leases = [[(lease.item, lease.attempt) for lease in each.leases()] for each in (seen, other)]
        assert leases == [[("a", 2), ("b", 1)], [("b", 1)]]


def test_what_a_dead_reader_had_on_lease_goes_to_another_of_its_name_and_to_nobody_else(doomed):
    backend, let_die = doomed
    channel = backend.create()
    with channel.subscribe("log") as seen, channel.subscribe("stats") as other:
        channel.put("a")
        let_die(roles.die_as_reader, channel)
        with seen.lease(timeout_s=DEADLINE_S) as lease, other.lease(timeout_s=DEADLINE_S) as its:
            assert [(each.item, each.attempt) for each in (lease, its)] == [("a", 2), ("a", 1)]
        assert channel.drain() == ["a"]
