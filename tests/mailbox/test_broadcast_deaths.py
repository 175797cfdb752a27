"""kill -9 in the middle of broadcasts between processes."""

import contextlib
import multiprocessing

import numpy as np
import pytest

import broadcast_peers
from rlinf_scheduler.comm import DirectoryClient, DirectoryServer
from rlinf_scheduler.errors import PeerDied
from rlinf_scheduler.mailbox import Mailbox

DEADLINE_S = 60.0
SIZE = 50_000
NUM_TURNS = 40
KILL_AT = 10
GROUPS = [("actor", 0), ("rollout", range(3))]
SRC = ("actor", 0)
ROLLOUTS = ["rollout:0", "rollout:1", "rollout:2"]


class Process:
    """A process that is told to end by closing its pipe."""

    def __init__(self, process, pipe):
        self.process = process
        self.pipe = pipe

    def hears(self):
        assert self.pipe.poll(DEADLINE_S)
        return self.pipe.recv()

    def kill(self):
        self.process.kill()


@pytest.fixture
def driver(new_messenger):
    """A process of the machine "here", which keeps the directory."""
    messenger = new_messenger("driver", "here")
    DirectoryServer(messenger)
    return messenger


@pytest.fixture
def start_member(secret, driver):
    """Starts a function of `broadcast_peers`: a member's name and machine, and what else it takes."""
    context = multiprocessing.get_context("forkserver")
    with contextlib.ExitStack() as stack:

        def start(function, name, machine, *args):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=function, args=(theirs, secret, name, machine, driver.endpoint, GROUPS, SRC, *args)
            )
            process.start()
            theirs.close()
            stack.callback(ours.close)
            stack.callback(process.join, DEADLINE_S)
            stack.callback(process.kill)
            return Process(process, ours)

        yield start


@pytest.fixture
def source(driver):
    """The source's mailbox, in this process."""
    names = DirectoryClient(driver, driver.endpoint)
    mailbox = Mailbox(driver, names, "actor:0")
    names.register("actor:0", driver.endpoint)
    return mailbox


def broadcast(mailbox, number):
    obj = (number, np.full(SIZE, number))
    return mailbox.broadcast(obj, GROUPS, SRC, timeout_s=DEADLINE_S)


@pytest.mark.parametrize("machine", ["here", "there"])
def test_members_of_a_killed_source_keep_what_came_and_hear_of_its_death(start_member, machine):
    members = [start_member(broadcast_peers.receive_all, name, machine, KILL_AT) for name in ROLLOUTS]
    source = start_member(broadcast_peers.send_for_ever, "actor:0", "here", SIZE)
    for member in members:
        assert member.hears() == "ready"
    for member in members:
        assert member.hears() == "there"
    source.kill()
    for member in members:
        received, error = member.hears()
        assert received == list(range(len(received)))
        assert isinstance(error, PeerDied)
        assert error.peer == "actor:0"


@pytest.mark.parametrize(
    ("machine", "killed"), [("here", 1), ("there", 0), ("there", 1)], ids=["local", "relay", "remote"]
)
def test_all_others_get_everything_when_a_member_is_killed(start_member, source, machine, killed):
    members = [start_member(broadcast_peers.receive_all, name, machine, KILL_AT) for name in ROLLOUTS]
    for member in members:
        assert member.hears() == "ready"
    failed = []
    for number in range(NUM_TURNS):
        if number == KILL_AT + 1:
            assert members[killed].hears() == "there"
            # Several are under way when it dies.
            under_way = [broadcast(source, number + ahead) for ahead in range(4)]
            members[killed].kill()
            failed += [handle.exception() for handle in under_way]
        elif not KILL_AT + 1 < number < KILL_AT + 5:
            failed.append(broadcast(source, number).exception())
    broadcast(source, -1).exception()
    for member in members[:killed] + members[killed + 1 :]:
        assert member.hears() == "there"
        assert member.hears() == ([*range(NUM_TURNS), -1], None)
    assert not any(failed[: KILL_AT + 1])
    assert all(isinstance(error, PeerDied) for error in failed[KILL_AT + 5 :])
    assert {error.peer for error in failed if error is not None} == {ROLLOUTS[killed]}
