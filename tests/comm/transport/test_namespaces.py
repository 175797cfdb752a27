"""Two machines with addresses of their own: this process is on one of them, its children are on the other."""

import contextlib
import os
import re
import signal
import socket
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from machine_fixtures import received
from machine_peers import join
from rlinf_scheduler.channel import Channel, ChannelSpec
from rlinf_scheduler.comm import Messenger
from rlinf_scheduler.comm.transport.peer_session import GRACE_S
from rlinf_scheduler.errors import CommTimeout, PeerDied
from rlinf_scheduler.mailbox import Mailbox
from waits import wait_until

DEADLINE_S = 60.0


@pytest.fixture
def here(machines, secret):
    """Makes messengers on this machine."""
    with contextlib.ExitStack() as stack:

        def make(name, **options):
            messenger = Messenger(secret, name=name, host=machines.left.address, tcp=True, **options)
            stack.callback(messenger.close)
            return messenger

        yield make


@pytest.fixture
def runtime(machines, secret):
    """A runtime on this machine that keeps the directory."""
    with join(secret, machines.left.address, "driver") as session:
        yield session


@pytest.fixture
def start_there(machines, start_on):
    """Starts a function of `machine_peers`, on the other machine; gives its process, its pipe and what it sent."""

    def start(function, *args, on=machines.right):
        process, pipe = start_on(on, function, *args)
        return process, pipe, received(pipe)

    return start


def when_lost(messenger):
    """An event that is set when `messenger` loses a peer."""
    lost = threading.Event()
    messenger.on_peer_lost(lambda _process_id: lost.set())
    return lost


def test_processes_of_two_machines_take_tcp_by_themselves(here, start_there):
    client = here("client:0")
    _, _, server = start_there("serve")
    assert client.request(server, "echo", "hello").result(DEADLINE_S).head == "hello"
    assert client.endpoint.machine_id != server.machine_id
    assert client.transports()[server.process_id] == "tcp+tls"
    assert server.tcp_address.startswith("tcp://192.0.2.2:")


def test_requests_and_notices_go_in_both_directions(here, start_there):
    client = here("client:0")
    heard = []
    client.serve("note", lambda request: heard.append(bytes(request.frames[0])))
    client.serve("who", lambda request: request.reply("client, after " + str(len(heard))))
    _, pipe, server = start_there("serve")
    for number in range(50):
        client.notify(server, "note", number, [bytes(number * 1000)])
    noted = client.request(server, "noted", None).result(DEADLINE_S).head
    assert noted == [[number, number * 1000] for number in range(50)]
    pipe.send(client.endpoint)
    assert received(pipe) == "client, after 1"
    assert heard == [b"from over there"]


def test_send_and_recv_find_each_other_by_name(runtime, start_there):
    mailbox = Mailbox(runtime.messenger, runtime.directory, "env:0")
    runtime.directory.register("env:0", runtime.messenger.endpoint)
    items = ["text", np.arange(1 << 20), {"nested": [1, None, np.zeros((0, 3))]}]
    start_there("trade", runtime.messenger.endpoint, len(items))
    for item in items:
        mailbox.send(item, "rollout:0", timeout_s=DEADLINE_S).wait()
    for item in items:
        np.testing.assert_equal(mailbox.recv("rollout:0", timeout_s=DEADLINE_S).wait(), item)


@pytest.mark.parametrize("server_side", ["here", "there"])
def test_a_channel_serves_clients_of_both_machines(runtime, machines, start_there, server_side):
    items = [np.full(size, size, np.int32) for size in (0, 10, 10_000, 1_000_000)]
    if server_side == "there":
        start_there("hold_channel", runtime.messenger.endpoint, ChannelSpec("items", 2))
        channel = Channel.connect("items", timeout_s=DEADLINE_S)
    else:
        channel = Channel.create("items", maxsize=2)
    _, pipe, _ = start_on_first_item(channel, start_there, runtime, items)
    np.testing.assert_equal(received(pipe), items)
    neighbour = start_there("use_channel", runtime.messenger.endpoint, [1, 2], on=machines.left)
    for _ in range(2):
        channel.put(channel.get(timeout_s=DEADLINE_S), queue_name="back", timeout_s=DEADLINE_S)
    assert received(neighbour[1]) == [1, 2]


def start_on_first_item(channel, start_there, runtime, items):
    """Start a user of the channel, and hand back to it whatever it puts."""

    def hand_back():
        for _ in items:
            channel.put(channel.get(timeout_s=DEADLINE_S), queue_name="back", timeout_s=DEADLINE_S)

    thread = threading.Thread(target=hand_back)
    thread.start()
    started = start_there("use_channel", runtime.messenger.endpoint, items)
    thread.join(DEADLINE_S)
    return started


def test_a_killed_peer_is_noticed_at_once(here, start_there):
    client = here("client:0")
    process, _, server = start_there("serve")
    pending = client.request(server, "never", None)
    client.request(server, "echo", None).result(DEADLINE_S)
    process.kill()
    killed = time.monotonic()
    assert isinstance(pending.exception(DEADLINE_S), PeerDied)
    assert time.monotonic() - killed < GRACE_S / 2


