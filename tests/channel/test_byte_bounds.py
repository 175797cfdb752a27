"""A channel holds a bounded number of bytes, also where nobody said how many."""

from __future__ import annotations

import logging
import threading

import channel_roles as roles
import numpy as np
import pytest
import torch

from rlinf.testing.local import LocalRuntime
from rlinf_scheduler.channel import Channel, spec
from rlinf_scheduler.errors import ChannelArgumentError, ChannelFull, ChannelTimeout

DEADLINE_S = 60.0
LARGE = 1 << 20


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.zeros(LARGE, np.uint8),
        lambda: torch.zeros(LARGE // 4),
        lambda: {"a": np.zeros(LARGE // 2, np.uint8), "b": torch.zeros(LARGE // 8), "why": "text"},
        lambda: bytes(LARGE),
    ],
)
def test_a_bound_has_room_for_as_many_arrays_as_fit_by_their_own_bytes(backend, make):
    channel = backend.create(max_bytes=4 * LARGE)
    for _ in range(4):
        channel.put(make(), timeout_s=DEADLINE_S)
    assert channel.stats().size_bytes == 4 * LARGE
    with pytest.raises(ChannelFull):
        channel.put_nowait(make())


def test_what_is_said_of_small_arrays_counts_where_it_is_more_than_they_are(in_process):
    channel = in_process.create()
    channel.put({"text": "x" * 10_000, "a": np.zeros(2)})
    assert channel.stats().size_bytes > 10_000


@pytest.mark.usefixtures("patient")
def test_puts_wait_while_the_channel_holds_its_bytes(backend):
    channel = Channel.create(backend.name(), max_bytes=2 * LARGE)
    for name in ("a", "b"):
        channel.put(np.zeros(LARGE, np.uint8), queue_name=name)
    with pytest.raises(ChannelTimeout, match=f"of {2 * LARGE} bytes in all queues"):
        channel.put(np.zeros(LARGE, np.uint8), queue_name="c", timeout_s=0.05)
    with pytest.raises(ChannelFull):
        channel.put_nowait(np.zeros(LARGE, np.uint8), queue_name="a")
    handle = channel.put(np.zeros(LARGE, np.uint8), queue_name="c", async_op=True)
    assert len(channel.get("b", timeout_s=DEADLINE_S)) == LARGE
    handle.wait(DEADLINE_S)


def test_who_waits_gets_items_however_full_other_queues_are(backend):
    channel = Channel.create(backend.name(), max_bytes=LARGE)
    channel.put(np.zeros(LARGE, np.uint8), queue_name="nobody takes these")
    task = backend.run(roles.consume, channel, 5)
    for number in range(5):
        channel.put(number, timeout_s=DEADLINE_S)
    assert task.result(DEADLINE_S) == [0, 1, 2, 3, 4]


@pytest.mark.usefixtures("patient")
def test_by_default_a_share_of_the_memory_is_the_bound_and_it_says_so_once(in_process, monkeypatch, caplog):
    monkeypatch.setattr(spec, "memory_bytes", lambda: 4 * 3 * LARGE)
    channel = in_process.create()
    for _ in range(3):
        channel.put(np.zeros(LARGE, np.uint8))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            with pytest.raises(ChannelTimeout):
                channel.put(np.zeros(LARGE, np.uint8), timeout_s=0.02)
    (record,) = [record for record in caplog.records if "puts wait" in record.getMessage()]
    assert "holds 3 MiB" in record.getMessage()


def test_it_says_so_too_when_only_some_of_many_puts_find_room(monkeypatch, caplog):
    monkeypatch.setattr(spec, "memory_bytes", lambda: 4 * 5000)
    with LocalRuntime() as runtime, caplog.at_level(logging.WARNING):
        channel = Channel.create("items")
        channel.qsize()
        held = threading.Event()
        runtime.messenger.submit(lambda: held.wait(DEADLINE_S))  # so that all travel together
        puts = [channel.put(bytes(1000), async_op=True) for _ in range(8)]
        held.set()
        puts[0].wait(DEADLINE_S)
        assert channel.stats().num_putters > 0
        assert [record for record in caplog.records if "puts wait" in record.getMessage()]


def test_a_bound_of_zero_is_none(in_process, monkeypatch):
    monkeypatch.setattr(spec, "memory_bytes", lambda: 4 * LARGE)
    channel = Channel.create(in_process.name(), max_bytes=0)
    for _ in range(5):
        channel.put(np.zeros(LARGE, np.uint8), timeout_s=DEADLINE_S)
    assert channel.qsize() == 5


@pytest.mark.parametrize("max_bytes", [-1, 1.5, "1 GiB", True])
def test_a_bound_that_makes_no_sense_is_refused(in_process, max_bytes):
    hint = r"; 8 GiB are max_bytes=8 << 30$" if isinstance(max_bytes, str) else ""
    with pytest.raises(ChannelArgumentError, match=f"max_bytes is .*{hint}"):
        Channel.create(in_process.name(), max_bytes=max_bytes)
