"""Items that stay on a device, on pretend devices whose memory really is shared between processes."""

from __future__ import annotations

import gc
import logging
import os
import sys
import time
from contextlib import ExitStack

import device_item_roles as roles
import numpy as np
import pytest
import torch
from device_item_roles import BUCKET_BYTES, DEVICE, full_of, have, number_in

from alarms import alarms
from effort import tries
from rlinf.testing.device_memory import PretendDevice
from rlinf.testing.local import LocalRuntime
from rlinf_scheduler.channel import Channel, Starter
from rlinf_scheduler.comm.codec import encode
from rlinf_scheduler.comm.shm.payload import ReceivedPayload
from rlinf_scheduler.comm.shm.payloads import Payloads
from rlinf_scheduler.devices.landing import land
from rlinf_scheduler.durable.saving import save_job
from rlinf_scheduler.errors import ChannelArgumentError, CodecError, ItemsLost
from rlinf_scheduler.session import current_session, set_current

__all__ = ["alarms"]
DEADLINE_S = 60.0  # processes start while others take all processors
MIB = 1 << 20


def through_host_memory(caplog):
    """What was said of that; other threads of this process may say other things."""
    return [record.getMessage() for record in caplog.records if "host memory" in record.getMessage()]


@pytest.fixture
def member(sockets):
    """This test is a process of its own, with a device; all others are, too."""
    with LocalRuntime(sockets.runtime.address, own_name="member") as session:
        session.provide(Starter, sockets.runtime.service(Starter))
        session.device = PretendDevice(DEVICE)
        session.devices = have(session.device, session)
        yield session


@pytest.fixture
def join(sockets, member):
    """Another member in this process, with a device or none: its end of a channel."""
    with ExitStack() as stack:

        def join(name, device, channel):
            before = current_session()
            session = stack.enter_context(LocalRuntime(sockets.runtime.address, own_name=name))
            have(device, session)
            end = Channel.connect(channel.name, timeout_s=DEADLINE_S)
            end.qsize()
            set_current(before)
            return end

        yield join
        set_current(member)


@pytest.fixture
def channel(member, sockets):
    made = Channel.create(sockets.name(), device_items=True)
    yield made
    made.delete()


def idle_bytes(devices):
    """How much of its buckets a process could fill now."""
    staging = devices._staging

    def look():
        devices._messenger.payloads.see_released_now()
        staging.settle(devices._driver)
        return sum(pool._sizes[number] for pool in staging._pools.values() for number in pool._idle)

    return devices._thread.ask(look).result(DEADLINE_S)


def eventually(condition):
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        gc.collect()
        os.sched_yield()


def get(channel, **options):
    return channel.get(timeout_s=DEADLINE_S, **options)


# -- what a getter gets ---------------------------------------------------------------------------


def test_processes_of_one_device_pass_items_there_and_open_their_memory_once(channel, member, sockets):
    consumers = [sockets.run(roles.consume, channel, DEVICE, 10) for _ in range(2)]
    for number in range(20):
        channel.put(full_of(number))
    (some, num_opened), (others, _) = [consumer.result(DEADLINE_S) for consumer in consumers]
    assert sorted(some + others) == list(range(20))
    assert 1 <= num_opened <= member.device.used_bytes // BUCKET_BYTES
    # The first one of each, that came before it was known who reads shared memory.
    assert member.messenger.payloads.arena.touched_bytes < 3 * MIB


@pytest.mark.parametrize("uuid", ["GPU-two", None])
def test_who_has_not_that_device_gets_them_through_host_memory(channel, member, join, uuid, caplog):
    other = None if uuid is None else PretendDevice(uuid)
    elsewhere = join("elsewhere", other, channel)
    with caplog.at_level(logging.WARNING):
        for number in range(3):
            channel.put(full_of(number))
            assert number_in(get(elsewhere)) == number
    assert other is None or other.num_opened == 0
    assert through_host_memory(caplog) == [
        f"what lies on {DEVICE} is read by 'elsewhere', which has not that device: it goes through host memory"
    ]
    eventually(lambda: idle_bytes(member.devices) == member.device.used_bytes > 0)


def test_who_cannot_open_them_gets_bytes_and_one_warning_says_why(channel, member, join, caplog):
    closed = join("closed", PretendDevice(DEVICE, opens=False), channel)
    assert roles.make_ready(closed)
    with caplog.at_level(logging.WARNING):
        for number in range(3):
            channel.put(full_of(number))
            assert number_in(get(closed)) == number
    (told,) = through_host_memory(caplog)
    assert told.startswith(f"an item of channel '{channel.name}' of 'member' comes through host memory: ")


