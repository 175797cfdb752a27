"""What a worker knows of its group is what the group is now."""

import logging

from rlinf.scheduler import Worker
from rlinf_scheduler.session.membership import Draining, GroupMembers, GroupMembership


class Counting(Worker):
    def sizes(self):
        return self.members.ranks, self.world_size, self._world_size

    def say(self):
        self.log_on_first_rank(f"rank {self.rank} says it")

    def leaves(self):
        return self.draining, self.draining_left_s


class Own(Worker):
    def __init__(self):
        super().__init__()
        self.world_size, self.members, self.draining = 17, "mine", "yes"

    def sizes(self):
        return self.members, self.world_size, self.draining


def test_a_worker_sees_its_group_grow_and_shrink(job):
    group = job.launch(Counting, 2)
    assert group.sizes().wait() == [((0, 1), 2, 2)] * 2
    for rank, worker in enumerate(group.workers):
        members = GroupMembers("calc", (0, 1, 4), epoch=1)
        worker._rlinf_session.provide(GroupMembership, GroupMembership(members, 1, rank))
    assert group.sizes().wait() == [((0, 1, 4), 3, 3)] * 2
    assert group.get("world_size").wait() == [3, 3]


def test_what_every_rank_would_say_the_first_one_says_that_there_is(job, caplog):
    caplog.set_level(logging.INFO, "rlinf.worker")
    group = job.launch(Counting, 3)
    members = GroupMembers("calc", (1, 2), epoch=1)
    for rank, worker in enumerate(group.workers[1:], 1):
        worker._rlinf_session.provide(GroupMembership, GroupMembership(members, 1, rank))
    group[1:].say().wait()
    assert [record.getMessage() for record in caplog.records] == ["rank 1 says it"]


def test_a_worker_knows_whether_it_leaves_and_how_long_it_has(job):
    group = job.launch(Counting, 1)
    assert group.leaves().wait() == [(False, None)]
    group.workers[0]._rlinf_session.service(Draining).begin("it is to leave", 60.0)
    ((leaves, left_s),) = group.leaves().wait()
    assert leaves
    assert 0 < left_s <= 60


def test_a_worker_of_no_group_is_one_of_one_and_stays():
    alone = Counting()
    assert alone.sizes() == ((0,), 1, 1)
    assert alone.leaves() == (False, None)


def test_what_a_program_sets_wins(job):
    assert job.launch(Own, 1).sizes().wait() == [("mine", 17, "yes")]