def test_an_item_for_a_getter_that_was_killed_on_the_other_machine_goes_to_the_next(runtime, start_there):
    channel = Channel.create("items")
    lost = when_lost(runtime.messenger)
    process, _, _ = start_there("take_and_wait", runtime.messenger.endpoint)
    process.kill()
    assert lost.wait(DEADLINE_S)
    channel.put("an item")
    assert channel.get(timeout_s=DEADLINE_S) == "an item"


def test_a_cable_that_comes_back_soon_costs_time_and_nothing_else(here, start_there, machines):
    client = here("client:0")
    _, _, server = start_there("serve")
    client.request(server, "echo", None).result(DEADLINE_S)
    for number in range(200):
        client.notify(server, "note", number, [bytes(200_000)])
        if number == 100:
            machines.unplug()
    unfinished = client.request(server, "echo", "still there")
    assert not unfinished.done()
    machines.plug_in()
    assert unfinished.result(DEADLINE_S).head == "still there"
    noted = client.request(server, "noted", None).result(DEADLINE_S).head
    assert noted == [[number, 200_000] for number in range(200)]


def test_a_long_silence_is_seen_and_what_was_sent_meanwhile_arrives(here, start_there, machines):
    client = here("client:0")
    _, _, server = start_there("serve")
    client.request(server, "echo", None).result(DEADLINE_S)
    machines.unplug()
    with pytest.raises(CommTimeout, match=r"its answer; it is unreachable for \d+\.\d s: "):
        client.request(server, "echo", "lost", timeout_s=6.0).result(DEADLINE_S)
    for number in range(200):
        client.notify(server, "note", number, [bytes(200_000)])
    machines.plug_in()
    noted = client.request(server, "noted", None).result(DEADLINE_S).head
    assert noted == [[number, 200_000] for number in range(200)]
    wait_until(lambda: client.condition(server.process_id) == "")
    assert client.request(server, "lost", None).result(DEADLINE_S).head == []


def test_a_cable_that_stays_out_ends_the_waits_of_both_sides(here, start_there, machines):
    client = here("client:0", unreachable_after_s=6.0)
    _, _, server = start_there("serve", 6.0)
    pending = client.request(server, "never", None)
    client.request(server, "echo", None).result(DEADLINE_S)
    machines.unplug()
    pulled = time.monotonic()
    error = pending.exception(DEADLINE_S)
    assert isinstance(error, PeerDied)
    assert 5.0 < time.monotonic() - pulled < GRACE_S
    assert re.search(r"'server:0' .*unreachable for \d+\.\d s", str(error))
    assert isinstance(client.request(server, "echo", None).exception(DEADLINE_S), PeerDied)
    machines.plug_in()
    # The same processes may talk again; each has heard that the other was gone.
    assert client.request(server, "echo", "again").result(DEADLINE_S).head == "again"
    assert client.request(server, "lost", None).result(DEADLINE_S).head == [client.endpoint.process_id]


def test_it_listens_on_the_address_it_was_given_and_on_no_other(here, start_there, machines):
    client = here("client:0")
    port = int(client.endpoint.tcp_address.rpartition(":")[2])
    assert client.endpoint.tcp_address == f"tcp://192.0.2.1:{port}"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), DEADLINE_S)
    socket.create_connection(("192.0.2.1", port), DEADLINE_S).close()


def is_stopped(pid):
    states = (
        each.read_text().rpartition(")")[2].split()[0] for each in Path(f"/proc/{pid}/task").glob("*/stat")
    )
    return set(states) == {"T"}


@pytest.fixture
def doubted(star, secret, start_on):
    """A messenger, the process that serves it on another machine, and how that is reached; it is doubted."""
    process, pipe = start_on(star.machines[1], "serve")
    server = received(pipe)
    with contextlib.closing(
        Messenger(secret, name="client:0", host=star.machines[0].address, tcp=True)
    ) as client:
        client.request(server, "echo", None).result(DEADLINE_S)

        def doubt():
            client.submit(lambda: client.peers.doubt(server.process_id, 4.0))
            wait_until(lambda: client.condition(server.process_id) != "")

        yield client, process, server, doubt


def test_a_link_that_carries_in_one_direction_only_is_cut_though_something_comes_over_it(doubted, star):
    client, _, server, doubt = doubted
    star.mute(star.machines[0], star.machines[1])
    doubt()
    wait_until(lambda: client.peers.cut_off(server.process_id, for_s=5.5))  # the kernel was asked meanwhile
    waiting = client.request(server, "echo", "through")
    star.unmute(star.machines[0], star.machines[1])
    assert waiting.result(DEADLINE_S).head == "through"
    assert client.peers.cut_off(server.process_id) == ""


def test_who_is_stopped_is_reached_and_goes_on(doubted):
    client, process, server, doubt = doubted
    os.kill(process.pid, signal.SIGSTOP)
    wait_until(lambda: is_stopped(process.pid))  # what it says until then ends a doubt
    doubt()
    wait_until(lambda: client.condition(server.process_id).startswith("stuck for"))
    assert client.peers.cut_off(server.process_id) == ""
    os.kill(process.pid, signal.SIGCONT)
    assert client.request(server, "echo", "on").result(DEADLINE_S).head == "on"