def test_a_process_gets_there_what_it_puts_itself(channel, member):
    channel.put(full_of(7))
    assert number_in(get(channel)) == 7
    assert member.device.num_opened == 0


DTYPES = sorted(
    {
        value
        for value in vars(torch).values()
        if isinstance(value, torch.dtype) and not str(value).startswith("torch.q") and value.itemsize <= 16
    },
    key=str,
)


@pytest.mark.parametrize("on_device", [True, False])
def test_every_dtype_and_shape_arrives_bit_by_bit(channel, member, on_device):
    bits = torch.randint(0, 256, (1 << 16,), dtype=torch.uint8)
    # Other bits of a bool are no bool.
    given = {str(dtype): (bits % 2 if dtype == torch.bool else bits).clone().view(dtype) for dtype in DTYPES}
    matrix = torch.randn(300, 200)
    given |= {
        "turned": matrix.t(),
        "strided": matrix[::3, 5:90],
        "expanded": matrix[:1].expand(50, 200),
        "views of one": (matrix[:200], matrix[100:]),
        "conjugated": torch.randn(40, 50, dtype=torch.complex64).conj(),
        "scalar": torch.tensor(3.0),
        "empty": torch.empty(0, 3),
        "with gradient": torch.randn(1000, requires_grad=True),
        "array": np.arange(10_000.0),
        "text": "x" * 3000,
    }
    if not on_device:
        member.device.open = None
        member.devices._staging.memory_of = lambda _where: None
    channel.put(given)
    got = get(channel)
    assert member.device.used_bytes > 0
    assert len(DTYPES) > 15
    for dtype in DTYPES:
        assert torch.equal(got[str(dtype)].view(torch.uint8), given[str(dtype)].view(torch.uint8)), dtype
    for name in ("turned", "strided", "expanded", "conjugated", "scalar", "empty", "with gradient"):
        assert torch.equal(got[name], given[name]), name
        assert got[name].requires_grad == given[name].requires_grad
    assert got["turned"].stride() == given["turned"].stride()
    first, second = got["views of one"]
    first[150] = 9
    assert (second[50] == 9).all(), "views of one memory, still"
    assert np.array_equal(got["array"], given["array"])
    got["array"][:] = 0  # its owner may write into it
    assert got["text"] == given["text"]
    # Whoever has it keeps nothing of where it came from.
    eventually(lambda: idle_bytes(member.devices) == member.device.used_bytes)


def test_a_put_takes_the_item_as_it_is(channel, member):
    item = full_of(1)
    handle = channel.put(item, async_op=True)
    item[:] = 2
    handle.wait(DEADLINE_S)
    assert number_in(get(channel)) == 1


def test_small_items_and_those_of_other_channels_go_as_ever(channel, member, sockets):
    channel.put(torch.ones(100))
    other = Channel.create(sockets.name())
    other.put(full_of(3))
    assert get(channel).sum() == 100
    assert number_in(get(other)) == 3
    assert member.device.used_bytes == 0


def test_batches_leases_peeks_questions_and_subscriptions_have_them_too(channel, member):
    with channel.subscribe("logger") as seen:
        for number in range(4):
            channel.put(full_of(number), weight=1)
        assert number_in(channel.peek()) == 0
        assert [number_in(item) for item in channel.get_batch(2, timeout_s=DEADLINE_S)] == [0, 1]
        with channel.lease(timeout_s=DEADLINE_S) as lease:
            lease.item[:] = 99
            lease.nack()
        with channel.lease(timeout_s=DEADLINE_S) as lease:
            assert number_in(lease.item) == 2, "what its first consumer wrote is its own"
            assert lease.attempt == 2
        assert [number_in(get(seen)) for _ in range(4)] == [0, 1, 2, 3]
    assert number_in(get(channel)) == 3
    answer = channel.ask(full_of(5), timeout_s=DEADLINE_S, async_op=True)
    request = channel.next_request(timeout_s=DEADLINE_S)
    request.reply(number_in(request.item))
    assert answer.wait(DEADLINE_S) == 5
    del request, answer, lease
    eventually(lambda: idle_bytes(member.devices) == member.device.used_bytes)


def test_a_dead_letter_is_read_through_host_memory(member, sockets):
    channel = Channel.create(sockets.name(), device_items=True, max_attempts=1)
    channel.put(full_of(6))
    with channel.lease(timeout_s=DEADLINE_S) as lease:
        lease.nack()
    (bucket,), (letter,) = member.devices._staging._buckets.values(), channel.dead_letters()
    number, bucket.number = bucket.number, -1
    with pytest.raises(CodecError, match=f"of 'member' on {DEVICE}: it is not there any more"):
        letter.item  # noqa: B018
    bucket.number = number
    assert number_in(letter.item) == 6
    letter.put_back()
    assert number_in(get(channel)) == 6


