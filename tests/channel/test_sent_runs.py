"""Operations that are alike travel as runs, in the order in which they were asked for."""

import threading
import time
from types import SimpleNamespace

import msgspec
import pytest

from rlinf.testing.local import LocalRuntime
from rlinf_scheduler.channel import Channel, wire
from rlinf_scheduler.channel.holding import SMALL_BYTES, InlinePayload
from rlinf_scheduler.channel.operation import ChannelOperation, ItemTerms
from rlinf_scheduler.channel.sender import RUN_OPERATIONS, OperationSender
from rlinf_scheduler.comm.codec import decode, encode

DEADLINE_S = 60.0
_decode = msgspec.msgpack.Decoder(wire.OperationMessage).decode


class Line:
    """Keeps what is said."""

    def __init__(self):
        self.operations = []
        self.frames = []

    def tell(self, message, frames):
        self.operations += [_decode(each) for each in message.operations]
        self.frames += frames


@pytest.fixture(scope="module")
def runtime():
    with LocalRuntime() as runtime:
        yield runtime


@pytest.fixture(scope="module")
def ref(runtime):
    return Channel.create("items", maxsize=1000)._ref


def _sent(runtime, ref, operations):
    """What goes to a channel's server for operations, each with its item or without."""
    line = Line()
    sender = OperationSender(line, ref, pytest.fail)
    for operation, item in operations:
        if operation.kind == "put":
            encoded = encode(item)
            operation.payload = InlinePayload(encoded.snapshot(), encoded.size_bytes)
            if encoded.size_bytes > SMALL_BYTES:
                operation.payload = runtime.messenger.payloads.pack(encoded, ref.endpoint, snapshot=True)
        sender.begin(operation)
    sender.send()
    return line


def _put(item=b"x", queue="a", **about):
    operation = ChannelOperation("put", queue, None, time.monotonic)
    operation.wait, operation.weight = about.pop("wait", True), about.pop("weight", 0)
    operation.item = ItemTerms(**about) if about else None
    return operation, item


def _get(queue="a", wait=True):
    return ChannelOperation("get", queue, None, time.monotonic, wait=wait), None


def _kinds(line):
    return [(type(each).__name__, len(wire.tickets_of(each))) for each in line.operations]


def test_puts_in_a_row_are_one_run_and_so_are_gets(runtime, ref):
    line = _sent(runtime, ref, [_put(b"1", weight=3), _put(b"2"), _get(), _get(), _put(b"3")])
    assert _kinds(line) == [("Puts", 2), ("Gets", 2), ("Puts", 1)]
    assert line.operations[0].weights == [3, 0]
    assert [decode(frame, []) for frame in line.frames] == [b"1", b"2", b"3"]


def test_each_queue_has_runs_of_its_own(runtime, ref):
    line = _sent(runtime, ref, [_put(), _put(queue="b"), _put(queue=1), _put(queue=True), _get(), _get("b")])
    assert _kinds(line) == [("Puts", 1)] * 4 + [("Gets", 1)] * 2


@pytest.mark.parametrize(
    "about",
    [
        {"priority": 1},
        {"group": "g"},
        {"version": 0},
        {"slot": SimpleNamespace(number=7)},
        {"question": 7},
        {"weight": 0.5},
        {"wait": False},
    ],
)
def test_what_is_special_travels_alone_between_the_others(runtime, ref, about):
    line = _sent(runtime, ref, [_put(), _put(**about), _put()])
    assert _kinds(line) == [("Puts", 1), ("Put", 1), ("Puts", 1)]


def test_a_get_that_does_not_wait_travels_alone(runtime, ref):
    assert _kinds(_sent(runtime, ref, [_get(), _get(wait=False)])) == [("Gets", 1), ("Get", 1)]


def test_items_of_other_sizes_do_not_join(runtime, ref):
    large = b"x" * (20 << 10)
    line = _sent(runtime, ref, [_put(), _put(b"x" * 2000), _put(large), _put(large)])
    assert [name for name, _ in _kinds(line)] == ["Puts", "Puts", "Put", "Put"]
    assert [each.num_frames for each in line.operations] == [1, 2, 2, 2]


def test_a_run_is_bounded(runtime, ref):
    line = _sent(runtime, ref, [_put() for _ in range(RUN_OPERATIONS + 1)])
    assert _kinds(line) == [("Puts", RUN_OPERATIONS), ("Puts", 1)]


def test_items_come_as_they_were_put_whatever_stands_between_them():
    items = [0, "text", {"a": 1}, b"x" * 2000, bytearray(b"y" * 3000), b"z" * (40 << 10), None, 1.5] * 8
    options = [{}, {"weight": 3}, {"weight": 0.5}, {"version": 2}]
    with LocalRuntime():
        channel = Channel.create("items", maxsize=10)
        gets = [channel.get(async_op=True) for _ in items[:20]]
        puts = [channel.put(item, async_op=True, **options[n % 4]) for n, item in enumerate(items)]
        gets += [channel.get(async_op=True) for _ in items[20:]]
        for put in puts:
            put.wait(DEADLINE_S)
        assert [get.wait(DEADLINE_S) for get in gets] == items


def test_what_is_put_by_who_hears_of_an_end_stands_behind_what_waited_for_credit():
    with LocalRuntime() as runtime:
        channel = Channel.create("items", maxsize=100)
        other = channel.get("nothing comes here", async_op=True)
        held, last = threading.Event(), []

        def put_one_more(_first):
            last.append(channel.put("last", async_op=True))
            other.cancel()  # on the I/O thread this does all that was handed over

        runtime.messenger.submit(lambda: held.wait(DEADLINE_S))
        puts = [channel.put(bytes([n]) * (60 << 10), async_op=True) for n in range(8)]  # credit is for four
        puts[0].settled.add_done_callback(put_one_more)
        held.set()
        for put in puts:
            put.wait(DEADLINE_S)
        last[0].wait(DEADLINE_S)
        assert [channel.get(timeout_s=DEADLINE_S)[:1] for _ in range(9)] == [bytes([n]) for n in range(8)] + [
            "l"
        ]
