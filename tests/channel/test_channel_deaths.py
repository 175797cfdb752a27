"""Processes that die at the worst moment: nothing that a queue held is lost, and nobody waits for the dead."""

from __future__ import annotations

import signal
import time

import channel_roles
import numpy as np
import pytest

from rlinf.testing.local import HeldHere
from rlinf_scheduler.channel import (
    Channel,
    ChannelRef,
    ChannelSpec,
    StartChannel,
    control_wire,
)
from rlinf_scheduler.channel.features import ends
from rlinf_scheduler.errors import ChannelLost, ChannelUnanswered
from rlinf_scheduler.queueing.stats import ChannelStats

DEADLINE_S = 60.0


def test_a_consumer_killed_while_it_waits_takes_nothing(sockets):
    channel, ready = sockets.create(), sockets.create()
    task = sockets.run(channel_roles.wait_for_an_item_and_never_return, channel, ready)
    assert ready.get(timeout_s=DEADLINE_S) == "waiting"
    mine = channel.get(async_op=True)
    task.kill()
    channel.put("x")
    assert mine.wait(DEADLINE_S) == "x"


def test_an_item_on_its_way_to_a_killed_consumer_comes_back(sockets):
    channel, ready = sockets.create(), sockets.create()
    task = sockets.run(channel_roles.wait_for_an_item_and_never_return, channel, ready)
    assert ready.get(timeout_s=DEADLINE_S) == "waiting"
    task.stop()
    channel.put("sent to a process that does not run")
    channel.put("second")
    assert channel.qsize() == 1
    mine = [channel.get(async_op=True), channel.get(async_op=True)]
    assert mine[0].wait(DEADLINE_S) == "second"
    task.kill()
    assert mine[1].wait(DEADLINE_S) == "sent to a process that does not run"


def test_items_that_arrived_and_were_not_taken_come_back_to_the_head_in_order(sockets):
    channel, ready = sockets.create(), sockets.create()
    for number in range(6):
        channel.put(number, weight=1)
    task = sockets.run(channel_roles.receive_items_and_take_none, channel, ready, 4)
    assert ready.get(timeout_s=DEADLINE_S) == "arrived"
    assert channel.qsize() == 2
    # Four that come back and two that never left make the batch complete.
    task.kill()
    assert channel.get_batch(6, timeout_s=DEADLINE_S) == list(range(6))


def test_a_closed_channel_waits_for_items_on_their_way(sockets):
    channel, ready = sockets.create(), sockets.create()
    task = sockets.run(channel_roles.wait_for_an_item_and_never_return, channel, ready)
    assert ready.get(timeout_s=DEADLINE_S) == "waiting"
    task.stop()
    channel.put("last")
    channel.close()
    mine = channel.get(async_op=True)
    assert channel.stats().num_getters == 1
    task.kill()
    assert mine.wait(DEADLINE_S) == "last"
    assert list(channel) == []


def test_a_closed_channel_waits_for_a_consumer_that_is_stopped_for_a_while_only(sockets, monkeypatch):
    monkeypatch.setattr(ends, "ARRIVAL_S", 0.3)
    spec = ChannelSpec(sockets.name())
    held_here = Channel(ChannelRef(spec, HeldHere(sockets.runtime).start(StartChannel(spec))))
    ready = sockets.create()
    task = sockets.run(channel_roles.wait_for_an_item_and_never_return, held_here, ready)
    assert ready.get(timeout_s=DEADLINE_S) == "waiting"
    task.stop()
    held_here.put("last")
    held_here.close()
    assert list(held_here) == []
    task.kill()
    # Whoever looks again finds it: nobody has taken it.
    deadline = time.monotonic() + DEADLINE_S
    while (found := held_here.drain()) == []:
        assert time.monotonic() < deadline
    assert found == ["last"]


def test_what_a_consumer_took_does_not_come_back_when_it_leaves(sockets):
    channel = sockets.create()
    channel.put("a")
    channel.put("b")
    assert sockets.run(channel_roles.take_one_and_leave, channel).result(DEADLINE_S) == "a"
    assert channel.get(timeout_s=DEADLINE_S) == "b"
    assert channel.stats().num_gets == 2