# -- room -----------------------------------------------------------------------------------------


def test_a_thousand_items_take_no_more_of_the_device_than_a_few(channel, member, join):
    other = PretendDevice(DEVICE)
    beside = join("beside", other, channel)
    assert roles.make_ready(beside)
    for number in range(tries(1000)):
        channel.put(torch.full((20_000,), float(number)))
        assert number_in(get(beside)) == number
    assert member.devices._staging._next_number() > tries(1000), "each on the device, by a shortcut too"
    assert member.device.used_bytes <= 8 * BUCKET_BYTES
    assert 1 <= other.num_opened == other.num_open <= 8, "each once"
    eventually(lambda: idle_bytes(member.devices) == member.device.used_bytes)


def test_what_the_bound_has_no_room_for_goes_through_host_memory(sockets, caplog):
    with LocalRuntime(sockets.runtime.address, own_name="small") as session:
        session.provide(Starter, sockets.runtime.service(Starter))
        device = PretendDevice(DEVICE)
        devices = have(device, session, limit_bytes=3 * BUCKET_BYTES)
        channel = Channel.create(sockets.name(), device_items=True)
        with caplog.at_level(logging.WARNING):
            for number in range(6):
                channel.put(full_of(number))
        told = through_host_memory(caplog)
        assert len(told) == 1
        assert "no room for 2 MiB on GPU-one: 3 buckets are in use" in told[0]
        assert device.used_bytes == 3 * BUCKET_BYTES
        assert [number_in(get(channel)) for _ in range(6)] == list(range(6))
        eventually(lambda: idle_bytes(devices) == 3 * BUCKET_BYTES)
        channel.put(full_of(6))
        assert idle_bytes(devices) == 2 * BUCKET_BYTES, "on the device again"


def test_buckets_that_are_too_small_are_closed_by_their_consumers_and_given_back(sockets, join):
    with LocalRuntime(sockets.runtime.address, own_name="small") as session:
        session.provide(Starter, sockets.runtime.service(Starter))
        device, other = PretendDevice(DEVICE), PretendDevice(DEVICE)
        devices = have(device, session, limit_bytes=4 * BUCKET_BYTES)
        channel = Channel.create(sockets.name(), device_items=True)
        beside = join("beside", other, channel)
        assert roles.make_ready(beside)
        for number in range(3):
            channel.put(full_of(number))
        assert [number_in(get(beside)) for number in range(3)] == [0, 1, 2]
        assert other.num_open == 3
        eventually(lambda: idle_bytes(devices) == 3 * BUCKET_BYTES)
        large = torch.full((3 * full_of(0).numel(),), 7.0)  # in two grains, of which one is free
        channel.put(large)
        assert number_in(get(beside)) == 7
        eventually(lambda: idle_bytes(devices) == device.used_bytes == 2 * BUCKET_BYTES)
        assert other.num_open == 2
        channel.put(large)
        assert number_in(get(beside)) == 7
        assert device.used_bytes <= 4 * BUCKET_BYTES
        assert other.num_opened == 4, "a larger one, and on the device"


# -- what goes wrong ------------------------------------------------------------------------------


def test_items_of_a_killed_producer_are_lost_by_name_and_the_next_get_goes_on(channel, member, sockets):
    producer = sockets.run(roles.produce_and_stay, channel, [1, 2, 3])
    name = get(channel, queue_name="told")
    assert number_in(get(channel)) == 1
    assert member.device.num_open == 1
    channel.put(full_of(4))
    producer.kill()
    with pytest.raises(ItemsLost) as caught:
        get(channel)
    lost = f"2 items put by '{name}' went with it: they were on its device {DEVICE}"
    assert lost in str(caught.value)
    assert number_in(get(channel)) == 4
    assert channel.stats().num_lost == 2
    eventually(lambda: member.device.num_open == 0)


def test_who_is_killed_in_the_middle_of_a_copy_has_taken_nothing_and_put_nothing(channel, member, sockets):
    consumer = sockets.run(roles.take_one_and_stop_in_the_middle, channel)
    producer = sockets.run(roles.put_and_stop_in_the_middle, channel)
    channel.put(full_of(5))
    for _ in range(2):
        assert get(channel, queue_name="told") == "in the middle"
    assert idle_bytes(member.devices) == 0
    consumer.kill()
    producer.kill()
    assert number_in(get(channel)) == 5
    eventually(lambda: idle_bytes(member.devices) == member.device.used_bytes)
    assert channel.stats().num_lost == 0
    assert channel.empty()


