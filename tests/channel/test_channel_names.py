"""Names of channels, and the processes and threads that use them wrongly."""

from __future__ import annotations

import queue
import signal

import channel_roles
import numpy as np
import pytest

from rlinf.testing import LocalRuntime
from rlinf_scheduler.channel import Channel, ChannelSpec, host_channel
from rlinf_scheduler.errors import (
    ChannelArgumentError,
    ChannelClosed,
    ChannelError,
    ChannelExists,
    ChannelLost,
    ChannelNotFound,
    ClusterError,
)
from rlinf_scheduler.session import current_session

DEADLINE_S = 60.0


class Interrupted(Exception):
    pass


def test_a_name_that_another_process_holds_is_taken(sockets):
    _, channel = sockets.start_server()
    with pytest.raises(ChannelExists, match=channel.name):
        Channel.create(channel.name)


def test_a_channel_may_be_made_again_after_its_process_died(sockets):
    server, before = sockets.start_server()
    before.put("lost")
    server.kill()
    with pytest.raises(ChannelLost):
        before.get()
    after = Channel.create(before.name)
    after.put("new")
    task = sockets.run(channel_roles.connect_and_consume, before.name, 1)
    assert task.result(DEADLINE_S) == ["new"]
    with pytest.raises(ChannelLost):
        before.get()


def test_a_server_that_leaves_ends_every_wait(in_process):
    channel = in_process.create()
    channel.put("x")
    waits = channel.get("q", async_op=True)
    channel.qsize()
    current_session().stop_channel_server(channel.name)
    for operation in (waits.wait, channel.get, channel.stats):
        with pytest.raises(ChannelLost):
            operation()


def test_what_is_no_channel_is_not_connected_to(in_process):
    runtime = current_session()
    runtime.directory.register("worker:0", runtime.messenger.endpoint)
    with pytest.raises(ChannelNotFound, match="not a channel"):
        Channel.connect("worker")


def test_a_channel_that_nobody_created_is_told_with_those_there_are_and_the_nearest(in_process):
    with pytest.raises(ChannelNotFound, match=r"nobody created it; there is no channel"):
        Channel.connect("rolouts", timeout_s=0)
    Channel.create("rollouts")
    Channel.create("weights-ready")
    current_session().directory.register("rolout:0", current_session().messenger.endpoint)
    with pytest.raises(ChannelNotFound) as caught:
        Channel.connect("rolouts", timeout_s=0)
    assert str(caught.value) == (
        "channel 'rolouts': nobody created it; there are 'rollouts', 'weights-ready'; "
        "did you mean 'rollouts'?"
    )


def test_a_process_without_a_cluster_is_told_so(in_process):
    channel = in_process.create()
    channel.put("x")
    handle = channel.get("q", async_op=True)
    current_session().close()
    with pytest.raises(ChannelLost, match="left the cluster"):
        handle.wait(DEADLINE_S)
    for operation in (channel.get, lambda: Channel.create("a"), lambda: Channel.connect("a")):
        with pytest.raises(ClusterError, match="no cluster in this process"):
            operation()
    with LocalRuntime():
        Channel.create("a")


def test_a_blocking_call_on_the_io_thread_is_refused_instead_of_waiting_for_ever(in_process):
    channel = in_process.create()
    outcomes = queue.Queue()

    def call():
        for operation in (channel.get, channel.qsize, lambda: channel.put("x")):
            try:
                outcomes.put(operation())
            except ChannelError as error:
                outcomes.put(error)

    current_session().messenger.submit(call)
    for _ in range(3):
        assert "async_op=True" in str(outcomes.get(timeout=DEADLINE_S))


@pytest.mark.interrupted
def test_a_get_that_a_signal_interrupts_takes_nothing(in_process):
    channel = in_process.create()

    def interrupt(number, frame):
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(Interrupted):  # noqa: PT012 - the signal may come at once
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            channel.get(timeout_s=DEADLINE_S)
    finally:
        signal.signal(signal.SIGALRM, before)
    channel.put("x")
    assert channel.get(timeout_s=DEADLINE_S) == "x"


@pytest.mark.parametrize("name", ["a:b", "", "\udcff", 3])
def test_a_name_that_no_address_can_hold_is_refused(in_process, name):
    for make in (Channel.create, Channel.connect):
        with pytest.raises(ChannelArgumentError, match="a channel's name is"):
            make(name)


def test_a_deleted_channel_ends_its_waits_and_frees_its_name(sockets):
    before = sockets.create(maxsize=1)
    before.put("dropped")
    waiting_put = before.put("waits", async_op=True)
    waiting_get = before.get("q", async_op=True)
    before.delete(timeout_s=DEADLINE_S)
    for handle in (waiting_put, waiting_get):
        with pytest.raises((ChannelClosed, ChannelLost)):
            handle.wait(DEADLINE_S)
    with pytest.raises(ChannelLost):
        before.put("too late")
    after = Channel.create(before.name)
    assert after.qsize() == 0
    after.put("new")
    assert after.get(timeout_s=DEADLINE_S) == "new"


def test_every_operation_on_a_deleted_channel_says_that_it_was_deleted(in_process):
    channel = in_process.create()
    other = Channel.connect(channel.name)
    waits = other.get(async_op=True)
    other.qsize()
    channel.delete()
    with pytest.raises(ChannelClosed):
        waits.wait(DEADLINE_S)
    for operation in (channel.qsize, channel.get, channel.stats, channel.close, channel.delete, other.qsize):
        with pytest.raises(ChannelLost, match="the channel was deleted"):
            operation()
    with pytest.raises(ChannelLost, match="the channel was deleted"):
        channel.put("x")


@pytest.mark.parametrize("name", [np.int64(3), ("step", np.int32(3))])
def test_a_queue_name_of_numpy_is_refused_with_what_to_write(in_process, name):
    with pytest.raises(ChannelArgumentError, match=r"a Python int of 64 bits.*; use int\(\.\.\.\)"):
        in_process.create().put("x", queue_name=name)


@pytest.mark.parametrize("name", [True, 2**63, 1.5, None])
def test_a_queue_name_that_is_no_whole_number_is_refused(in_process, name):
    with pytest.raises(ChannelArgumentError, match="a Python int of 64 bits") as caught:
        in_process.create().put("x", queue_name=name)
    assert "use int" not in str(caught.value)


def test_the_process_of_a_deleted_channel_is_told_once_that_it_may_end(in_process):
    runtime = current_session()
    stopped = []
    spec = ChannelSpec("short-lived")
    server = host_channel(runtime, spec, on_stopped=lambda: stopped.append(1))
    channel = Channel.connect("short-lived")
    with pytest.raises(ChannelExists):
        host_channel(runtime, ChannelSpec("short-lived"), on_stopped=stopped.append)
    assert stopped == []
    channel.delete()
    server.stop()
    runtime.directory.list()  # answered after the server has stopped
    assert stopped == [1]
