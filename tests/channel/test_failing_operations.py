"""An operation that the channel's process cannot carry out ends with an error, and disturbs no other."""

import threading
from itertools import count

import pytest

from rlinf.testing.local import LocalRuntime
from rlinf_scheduler.channel import Channel, control_wire, receiving, wire
from rlinf_scheduler.channel.clients import ShortcutEnd, Users
from rlinf_scheduler.channel.features import operations
from rlinf_scheduler.channel.outbox import ResponseOutbox
from rlinf_scheduler.channel.shortcut import MIN_OPERATIONS
from rlinf_scheduler.comm import Messenger
from rlinf_scheduler.comm.codec import encode
from rlinf_scheduler.comm.gathering import Gathered
from rlinf_scheduler.comm.operation import Deliveries
from rlinf_scheduler.comm.shm.payload import ReceivedPayload
from rlinf_scheduler.errors import ChannelError, ChannelTimeout, CommError
from rlinf_scheduler.queueing.queue import Queue
from waits import wait_until

DEADLINE_S = 60.0


def fails_at_third():
    """`ReceivedPayload`, but there is no memory for the third one."""
    numbers = count(1)

    def arrived(frames):
        if next(numbers) == 3:
            raise MemoryError
        return ReceivedPayload(frames)

    return arrived


def test_a_put_that_its_server_has_no_memory_for_does_not_take_those_in_the_same_message_with_it(monkeypatch):
    with LocalRuntime() as runtime:
        channel = Channel.create("items")
        channel.qsize()
        monkeypatch.setattr(operations, "ReceivedPayload", fails_at_third())
        puts = begin_together(
            runtime, lambda: [channel.put(n, async_op=True, timeout_s=DEADLINE_S) for n in range(8)]
        )
        with pytest.raises(ChannelError, match="MemoryError"):
            puts.pop(2).wait()
        for put in puts:
            put.wait()
        assert [channel.get_nowait() for _ in puts] == [0, 1, 3, 4, 5, 6, 7]


def fails_once(monkeypatch, owner, name, at):
    """Let a method fail when it is called for the `at`-th time."""
    method, numbers = getattr(owner, name), count(1)

    def call(*args, **options):
        if next(numbers) == at:
            raise MemoryError
        return method(*args, **options)

    monkeypatch.setattr(owner, name, call)


def begin_together(runtime, begin):
    """What `begin` begins; all of it travels in one message."""
    held = threading.Event()
    runtime.messenger.submit(lambda: held.wait(DEADLINE_S))
    try:
        return begin()
    finally:
        held.set()


def test_a_put_that_cannot_stand_in_line_does_not_take_those_beside_it_with_it(monkeypatch):
    with LocalRuntime() as runtime:
        channel = Channel.create("items", maxsize=1)
        channel.qsize()
        fails_once(monkeypatch, Queue, "load_put", at=3)
        puts = begin_together(
            runtime, lambda: [channel.put(n, async_op=True, timeout_s=DEADLINE_S) for n in range(6)]
        )
        with pytest.raises(ChannelError, match="MemoryError"):
            puts.pop(3).wait()
        assert [channel.get(timeout_s=DEADLINE_S) for _ in puts] == [0, 1, 2, 4, 5]
        for put in puts:
            put.wait()


def test_a_get_that_cannot_be_told_of_its_item_gives_it_back_and_leaves_the_others_alone(monkeypatch):
    with LocalRuntime() as runtime:
        channel = Channel.create("items")
        for number in range(8):
            channel.put(number)
        fails_once(monkeypatch, ResponseOutbox, "deliver", at=3)
        gets = begin_together(
            runtime, lambda: [channel.get(async_op=True, timeout_s=DEADLINE_S) for _ in range(8)]
        )
        with pytest.raises(ChannelError, match="MemoryError"):
            gets.pop(2).wait()
        assert [get.wait() for get in gets] == [0, 1, 3, 4, 5, 6, 7]
        assert channel.get(timeout_s=DEADLINE_S) == 2


def test_a_batch_of_which_an_item_cannot_be_read_leaves_nothing_to_the_next_get(monkeypatch):
    with LocalRuntime() as runtime:
        channel = Channel.create("items")
        for number in range(4):
            channel.put(number, weight=1)
        fails_once(monkeypatch, ReceivedPayload, "frames", at=2)
        batch, get = begin_together(
            runtime,
            lambda: (
                channel.get_batch(batch_weight=2, async_op=True, timeout_s=DEADLINE_S),
                channel.get(async_op=True, timeout_s=DEADLINE_S),
            ),
        )
        with pytest.raises(ChannelError, match="MemoryError"):
            batch.wait()
        assert get.wait() == 2
        assert [channel.get(timeout_s=DEADLINE_S) for _ in range(3)] == [0, 1, 3]


def test_a_get_by_a_shortcut_that_cannot_be_told_of_its_item_gives_it_back(monkeypatch):
    with LocalRuntime():
        channel = Channel.create("items")
        for number in range(2 * MIN_OPERATIONS):  # the last ones by a shortcut
            channel.put(number, timeout_s=DEADLINE_S)
            assert channel.get(timeout_s=DEADLINE_S) == number
        channel.put("an item", timeout_s=DEADLINE_S)
        fails_once(monkeypatch, ShortcutEnd, "deliver", at=1)
        with pytest.raises(ChannelError, match="MemoryError"):
            channel.get(timeout_s=DEADLINE_S)
        assert channel.get(timeout_s=DEADLINE_S) == "an item"