def test_a_delivery_that_meets_the_end_of_its_producer_becomes_an_error_and_no_hang(channel, member, join):
    leaver = join("leaver", PretendDevice(DEVICE), channel)
    leaver.put(full_of(8))
    handle = channel.get(async_op=True)
    leaver._connection()._messenger.close()
    try:
        assert number_in(handle.wait(DEADLINE_S)) == 8, "it was here already"
    except ItemsLost as error:
        assert "put by 'leaver' went with it" in str(error)  # noqa: PT017 - either is right
    assert channel.empty()


@pytest.mark.parametrize("to_load", [False, True])
def test_what_cannot_be_read_for_a_moment_comes_as_bytes(in_process, monkeypatch, to_load):
    device, session = PretendDevice(DEVICE), current_session()
    have(device, session)
    channel, take, failed = Channel.create("here", device_items=True), Payloads._take, []

    def take_or_fail(payloads, at, loads):
        """Fails once, in the channel's process or in its consumer's."""
        if loads == to_load and not failed:
            failed.append(at)
            raise OSError("no descriptor is free")
        return take(payloads, at, loads)

    monkeypatch.setattr(Payloads, "_take", take_or_fail)
    for number in range(3):
        channel.put(full_of(number))
        assert number_in(get(channel)) == number
    assert len(failed) == 1
    assert device.used_bytes > 0


def test_what_is_in_a_bucket_by_now_is_never_taken_for_what_was(channel, member):
    devices = member.devices
    staged = devices.stage("an item", encode(full_of(1), devices.device_of))
    late = ReceivedPayload([bytes(frame) for frame in staged.payload.bytes_frames()])  # without its block
    assert number_in(land(member.messenger, devices, "an item", late).load()) == 1
    del staged
    eventually(lambda: idle_bytes(devices) == BUCKET_BYTES)
    channel.put(full_of(2))
    assert member.device.used_bytes == BUCKET_BYTES
    with pytest.raises(CodecError, match=f"an item of 'member' on {DEVICE}: it is not there any more"):
        land(member.messenger, devices, "an item", late).load()


def test_what_cannot_be_is_refused_by_name(channel, tmp_path):
    with pytest.raises(ChannelArgumentError, match="a durable channel has no device_items"):
        Channel.create("durable", device_items=True, durable=tmp_path)
    with pytest.raises(ChannelArgumentError, match="device_items is True or False, not 'yes'"):
        Channel.create("odd", device_items="yes")
    why = r"its items may lie on their producers' devices \(device_items=True\), and "
    with pytest.raises(ChannelArgumentError, match=why + "it cannot be saved"):
        channel.save(tmp_path / "saved")
    with pytest.raises(ChannelArgumentError, match=why + "it cannot be saved"):
        save_job(tmp_path / "job", [channel], None, (), None)
    assert not (tmp_path / "saved").exists()


# -- interruptions --------------------------------------------------------------------------------


@pytest.mark.interrupted
def test_interrupted_puts_and_gets_lose_nothing_and_leave_no_bucket_behind(
    channel, member, alarms, monkeypatch
):
    # What is raised where Python drops it is kept until the test ends, with all that its frames refer to.
    monkeypatch.setattr(sys, "unraisablehook", lambda _raised: None)
    alarm, surely, got = alarms(3, max_delay_s=0.003), set(), []
    for number in range(tries(80)):
        item = full_of(number)
        if alarm.interrupt(lambda: channel.put(item)):  # noqa: B023 - called at once
            surely.add(number)
        if not channel.empty():
            handle = channel.get(async_op=True)
            alarm.interrupt(handle.wait)
            got.append(number_in(handle.wait(DEADLINE_S)))
            del handle
    while not channel.empty():
        got.append(number_in(get(channel)))
    assert alarm.num_raised > 5
    assert surely <= set(got)
    assert got == sorted(set(got)), "each once, in order"
    eventually(lambda: idle_bytes(member.devices) == member.device.used_bytes)


def test_a_bucket_that_is_opened_after_its_owner_has_left_is_closed_again(channel, member, join):
    leaver = join("leaver", PretendDevice(DEVICE), channel)
    roles.make_ready(channel)
    leaver.put(full_of(8))
    opened = member.device.open

    def leave_before(*args):
        leaver._connection()._messenger.close()
        return opened(*args)

    member.devices._find_driver().open = leave_before
    try:
        assert number_in(get(channel)) == 8
    except ItemsLost as error:
        assert "put by 'leaver' went with it" in str(error)  # noqa: PT017 - either is right
    eventually(lambda: member.device.num_open == 0)
    assert member.device.num_opened == 1
