"""Links between machines are probed once, in the background: three machines, one of which has a slow cable."""

import contextlib
import errno
import multiprocessing
import os
import queue
import socket
import threading
from multiprocessing import forkserver

import pytest

from machine_peers import join, run
from rlinf.testing.machines import MachineStar, MachinesUnavailable
from rlinf_scheduler.comm import ClusterSecret, Endpoint
from rlinf_scheduler.comm.link_probe import ProbeDoor, probe_link
from rlinf_scheduler.events import LinkFailed, LinkSlow, TransportFellBack
from rlinf_scheduler.session import Session, link_speeds
from rlinf_scheduler.session.link_answers import LINK, LinkQuestion, answer_probes
from rlinf_scheduler.session.links import LinkWatch
from scarce_threads import refuse_thread
from waits import wait_until

DEADLINE_S = 60.0
MB = 1_000_000
TOKEN = b"t" * 32


@pytest.fixture
def star():
    forkserver.ensure_running()  # on none of the machines
    try:
        star = MachineStar(3)
    except MachinesUnavailable as error:
        pytest.skip(f"tests between machines need root or CAP_SYS_ADMIN, and veth and bridge: {error}")
    with star, star.machines[0].entered():
        yield star


@pytest.fixture
def home(star):
    """The job's home, and one process of it on each machine, as node 0, 1 and 2."""
    context = multiprocessing.get_context("forkserver")
    secret = ClusterSecret.generate()
    with contextlib.ExitStack() as stack:
        home = stack.enter_context(join(secret, star.machines[0].address, "driver"))
        watch, ends = home.service(LinkWatch), []
        for rank, machine in enumerate(star.machines):
            ours, theirs = context.Pipe()
            own = home.messenger.endpoint
            arguments = (theirs, machine, "end_a_link", secret, own, f"actor:{rank}")
            process = context.Process(target=run, args=arguments, daemon=True)
            process.start()
            theirs.close()
            stack.callback(process.join, DEADLINE_S)
            stack.callback(process.kill)
            assert ours.poll(DEADLINE_S)
            ends.append(ours.recv())
            stack.callback(ours.close)
        for rank, (machine, end) in enumerate(zip(star.machines, ends, strict=True)):
            home.messenger.submit(
                lambda rank=rank, end=end, ip=machine.address: watch.note(rank, ip, "", end)
            )
        yield home


def heard(session, kind):
    events = queue.SimpleQueue()
    session.bus.subscribe(lambda event: isinstance(event, kind) and events.put(event))
    return events


def test_a_cable_that_carries_much_less_is_told_of_with_its_node(star, home, monkeypatch):
    # What the others carry depends on how busy this machine is.
    monkeypatch.setattr(link_speeds, "SLOW_TIMES", 3.0)
    star.slow_down(2, 4 * MB)
    events, watch = heard(home, LinkSlow), home.service(LinkWatch)
    home.messenger.submit(watch.begin)
    told = [events.get(timeout=DEADLINE_S) for _ in range(2)]
    assert [(e.node_rank, e.peer_ranks, e.is_outgoing) for e in told] == [
        (2, (0, 1), True),
        (2, (0, 1), False),
    ]
    assert told[0].reason.startswith("the way from node 2 to nodes 0-1 carries ")
    assert told[0].bytes_per_s < 8 * MB < told[0].usual_bytes_per_s
    assert set(watch.speeds) == {(0, 1), (0, 2), (1, 2)}
    home.messenger.submit(watch.begin)  # another group was launched: nothing is probed, or told, again
    assert home.directory.list("nobody") == []  # what was handed over before is done
    assert watch.is_idle
    assert events.empty()


def test_who_does_not_know_the_token_is_turned_away_and_the_guest_is_let_in():
    door = ProbeDoor("127.0.0.1", TOKEN, None)
    serving = threading.Thread(target=door.serve)
    serving.start()
    with socket.create_connection(("127.0.0.1", door.port)) as stranger:
        stranger.sendall(b"x" * 32)
        stranger.settimeout(DEADLINE_S)
        assert stranger.recv(1) == b""
    speed = probe_link("127.0.0.1", door.port, TOKEN)
    serving.join(DEADLINE_S)
    assert not serving.is_alive()
    assert speed.round_trip_s > 0
    assert min(speed.sent_bytes_per_s, speed.received_bytes_per_s) > MB
    with pytest.raises(OSError, match="refused"):
        probe_link("127.0.0.1", door.port, TOKEN)


