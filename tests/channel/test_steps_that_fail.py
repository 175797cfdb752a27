"""A step that was handed over to the I/O thread, and fails there, ends the wait of whoever handed it over."""

import os

import pytest

from rlinf.testing.local import LocalRuntime
from rlinf_scheduler.channel import Channel
from rlinf_scheduler.channel.client import ChannelClient
from rlinf_scheduler.channel.operation import ChannelOperation
from rlinf_scheduler.channel.sender import DirectTransport, OperationSender
from rlinf_scheduler.errors import ChannelArgumentError, ChannelError, ChannelLost, CheckpointError

# Who is not told waits longer.
DEADLINE_S = 60.0
NOT_UTF_8 = os.fsdecode(b"\xff\xfe")


@pytest.fixture
def runtime():
    with LocalRuntime() as runtime:
        yield runtime


@pytest.fixture
def channel(runtime):
    channel = Channel.create("items")
    channel.put("an item", timeout_s=DEADLINE_S)
    return channel


def works(channel):
    """Whether it does what it did before."""
    return channel.get(timeout_s=DEADLINE_S) == "an item"


def fails(*_args, **_options):
    raise MemoryError


@pytest.mark.parametrize(
    ("error", "do"),
    [
        (CheckpointError, lambda runtime, channel, path: channel.save(path)),
        (CheckpointError, lambda runtime, channel, path: runtime.save(path, channels=[channel])),
        (CheckpointError, lambda runtime, channel, path: Channel.create("other", restore=path)),
        (ChannelArgumentError, lambda runtime, channel, path: Channel.create("other", durable=path)),
    ],
)
def test_a_path_that_is_no_text_is_refused_at_once(error, do, runtime, channel, tmp_path):
    with pytest.raises(error, match=r"\\udcff\\udcfe' is not UTF-8") as caught:
        do(runtime, channel, tmp_path / NOT_UTF_8)
    str(caught.value).encode()
    assert works(channel)


def test_a_path_of_bytes_is_a_path(channel, tmp_path):
    channel.save(os.fsencode(tmp_path / "saved"))
    channel.delete()
    assert works(Channel.create("items", restore=tmp_path / "saved"))


@pytest.mark.parametrize(
    "ask", [Channel.qsize, Channel.stats, Channel.explain, Channel.close, Channel.end, Channel.delete]
)
def test_a_question_that_cannot_be_sent_fails_at_once(ask, channel, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(DirectTransport, "ask", fails)
        with pytest.raises(MemoryError):
            ask(channel)
    assert works(channel)


@pytest.mark.parametrize(
    ("owner", "name"), [(OperationSender, "begin"), (DirectTransport, "tell"), (ChannelClient, "begin")]
)
@pytest.mark.parametrize(
    "do",
    [
        lambda channel: channel.put({"another"}),
        lambda channel: channel.put("another", priority=1, async_op=True).wait(),
        lambda channel: channel.get_batch(1),
        lambda channel: channel.get_batch(1, async_op=True).wait(),
        lambda channel: channel.lease(timeout_s=None).__enter__(),
    ],
)
def test_an_operation_that_cannot_be_sent_fails_at_once(owner, name, do, channel, monkeypatch):
    real, calls = getattr(owner, name), []

    def fails_once(*args, **options):
        calls.append(args)
        if len(calls) == 1:
            raise MemoryError
        return real(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fails_once)
        with pytest.raises(ChannelError, match="MemoryError"):
            do(channel)
    assert works(channel)


@pytest.mark.parametrize(
    "settle", [lambda lease: lease.ack(), lambda lease: lease.nack(), lambda lease: lease.extend(1)]
)
def test_a_lease_that_cannot_be_settled_says_so_at_once(settle, channel, monkeypatch):
    with channel.lease(timeout_s=DEADLINE_S) as lease, monkeypatch.context() as patch:
        patch.setattr(DirectTransport, "ask", fails)
        with pytest.raises(MemoryError):
            settle(lease)


def test_a_connection_that_is_lost_before_it_was_used_takes_nothing_from_the_next_one(runtime):
    channel = Channel.create("items")
    lost = channel._connection()
    lost.lose("its server is not in reach")
    channel.put("an item", timeout_s=DEADLINE_S)
    asked = lost.start(ChannelOperation("get", "default", None, lost.now))
    with pytest.raises(ChannelLost, match="not in reach"):
        asked.result(DEADLINE_S)
    assert works(channel)
