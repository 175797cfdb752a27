"""Gone is gone: who learns of a death tells everybody, and who was declared dead takes part no more."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

import death_roles
from job_processes import Job
from rlinf_scheduler.comm.transport.peer_session import GRACE_S, Loss
from rlinf_scheduler.errors import PeerDied
from rlinf_scheduler.session.membership import Death, DeathRegister
from waits import wait_until

DEADLINE_S = 60.0
PROCESSES = ("home", "a", "b", "c", "d")


@given(st.lists(st.tuples(st.sampled_from(PROCESSES), st.sampled_from(PROCESSES)), max_size=30))
def test_each_dies_once_never_the_home_and_never_by_the_word_of_the_dead(reports):
    register, dead = DeathRegister("home"), set()
    for number, (who, by) in enumerate(reports):
        death = Death(who, who, str(number))
        believed = who != "home" and who not in dead and by not in dead
        assert register.declare(death, by) == believed
        if believed:
            dead.add(who)


@pytest.fixture(params=["unix", "tcp"])
def job(request):
    with Job(request.param) as made:
        yield made


def declare(job, endpoint, name, cause="node 2 (10.0.0.7) is gone: its raylet ended at 12:03:04"):
    job.driver.deaths.declare(Death(endpoint.process_id, name, cause))


def test_a_wait_for_the_dead_ends_at_once_in_processes_that_had_no_connection_to_break(job):
    """It lives, and is connected with the home and with the one that waits for it; nothing breaks by itself."""
    dead = job.start(death_roles.greet, name="env:0", where="there")
    endpoint = dead.receive()
    waiting = job.start(death_roles.wait_for_item, "env:0", name="rollout:0")
    assert waiting.receive() == "waits"
    declared = time.monotonic()
    declare(job, endpoint, "env:0")
    texts = waiting.result()
    assert time.monotonic() - declared < GRACE_S / 2
    told = "node 2 (10.0.0.7) is gone: its raylet ended at 12:03:04"
    assert [text for text in texts if told not in text] == []
    assert len(texts) == 2
    assert dead.result() == f"the job declared this process dead: {told}"


def test_a_stopped_process_that_was_declared_dead_learns_it_when_it_goes_on(job):
    dead = job.start(death_roles.greet, name="env:0", where="there")
    endpoint = dead.receive()
    asker = job.start(death_roles.ask_again, endpoint)
    assert asker.receive() == "ready"
    asker.pipe.send(True)
    assert asker.receive()[0] == "NotServed"
    dead.stop()
    declare(job, endpoint, "env:0", "stopped")
    wait_until(lambda: endpoint.process_id in job.driver.messenger.peers.fenced)
    with pytest.raises(PeerDied, match="stopped"):
        job.driver.messenger.request(endpoint, "nothing", None).result(DEADLINE_S)
    asker.pipe.send(True)
    assert asker.receive() == ("PeerDied", "peer 'env:0' is gone: stopped")
    dead.go_on()
    assert dead.result() == "the job declared this process dead: stopped"
    asker.pipe.send(True)
    assert asker.receive() == ("PeerDied", "peer 'env:0' is gone: stopped")


def test_who_declares_a_death_and_waits_knows_that_the_home_has_it_and_takes_nothing_more(job):
    dead = job.start(death_roles.greet, name="env:0", where="there")
    endpoint = dead.receive()
    dead.stop()  # it cannot say anything about it
    declaring = job.start(death_roles.declare_and_wait, endpoint)
    assert declaring.receive() == "declared"
    assert endpoint.process_id in job.driver.messenger.peers.fenced
    assert declaring.result() == ("PeerDied", "peer 'env:0' is gone: replaced")
    job.driver.deaths.declare_and_wait(Death(endpoint.process_id, "env:0", "once more"), DEADLINE_S)
    dead.go_on()
    assert dead.result() == "the job declared this process dead: replaced"


def test_what_one_member_gives_up_is_dead_for_all(job):
    given_up = job.start(death_roles.greet, name="env:0", where="there")
    endpoint = given_up.receive()
    job.start(death_roles.lose, endpoint, Loss.UNREACHABLE, name="rollout:0")
    assert "unreachable for 30.0 s: silent, at " in given_up.result()
    assert "unreachable" in job.driver.messenger.peers.fenced[endpoint.process_id]
    with pytest.raises(PeerDied, match="unreachable"):
        job.driver.directory.lookup("env:0", DEADLINE_S)


def test_a_killed_process_is_dead_for_all_and_its_name_is_free(job):
    dead = job.start(death_roles.greet, name="env:0", where="there")
    endpoint = dead.receive()
    waiting = job.start(death_roles.wait_for_item, "env:0")
    assert waiting.receive() == "waits"
    dead.kill()
    assert [text for text in waiting.result() if "its process has ended" not in text] == []
    # Each notices by its own connection, at about the same time.
    wait_until(lambda: endpoint.process_id in job.driver.messenger.peers.fenced)
    job.driver.directory.register("env:0", job.driver.messenger.endpoint)


def test_who_said_goodbye_is_not_declared_dead(job):
    lost = []
    job.driver.messenger.on_peer_lost(lost.append)
    other = job.start(death_roles.leave)
    assert other.result() is None
    wait_until(lambda: lost)
    assert job.driver.messenger.peers.lost[lost[0]].loss is Loss.LEFT
    assert not job.driver.messenger.peers.fenced