def test_strangers_who_say_nothing_keep_no_guest_waiting():
    door = ProbeDoor("127.0.0.1", TOKEN, None)
    serving = threading.Thread(target=door.serve)
    serving.start()
    with contextlib.ExitStack() as stack:
        strangers = [
            stack.enter_context(socket.create_connection(("127.0.0.1", door.port))) for _ in range(20)
        ]
        strangers[-1].sendall(TOKEN[:-1])
        for stranger in strangers:
            stranger.settimeout(DEADLINE_S)
        assert strangers[0].recv(1) == b""  # there are many: who came first has to go
        assert probe_link("127.0.0.1", door.port, TOKEN).round_trip_s > 0
        serving.join(DEADLINE_S)
        assert not serving.is_alive()
        for stranger in strangers[1:]:
            with contextlib.suppress(ConnectionResetError):
                assert stranger.recv(1) == b""


def test_a_guest_who_comes_while_no_descriptor_is_left_waits_at_the_door(monkeypatch):
    accept, refusals = socket.socket.accept, iter(range(2))

    def accept_later(listener):
        if next(refusals, None) is not None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return accept(listener)

    door = ProbeDoor("127.0.0.1", TOKEN, None)
    monkeypatch.setattr(socket.socket, "accept", accept_later)
    serving = threading.Thread(target=door.serve)
    serving.start()
    assert probe_link("127.0.0.1", door.port, TOKEN).round_trip_s > 0
    serving.join(DEADLINE_S)
    assert not serving.is_alive()


@pytest.fixture
def job(secret):
    with Session(secret, "driver") as home:
        yield home


def test_two_processes_at_one_address_on_different_machines_are_in_containers(job):
    events, watch = heard(job, TransportFellBack), job.service(LinkWatch)
    ends = [Endpoint(f"id{i}", machine, "", "") for i, machine in enumerate(("a", "b", "b"))]
    for rank, end in enumerate(ends):
        job.messenger.submit(lambda rank=rank, end=end: watch.note(0, "10.0.0.1", f"actor:{rank}", end))
    told = events.get(timeout=DEADLINE_S)
    assert told.process == "actor:1"
    assert "'actor:1' and 'actor:0' run at 10.0.0.1 and share neither files" in told.reason
    job.bus.flush()
    assert events.empty()


def test_a_process_without_shared_memory_tells_the_home_why(job, secret, monkeypatch):
    def refuse(*_):
        raise OSError("memfd_create: not permitted")

    job.service(LinkWatch)
    events = heard(job, TransportFellBack)
    monkeypatch.setattr("rlinf_scheduler.comm.shm.parcels.Arena", refuse)
    with Session(secret, "actor:0", home=job.messenger.endpoint) as session:
        answer_probes(session)
        told = events.get(timeout=DEADLINE_S)
    assert told.process == "actor:0"
    assert told.reason == (
        "'actor:0' does without shared memory: it cannot be made here (memfd_create: not permitted)"
    )


def test_a_link_that_cannot_be_had_is_told_of_and_not_tried_again(secret):
    with contextlib.ExitStack() as stack:
        home = stack.enter_context(Session(secret, "driver", machine_id="a", tcp=True))
        ends = [
            stack.enter_context(Session(secret, f"actor:{i}", home=home.home, machine_id=machine, tcp=True))
            for i, machine in enumerate("ab")
        ]
        answer_probes(ends[0])
        asked = []

        def answer_with_a_port_that_is_closed(request):
            with socket.create_server(("127.0.0.1", 0)) as server:
                asked.append(server.getsockname()[1])
            request.reply(asked[-1])

        ends[1].messenger.serve(LINK, answer_with_a_port_that_is_closed, LinkQuestion)
        events, watch = heard(home, LinkFailed), home.service(LinkWatch)
        for rank, end in enumerate(ends):
            own = end.messenger.endpoint
            home.messenger.submit(lambda rank=rank, own=own: watch.note(rank, f"10.0.0.{rank}", "", own))
        home.messenger.submit(watch.begin)
        told = events.get(timeout=DEADLINE_S)
        assert (told.node_rank, told.peer_rank) == (0, 1)
        assert told.reason.endswith(f"127.0.0.1:{asked[0]}: Connection refused")
        home.messenger.submit(watch.begin)
        assert home.directory.list("nobody") == []  # what was handed over before is done
        assert len(asked) == 1


@pytest.mark.parametrize("step", ["serve", "_probe"])
def test_a_link_is_probed_once_threads_can_be_had(secret, monkeypatch, step):
    with contextlib.ExitStack() as stack:
        home = stack.enter_context(Session(secret, "driver", machine_id="a", tcp=True))
        ends = [
            stack.enter_context(Session(secret, f"actor:{i}", home=home.home, machine_id=machine, tcp=True))
            for i, machine in enumerate("ab")
        ]
        watch = home.service(LinkWatch)
        for rank, end in enumerate(ends):
            answer_probes(end)
            own = end.messenger.endpoint
            home.messenger.submit(lambda rank=rank, own=own: watch.note(rank, f"10.0.0.{rank}", "", own))
        refused = refuse_thread(monkeypatch, step)
        home.messenger.submit(watch.begin)
        wait_until(lambda: (0, 1) in watch.speeds)
        assert refused.is_set()