def test_a_run_of_which_bytes_are_missing_says_which_were_not_put():
    with LocalRuntime() as runtime:
        channel = Channel.create("items")
        said, heard = [], threading.Event()
        stranger = Messenger(runtime.address.secret, name="stranger")
        ref = channel._ref

        def hear(request):
            said.append(request.head)
            heard.set()

        stranger.serve(wire.service(ref.spec.channel_id, wire.RESPONSES), hear, wire.Responses)
        to = runtime.messenger.endpoint
        opened = stranger.request(
            to, wire.service(ref.spec.channel_id, wire.CONTROL), control_wire.Open(stranger.endpoint)
        )
        opened.result(DEADLINE_S)
        run = wire.Puts("default", 1, [1, 2, 3], [0, 0, 0])
        service = wire.service(ref.spec.channel_id, wire.OPERATIONS)
        stranger.notify(to, service, wire.Operations([], [], [run]), encode("first").frames())
        assert heard.wait(DEADLINE_S)
        stranger.close()
        (responses,) = said
        assert responses.accepted == [1]
        assert [(each.ticket, each.reason) for each in responses.others] == [
            (2, wire.INVALID),
            (3, wire.INVALID),
        ]
        assert channel.get_nowait() == "first"


def test_operations_whose_users_cannot_be_counted_are_carried_out(monkeypatch):
    def fails(users, client, operations, now):
        raise MemoryError

    with LocalRuntime():
        channel = Channel.create("items")
        channel.qsize()
        monkeypatch.setattr(Users, "note", fails)
        for number in range(2 * MIN_OPERATIONS):  # the last ones by a shortcut
            channel.put(number, timeout_s=DEADLINE_S)
            assert channel.get(timeout_s=DEADLINE_S) == number


def test_a_delivery_that_there_is_no_memory_for_goes_back_and_leaves_the_others_alone(monkeypatch):
    with LocalRuntime() as runtime:
        channel = Channel.create("items")
        for number in range(8):
            channel.put(number)
        monkeypatch.setattr(receiving, "ReceivedPayload", fails_at_third())
        gets = begin_together(
            runtime, lambda: [channel.get(async_op=True, timeout_s=DEADLINE_S) for _ in range(8)]
        )
        with pytest.raises(ChannelError, match="MemoryError"):
            gets.pop(2).wait()
        assert [get.wait() for get in gets] == [0, 1, 3, 4, 5, 6, 7]
        assert channel.get_nowait() == 2


def test_an_item_that_its_caller_has_is_not_given_to_another_whatever_goes_wrong_then(monkeypatch):
    tell, num_told = Deliveries.tell, []

    def fails_once(deliveries, operation):
        num_told.append(operation)
        if len(num_told) == 1:
            raise MemoryError
        tell(deliveries, operation)

    with LocalRuntime():
        channel = Channel.create("items")
        channel.put(0)
        monkeypatch.setattr(Deliveries, "tell", fails_once)
        assert channel.get(async_op=True, timeout_s=DEADLINE_S).wait() == 0
        channel.put(1)
        assert channel.get(timeout_s=DEADLINE_S) == 1
        assert num_told


def test_a_client_that_says_that_it_is_another_process_is_refused(caplog):
    with LocalRuntime() as runtime:
        channel = Channel.create("items")
        stranger = Messenger(runtime.address.secret, name="stranger")
        service = wire.service(channel._ref.spec.channel_id, wire.CONTROL)
        for _ in range(3):
            opened = stranger.request(
                runtime.messenger.endpoint, service, control_wire.Open(runtime.messenger.endpoint)
            )
            with pytest.raises(CommError, match=r"'stranger' says that .* another process"):
                opened.result(DEADLINE_S)
        assert len([record for record in caplog.records if "another process" in record.message]) == 1
        stranger.request(runtime.messenger.endpoint, service, control_wire.Open(stranger.endpoint)).result(
            DEADLINE_S
        )
        stranger.close()


@pytest.mark.parametrize("is_left", [False, True], ids=["late", "left"])
@pytest.mark.parametrize(
    "wrap", [lambda puts: puts, lambda puts: Gathered(puts, list, "puts")], ids=["each", "all"]
)
def test_a_put_that_fails_and_whose_handle_nobody_has_is_told_of_once(caplog, wrap, is_left):
    with LocalRuntime():
        heard, unheard = Channel.create("heard", maxsize=1), Channel.create("unheard", maxsize=1)
        handles = [channel.put(0, async_op=True) for channel in (heard, unheard)]
        handles += [heard.put(1, async_op=True, timeout_s=0.01)]
        handles += [Gathered([heard.put(2, async_op=True, timeout_s=0.01)], list, "puts")]
        for handle in handles[2:]:
            with pytest.raises(ChannelTimeout):
                handle.wait()
        wrap([unheard.put(n, async_op=True, timeout_s=None if is_left else 0.1) for n in (1, 2)])
        if not is_left:
            with pytest.raises(ChannelTimeout):
                unheard.put(3, timeout_s=0.2)
    wait_until(lambda: "nobody has its handle" in caplog.text)
    (told,) = [record.getMessage() for record in caplog.records if "handle" in record.getMessage()]
    assert told.startswith(
        "channel 'unheard': an asynchronous put failed, and nobody has its handle (the first"
    )
