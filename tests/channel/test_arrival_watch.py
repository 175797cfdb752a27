"""The watch over what is on its way when a queue has ended: it looks as long as there is something to see."""

from __future__ import annotations

import pytest

from rlinf_scheduler.channel import control_wire
from rlinf_scheduler.channel.clients import KnownClient
from rlinf_scheduler.comm.shm.payload import ReceivedPayload
from rlinf_scheduler.queueing.item import Item
from rlinf_scheduler.queueing.messages import Get, Put
from served import DrivenRuntime, served


class Request:
    """A request of a client; its answer goes nowhere."""

    def __init__(self, head):
        self.head = head
        self.peer_id = "p"

    def reply(self, _answer):
        pass


@pytest.fixture
def runtime():
    return DrivenRuntime()


@pytest.fixture
def server(runtime):
    server = served(runtime)
    for client in ("p", "stopped", "waits"):
        server.clients[client] = KnownClient(client, None, client)
    return server


def end(server):
    server.answer(Request(control_wire.EndQueue("queue")))


def put(server):
    server.carry_out(server.state.apply(Put(1, "queue"), "p", Item(ReceivedPayload([b"item"]))))


def test_it_sleeps_where_nothing_is_on_its_way(runtime, server):
    end(server)
    runtime.run_until(1000.0)
    assert not runtime.waiting


def test_what_is_delivered_after_the_end_is_looked_after(runtime, server):
    put(server)
    end(server)
    runtime.run_until(1000.0)
    server.carry_out(server.state.apply(Get(1, "queue"), "stopped"))
    server.carry_out(server.state.apply(Get(1, "queue"), "waits"))
    runtime.run_until(1020.0)
    assert server.state.queues.knows("waits", 1)
    runtime.run_until(1100.0)
    assert not server.state.queues.knows("waits", 1)
    assert not runtime.waiting


def test_before_an_end_nothing_is_looked_after(runtime, server):
    put(server)
    server.carry_out(server.state.apply(Get(1, "queue"), "stopped"))
    runtime.run_until(0.0)
    assert not runtime.waiting