def test_a_killed_producer_leaves_a_prefix_and_holds_up_nobody(sockets):
    channel, ready = sockets.create(maxsize=3), sockets.create()
    items = [0, np.full(1 << 20, 1, np.uint8), 2, 3, np.full(1 << 20, 4, np.uint8), 5]
    task = sockets.run(channel_roles.put_until_it_waits, channel, ready, items)
    assert ready.get(timeout_s=DEADLINE_S) == "putting"
    task.kill()
    mine = channel.put("mine", async_op=True, timeout_s=DEADLINE_S)
    got = []
    while "mine" not in got:
        item = channel.get(timeout_s=DEADLINE_S)
        got.append(int(item[0]) if isinstance(item, np.ndarray) else item)
    assert got[:-1] == list(range(len(got) - 1))
    mine.wait(DEADLINE_S)


def test_a_stopped_producer_with_a_granted_item_holds_up_nobody(sockets):
    channel, ready = sockets.create(maxsize=2), sockets.create()
    channel.put("fills")
    channel.put("up")
    large = [np.zeros(1 << 20, np.uint8)]
    task = sockets.run(channel_roles.put_until_it_waits, channel, ready, large)
    assert ready.get(timeout_s=DEADLINE_S) == "putting"
    task.stop()
    assert channel_roles.consume(channel, 2) == ["fills", "up"]
    channel.put("passes", timeout_s=DEADLINE_S)
    assert channel.get(timeout_s=DEADLINE_S) == "passes"
    assert channel.stats().num_putters == 1
    task.kill()
    channel.put("one", timeout_s=DEADLINE_S)
    channel.put("two", timeout_s=DEADLINE_S)


def test_the_death_of_the_channel_ends_every_wait_at_once(sockets):
    server, channel = sockets.start_server()
    channel.put("lost with its server")
    waits = [channel.get("q", async_op=True), channel.get_batch(3, "q", async_op=True, timeout_s=DEADLINE_S)]
    channel.qsize()
    server.kill()
    for handle in waits:
        with pytest.raises(ChannelLost, match=channel.name):
            handle.wait(DEADLINE_S)
    for operation in (channel.get, channel.qsize, channel.close, lambda: channel.put("x")):
        with pytest.raises(ChannelLost):
            operation()
    with pytest.raises(ChannelLost):
        Channel.connect(channel.name, timeout_s=DEADLINE_S)


def test_a_server_that_does_not_answer_is_named_at_the_deadline(sockets):
    server, channel = sockets.start_server()
    channel.put("x")
    server.stop()
    handle = channel.get("q", async_op=True, timeout_s=0.05)
    with pytest.raises(TimeoutError, match="does not answer"):
        channel.get("q", timeout_s=0.05)
    with pytest.raises(TimeoutError, match="does not answer"):
        handle.wait(DEADLINE_S)
    server.signal(signal.SIGCONT)
    assert channel.get(timeout_s=DEADLINE_S) == "x"
    assert channel.stats().num_getters == 0


def test_a_query_whose_server_does_not_answer_names_the_queue_and_leaves_nothing_in_doubt(sockets):
    server, channel = sockets.start_server()
    assert channel.qsize() == 0
    server.stop()
    connection = channel._connection()
    with pytest.raises(ChannelUnanswered, match=r"queue \('q', 1\): query .*does not answer\)$"):
        connection.requests.ask(control_wire.Query(("q", 1)), control_wire.QueueState, timeout_s=0.05)
    with pytest.raises(ChannelUnanswered, match=rf"channel '{channel.name}': stats .*does not answer\)$"):
        connection.requests.ask(control_wire.Stats(), ChannelStats, timeout_s=0.05)
    with pytest.raises(ChannelUnanswered, match=r"close .*; whether it was done is not known"):
        connection.requests.ask(control_wire.Close(), timeout_s=0.05)
    server.signal(signal.SIGCONT)


def test_a_put_whose_server_does_not_answer_says_that_its_outcome_is_unknown(sockets):
    server, channel = sockets.start_server()
    assert channel.qsize() == 0
    server.stop()
    with pytest.raises(ChannelUnanswered, match=r"does not answer.*; whether it was done is not known"):
        channel.put("x", timeout_s=0.05)
    with pytest.raises(ChannelUnanswered) as caught:
        channel.get("q", timeout_s=0.05)
    assert "not known" not in str(caught.value)
    late = channel.put("y", async_op=True, timeout_s=0.05)
    with pytest.raises(ChannelUnanswered):
        late.wait()
    channel._connection().requests.finish_puts("end", DEADLINE_S)  # they are over
    server.signal(signal.SIGCONT)
    assert channel.get(timeout_s=DEADLINE_S) == "x"
