"""Groups that start side by side."""

import os
import socket

import pytest

from rlinf.scheduler import Channel, NodePlacementStrategy, Worker
from rlinf_scheduler.errors import GroupExists, LaunchError
from waits import wait_until

DEADLINE_S = 60.0


class Together(Worker):
    """Is ready once as many groups as itself are in `__init__`: each waits for the others there."""

    def __init__(self, names):
        super().__init__()
        others = [name for name in names if name != self.address.group]
        for name in others:
            self.send("I am here", name, 0)
        for name in others:
            self.recv(name, 0, timeout_s=DEADLINE_S)

    def where(self):
        return str(self.address)


class Plain(Worker):
    """Fails if it is told to."""

    def __init__(self, problem=""):
        super().__init__()
        if problem:
            raise ValueError(problem)

    def where(self):
        return str(self.address)


class Serving(Worker):
    """Listens on the port of its group, as torch's store does, and on one more."""

    def __init__(self):
        super().__init__()
        self.ports = [int(os.environ["MASTER_PORT"]), self.acquire_free_port()]
        self.servers = [socket.create_server(("", port)) for port in self.ports]


def launch(job, name, worker_class, *args):
    return worker_class.create_group(*args).launch(job, NodePlacementStrategy([0]), name=name)


def test_groups_of_a_block_start_together_and_are_ready_at_its_end(forked_job):
    wanted = ["one", "two", "three"]
    with forked_job.starting():
        groups = [launch(forked_job, name, Together, wanted) for name in wanted]
        assert [group.world_size for group in groups] == [1, 1, 1]
        # A call in the block waits for its group.
        assert groups[0].where().wait(DEADLINE_S) == ["one:0"]
    names = [group.where().wait(DEADLINE_S)[0] for group in groups]
    assert names == ["one:0", "two:0", "three:0"]


def test_a_launch_that_fails_ends_the_others_of_its_block(forked_job):
    def start_both():
        with forked_job.starting():
            launch(forked_job, "good", Plain)
            launch(forked_job, "bad", Plain, "no luck")

    with pytest.raises(LaunchError, match="no luck"):
        start_both()
    # Both names are free again.
    wait_until(lambda: not forked_job.groups)
    assert launch(forked_job, "good", Plain).where().wait(DEADLINE_S) == ["good:0"]


def test_a_channel_of_a_block_can_be_used_at_once_and_outlives_a_launch_that_fails(forked_job):
    def create_and_fail():
        with forked_job.starting():
            channel = Channel.create("outlives-a-block", own_process=True)
            channel.put("kept", timeout_s=DEADLINE_S)
            launch(forked_job, "bad", Plain, "no luck")

    with pytest.raises(LaunchError, match="no luck"):
        create_and_fail()
    channel = Channel.connect("outlives-a-block", timeout_s=DEADLINE_S)
    assert channel.get(timeout_s=DEADLINE_S) == "kept"
    channel.delete()


def test_a_name_is_refused_at_once_in_a_block(forked_job):
    first = launch(forked_job, "refused-twice", Plain)
    with pytest.raises(GroupExists), forked_job.starting():
        launch(forked_job, "refused-twice", Plain)
    assert first.where().wait(DEADLINE_S) == ["refused-twice:0"]


def test_twenty_groups_that_are_launched_at_once_on_two_nodes_never_want_the_same_port(forked_job):
    with forked_job.starting():
        groups = [
            Serving.create_group().launch(forked_job, NodePlacementStrategy([number % 2]), name=f"{number}")
            for number in range(20)
        ]
    ports = [port for group in groups for port in group.get("ports").wait(DEADLINE_S)[0]]
    assert len(set(ports)) == 40
