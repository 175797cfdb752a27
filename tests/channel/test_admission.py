"""Admission: what is begun is taken before it is too old, on every backend."""

from __future__ import annotations

import asyncio
import gc
import logging
import pickle
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor

import admission_roles as roles
import numpy as np
import pytest

from rlinf_scheduler.channel import Channel, Slot
from rlinf_scheduler.errors import (
    BatchTimeout,
    ChannelArgumentError,
    ChannelClosed,
    ChannelEmpty,
    ChannelError,
    ChannelTimeout,
    CodecError,
    SlotExpired,
    VersionTooEarly,
)
from rlinf_scheduler.session import current_session
from waits import wait_until

DEADLINE_S = 60.0
LARGE = 1 << 20


def admitting(backend, batch_items=2, **options):
    channel = Channel.create(backend.name(), **options)
    channel.set_version(0, batch_items=batch_items)
    return channel


def make(channel, item, max_lag=1, **options):
    with channel.admit(max_lag=max_lag, timeout_s=DEADLINE_S) as slot:
        channel.put(item, slot=slot, timeout_s=DEADLINE_S, **options)


def num_making(channel):
    """How many slots are out, as `explain` says."""
    return sum(held.operation.startswith("slot ") for held in channel.explain().queues[0].held)


def test_a_rollout_and_a_trainer_are_at_most_so_many_versions_apart(backend):
    channel = Channel.create(backend.name())
    makers = [backend.run(roles.make_until_it_ends, channel, 1, [10, LARGE, 300]) for _ in range(2)]
    lags, _ = backend.run(roles.train, channel, 4, 12, 1).result(DEADLINE_S)
    assert len(lags) == 48
    assert max(lags) <= 1
    assert min(lags) >= 0
    made = [maker.result(DEADLINE_S) for maker in makers]
    assert sum(made) - 48 == channel.qsize() <= 8


def test_items_carry_their_versions(backend):
    channel = Channel.create(backend.name())
    channel.put("a", version=3)
    channel.put("b")
    channel.put_nowait("c", version=np.int64(4))
    assert channel.get_batch(max_items=3, min_items=3).versions == [3, None, 4]
    channel.put("d", version=5)
    with channel.lease(max_items=1) as lease:
        assert lease.items.versions == [5]
    channel.put("e", version=6, group="g")
    assert channel.get_group(1).versions == [6]
    channel.put("f")
    assert channel.get_batch(max_items=1).versions == ()


def test_a_slot_says_which_version_and_is_the_item_s(backend):
    channel = admitting(backend)
    channel.set_version(7)
    with channel.admit(max_lag=0) as slot:
        assert (slot.version, slot.queue_name) == (7, "default")
        channel.put("x", slot=slot)
    assert channel.get_batch(max_items=1).versions == [7]


def test_an_item_that_was_made_with_a_newer_version_says_so(backend):
    channel = admitting(backend)
    slot = channel.admit(max_lag=1)
    channel.set_version(1)
    channel.put("x", slot=slot, version=1)
    assert channel.get_batch(max_items=1).versions == [1]


@pytest.mark.usefixtures("patient")
def test_leave_is_waited_for(backend):
    channel = admitting(backend, batch_items=1)
    slot = channel.admit(max_lag=0)
    with pytest.raises(ChannelTimeout, match="1 item in the making, the oldest of version 0"):
        channel.admit(max_lag=0, timeout_s=0.5)
    with pytest.raises(ChannelTimeout):
        channel.admit(max_lag=0, timeout_s=0)
    waiting = channel.admit(max_lag=0, async_op=True, timeout_s=DEADLINE_S)
    channel.put("x", slot=slot)
    assert channel.get() == "x"
    assert not waiting.done()
    channel.set_version(1)
    assert waiting.wait().version == 1


@pytest.mark.usefixtures("patient")
def test_nothing_is_admitted_before_the_first_version(backend):
    channel = Channel.create(backend.name())
    with pytest.raises(
        ChannelTimeout, match="no version yet: the trainer says which it is at by set_version"
    ):
        channel.admit(max_lag=1, timeout_s=0.05)
    waiting = channel.admit(max_lag=1, async_op=True, timeout_s=DEADLINE_S)
    channel.set_version(3, batch_items=1)
    assert waiting.wait().version == 3


@pytest.mark.parametrize("how", ["with", "error", "drop", "handle", "give_back", "unread handle"])
def test_a_slot_that_is_dropped_goes_to_the_next_one(backend, how):
    channel = admitting(backend, batch_items=1)
    if how == "with":
        with channel.admit(max_lag=0):
            pass
    elif how == "error":
        with pytest.raises(ZeroDivisionError), channel.admit(max_lag=0):
            raise ZeroDivisionError
    elif how == "drop":
        slot = channel.admit(max_lag=0)
        del slot
    elif how == "handle":
        handle = channel.admit(max_lag=0, async_op=True)
        with handle.wait():
            pass  # and the handle lives on
    elif how == "unread handle":
        handle = channel.admit(max_lag=0, async_op=True)
        wait_until(handle.done)
        del handle
    else:
        slot = channel.admit(max_lag=0)
        slot.give_back()
        with pytest.raises(SlotExpired, match="is over"):
            channel.put("x", slot=slot)
    gc.collect()
    assert channel.admit(max_lag=0, timeout_s=DEADLINE_S).version == 0


def test_a_slot_of_a_process_that_dies_goes_to_the_next_one(sockets):
    channel, ready = admitting(sockets, batch_items=1), Channel.create(sockets.name())
    task = sockets.run(roles.have_a_slot, channel, ready)
    ready.get(timeout_s=DEADLINE_S)
    assert num_making(channel) == 1
    task.kill()
    assert channel.admit(max_lag=0, timeout_s=DEADLINE_S).version == 0


def test_what_a_dead_process_was_making_is_not_waited_for(sockets):
    channel, ready = admitting(sockets, batch_items=2), Channel.create(sockets.name())
    task = sockets.run(roles.have_a_slot, channel, ready)
    ready.get(timeout_s=DEADLINE_S)
    make(channel, "a"), make(channel, "b")
    batch = channel.get_batch(min_items=2, max_items=2, async_op=True, timeout_s=DEADLINE_S)
    assert channel.qsize() == 2
    assert not batch.done()
    task.kill()
    assert batch.wait() == ["a", "b"]


def test_a_slot_is_used_once(backend):
    channel = admitting(backend)
    with channel.admit(max_lag=1) as slot:
        channel.put("a", slot=slot)
        with pytest.raises(SlotExpired, match="is over: an item was put with it"):
            channel.put("b", slot=slot)
        with pytest.raises(SlotExpired, match="is over"):
            channel.put(np.zeros(LARGE, np.uint8), slot=slot)
    assert channel.drain() == ["a"]


def test_an_asynchronous_put_keeps_its_slot(backend):
    channel = admitting(backend)
    with channel.admit(max_lag=1) as slot:
        put = channel.put(np.zeros(LARGE, np.uint8), slot=slot, async_op=True)
    del slot
    gc.collect()
    put.wait(DEADLINE_S)
    assert channel.qsize() == 1


def test_many_asynchronous_puts_of_one_process_keep_their_slots(backend):
    channel = admitting(backend, batch_items=40)
    puts = []
    for number in range(40):
        with channel.admit(max_lag=0, timeout_s=DEADLINE_S) as slot:
            puts.append(channel.put(bytes([number]) * 20_000, slot=slot, async_op=True))
    for put in puts:
        put.wait(DEADLINE_S)
    batch = channel.get_batch(min_items=40, max_items=40, timeout_s=DEADLINE_S)
    assert [item[0] for item in batch] == list(range(40))


def test_a_put_that_fails_leaves_its_slot(backend):
    channel = admitting(backend, batch_items=1)
    with channel.admit(max_lag=0) as slot:
        with pytest.raises(CodecError):
            channel.put(threading.Lock(), slot=slot)
        with pytest.raises(ChannelArgumentError):
            channel.put("x", weight=-1, slot=slot)
        channel.put("x", slot=slot)
    assert channel.get() == "x"


def test_a_slot_may_be_sent_and_is_used_by_whoever_puts(backend):
    channel = admitting(backend)
    slot = channel.admit(max_lag=0)
    backend.run(roles.put_with, channel, slot, "made elsewhere").result(DEADLINE_S)
    assert channel.get(timeout_s=DEADLINE_S) == "made elsewhere"
    copy = pickle.loads(pickle.dumps(slot))
    assert (copy.number, copy.version, copy.queue_name) == (slot.number, 0, "default")
    with pytest.raises(SlotExpired, match="is over"):
        channel.put("again", slot=copy)


def send_slot(channel, prompts, number=0):
    """Admit, and send the slot along with a prompt; nothing of it stays here."""
    prompts.put((number, channel.admit(max_lag=0, timeout_s=DEADLINE_S)))
    gc.collect()


@pytest.mark.usefixtures("patient")
def test_admission_is_a_bound_though_nobody_keeps_the_slots_that_were_sent(backend):
    channel, prompts = admitting(backend, batch_items=3), backend.create()
    for number in range(3):
        send_slot(channel, prompts, number)
    with pytest.raises(ChannelTimeout, match="3 items in the making"):
        channel.admit(max_lag=0, timeout_s=0.3)
    backend.run(roles.answer_prompts, channel, prompts, 3).result(DEADLINE_S)
    assert channel.get_batch(min_items=3, timeout_s=DEADLINE_S) == [0, 1, 2]


def test_a_slot_that_is_sent_and_dropped_at_once_does_not_go_back_before_its_copy_is_known(in_process):
    channel, messenger = admitting(in_process, batch_items=3), current_session().messenger
    slot = channel.admit(max_lag=0, timeout_s=DEADLINE_S)
    held, is_held = threading.Event(), threading.Event()
    messenger.submit(lambda: (is_held.set(), held.wait(DEADLINE_S)))
    assert is_held.wait(DEADLINE_S)
    other = channel.admit(max_lag=0, async_op=True)  # which looks first of all what was dropped
    copy = pickle.dumps(slot)
    del slot
    held.set()
    assert other.wait().version == 0
    channel.put("made", slot=pickle.loads(copy), timeout_s=DEADLINE_S)
    assert channel.get(timeout_s=DEADLINE_S) == "made"


@pytest.mark.parametrize("wrong", [{"weight": -1}, {"priority": "high"}], ids=["weight", "priority"])
def test_a_put_that_is_wrong_has_not_begun_to_use_its_slot(backend, wrong):
    channel = admitting(backend)
    with channel.admit(max_lag=1, timeout_s=DEADLINE_S) as slot, pytest.raises(ChannelArgumentError):
        channel.put("wrong", slot=slot, **wrong)
    assert num_making(channel) == 0
    assert slot.number


class _Interrupting:
    def __reduce__(self):
        raise KeyboardInterrupt


def test_a_put_that_is_interrupted_before_it_begins_does_not_use_its_slot(backend):
    channel = admitting(backend)
    with (
        pytest.raises(KeyboardInterrupt),
        channel.admit(max_lag=1, timeout_s=DEADLINE_S) as slot,
    ):
        channel.put(_Interrupting(), slot=slot)
    assert num_making(channel) == 0
    assert slot.number


def test_a_copy_that_is_taken_and_dropped_goes_back_and_is_counted(backend):
    channel, prompts = admitting(backend, batch_items=1), backend.create()
    send_slot(channel, prompts)
    backend.run(roles.drop_a_prompt, prompts).result(DEADLINE_S)
    slot = channel.admit(max_lag=0, timeout_s=DEADLINE_S)
    assert slot.version == 0
    assert "1 slot came back unused" in str(channel.explain())


def test_who_drops_a_slot_unused_is_told_once(in_process, caplog):
    channel = admitting(in_process, batch_items=5)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            channel.admit(max_lag=0)
        gc.collect()
        channel.stats()
    assert len(told_of_unused_slots(channel, caplog)) == 1


def told_of_unused_slots(channel, caplog):
    """The warnings of slots of a channel that were dropped."""
    told = [record.getMessage() for record in caplog.records if "no item was put" in record.getMessage()]
    return [message for message in told if message.startswith(f"channel '{channel.name}': slot ")]


def test_a_slot_that_was_sent_or_given_back_is_none_that_was_dropped(in_process, caplog):
    channel, prompts = admitting(in_process, batch_items=5), in_process.create()
    with caplog.at_level(logging.WARNING):
        send_slot(channel, prompts)
        with channel.admit(max_lag=0):
            pass
        with channel.admit(max_lag=0) as slot:
            channel.put("x", slot=slot)
        with channel.admit(max_lag=0) as slot:
            channel.put(("y", slot), slot=slot)  # as a record of how it was made
        del slot
        assert [channel.get(), channel.get()[0]] == ["x", "y"]
        gc.collect()
        channel.stats()
    assert not told_of_unused_slots(channel, caplog)


def test_a_copy_on_lease_goes_to_the_next_one_when_its_consumer_dies(sockets):
    channel, prompts, ready = admitting(sockets, batch_items=1), sockets.create(), sockets.create()
    send_slot(channel, prompts, 7)
    sockets.run(roles.die_with_a_lease, prompts, ready)
    assert ready.get(timeout_s=DEADLINE_S) == 1
    with prompts.lease(timeout_s=DEADLINE_S) as lease:
        assert lease.attempt == 2
        number, slot = lease.item
        channel.put(number, slot=slot, timeout_s=DEADLINE_S)
    assert channel.get(timeout_s=DEADLINE_S) == 7


@pytest.mark.parametrize("way", ["error", "ack"])
def test_a_copy_on_lease_that_is_not_put_with_goes_back_if_its_item_is_done_with(backend, way):
    channel, prompts = admitting(backend, batch_items=1), backend.create()
    send_slot(channel, prompts, 7)
    if way == "ack":
        with prompts.lease(timeout_s=DEADLINE_S):
            pass
        assert channel.admit(max_lag=0, timeout_s=DEADLINE_S)
        return
    with pytest.raises(ZeroDivisionError), prompts.lease(timeout_s=DEADLINE_S):
        raise ZeroDivisionError
    gc.collect()
    with prompts.lease(timeout_s=DEADLINE_S) as lease:
        channel.put(lease.item[0], slot=lease.item[1], timeout_s=DEADLINE_S)
    assert channel.get(timeout_s=DEADLINE_S) == 7


def test_who_only_looks_at_a_copy_ends_nothing(backend):
    channel, prompts = admitting(backend, batch_items=1), backend.create()
    with prompts.subscribe("log") as seen:
        send_slot(channel, prompts, 7)
        assert seen.get(timeout_s=DEADLINE_S)[0] == 7
        assert prompts.peek()[0] == 7
        gc.collect()
        backend.run(roles.answer_prompts, channel, prompts, 1).result(DEADLINE_S)
    assert channel.get(timeout_s=DEADLINE_S) == 7


def _fail_with_a_copy(channel, prompts, way):
    _, slot = prompts.get(timeout_s=DEADLINE_S)
    put = channel.put("x", slot=slot, version=0, async_op=True) if way == "async" else None
    with pytest.raises(ChannelError, match="version 0 is too old"):
        channel.put("x", slot=slot, version=0) if put is None else put.wait(DEADLINE_S)


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_copy_whose_put_fails_goes_back_when_it_is_dropped(backend, way):
    channel, prompts = admitting(backend, batch_items=1), backend.create()
    channel.set_version(7)
    send_slot(channel, prompts)
    in_a_thread(_fail_with_a_copy, channel, prompts, way)

    def is_back():
        gc.collect()  # an error and the frames that it came through refer to each other
        return num_making(channel) == 0

    wait_until(is_back)
    assert channel.admit(max_lag=0, timeout_s=DEADLINE_S)


def test_a_slot_whose_put_failed_is_given_back_by_its_block(in_process):
    channel = admitting(in_process, batch_items=1)
    channel.set_version(7)
    with channel.admit(max_lag=0) as slot, pytest.raises(ChannelError, match="version 0 is too old"):
        channel.put("x", slot=slot, version=0)
    assert channel.admit(max_lag=0, timeout_s=DEADLINE_S)
    assert slot.version == 7


def test_a_put_that_is_cancelled_has_sent_no_copy(in_process):
    channel, prompts = admitting(in_process, batch_items=1), in_process.create(maxsize=1)
    prompts.put("full")
    slot = channel.admit(max_lag=0, timeout_s=DEADLINE_S)
    put = prompts.put((0, slot), async_op=True)
    put.cancel()
    with pytest.raises(CancelledError):
        put.wait(DEADLINE_S)
    del slot, put
    gc.collect()
    assert channel.admit(max_lag=0, timeout_s=DEADLINE_S)


@pytest.mark.parametrize("role", [roles.die_with_an_item, roles.die_with_an_acknowledged_item])
def test_a_copy_that_was_taken_ends_with_its_process(sockets, role):
    channel, prompts, ready = admitting(sockets, batch_items=1), sockets.create(), sockets.create()
    send_slot(channel, prompts)
    sockets.run(role, channel, prompts, ready)
    assert ready.get(timeout_s=DEADLINE_S) == 1
    assert channel.admit(max_lag=0, timeout_s=DEADLINE_S)


def test_an_acknowledged_item_ends_its_own_copy_and_no_other_of_its_lease(sockets):
    channel, prompts = admitting(sockets, batch_items=2), sockets.create()
    send_slot(channel, prompts, 0), send_slot(channel, prompts, 1)
    in_a_thread(_acknowledge_the_first, prompts)
    gc.collect()
    number, slot = prompts.get(timeout_s=DEADLINE_S)
    assert number == 1
    channel.put(number, slot=slot, timeout_s=DEADLINE_S)
    assert channel.get(timeout_s=DEADLINE_S) == 1
    assert num_making(channel) == 0


def _acknowledge_the_first(prompts):
    with prompts.lease(min_items=2, max_items=2, timeout_s=DEADLINE_S) as lease:
        lease.ack(only=0)
        lease.nack()


def in_a_thread(function, *args):
    """Do something in a thread of its own, which keeps no error."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(function, *args).result(DEADLINE_S)


def _fail_to_put(prompts, slot):
    with pytest.raises(ChannelClosed):
        prompts.put((0, slot))


@pytest.mark.parametrize("async_op", [True, False])
def test_a_put_that_fails_has_sent_no_copy(backend, async_op):
    channel, prompts = admitting(backend, batch_items=1), backend.create()
    prompts.close()
    slot = channel.admit(max_lag=0, timeout_s=DEADLINE_S)
    if async_op:
        put = prompts.put((0, slot), async_op=True)
        with pytest.raises(ChannelClosed):
            put.wait(DEADLINE_S)
    else:
        # In a thread of its own, which keeps no error.
        thread = threading.Thread(target=_fail_to_put, args=(prompts, slot))
        thread.start()
        thread.join(DEADLINE_S)
    del slot
    _fail_to_put(prompts, None)  # what the I/O thread remembers of the last one
    gc.collect()
    assert channel.admit(max_lag=0, timeout_s=DEADLINE_S)


def test_a_slot_outlives_the_process_that_asked_for_it_where_a_copy_is_in_a_queue(sockets):
    channel, prompts = admitting(sockets, batch_items=1), sockets.create()
    sockets.run(roles.send_slot, channel, prompts, 7).result(DEADLINE_S)
    sockets.run(roles.answer_prompts, channel, prompts, 1).result(DEADLINE_S)
    assert channel.get(timeout_s=DEADLINE_S) == 7


def test_a_copy_that_is_dropped_is_no_slot_that_is_dropped(backend):
    channel = admitting(backend, batch_items=1)
    slot = channel.admit(max_lag=0)
    pickle.loads(pickle.dumps(slot)).give_back()
    channel.put("x", slot=slot)
    assert channel.get() == "x"


def test_the_version_moves_on_at_once_after_what_was_taken(backend):
    channel = admitting(backend, batch_items=2)
    for version in range(3):
        make(channel, "a", 0), make(channel, "b", 0)
        assert channel.get_batch(min_items=2) == ["a", "b"]
        channel.set_version(version + 1, timeout_s=DEADLINE_S)


@pytest.mark.usefixtures("patient")
def test_what_others_have_on_lease_is_waited_for(backend):
    channel, ready = admitting(backend, batch_items=1), Channel.create(backend.name())
    make(channel, "x", 0)
    task = backend.run(roles.take_and_keep, channel, ready)
    assert ready.get(timeout_s=DEADLINE_S) == "x"
    with pytest.raises(ChannelTimeout, match=r"set_version\(1\) waits for 1 item to be settled"):
        channel.set_version(1, timeout_s=0.05)
    moving = channel.set_version(1, async_op=True, timeout_s=DEADLINE_S)
    ready.put(None, queue_name="go on")
    task.result(DEADLINE_S)
    moving.wait()
    assert channel.admit(max_lag=0).version == 1


def test_what_comes_back_is_taken_before_the_version_moves_on(backend):
    channel = admitting(backend, batch_items=1)
    make(channel, "x", 0)
    with channel.lease(timeout_s=DEADLINE_S) as lease:
        moving = channel.set_version(1, async_op=True, timeout_s=DEADLINE_S)
        lease.nack()
    with pytest.raises(VersionTooEarly, match="has to take 1 more") as caught:
        moving.wait()
    assert (caught.value.version, caught.value.queue_name) == (1, "default")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert channel.get(timeout_s=DEADLINE_S) == "x"
    channel.set_version(1)


@pytest.mark.usefixtures("patient")
def test_a_handle_that_nobody_has_read_holds_the_version_back_only_for_what_is_due(in_process):
    channel = admitting(in_process, batch_items=1)
    make(channel, "later", 1)
    early = channel.get(async_op=True)
    wait_until(early.done)
    channel.set_version(1, timeout_s=DEADLINE_S)
    with pytest.raises(ChannelTimeout):
        channel.set_version(2, timeout_s=0.05)
    assert early.wait() == "later"
    channel.set_version(2, timeout_s=DEADLINE_S)


def test_what_is_asked_for_early_comes_with_the_next_version(backend):
    channel = admitting(backend, batch_items=1)
    make(channel, "a"), make(channel, "b")
    assert channel.get() == "a"
    early = channel.get_batch(max_items=1, async_op=True, timeout_s=DEADLINE_S)
    with pytest.raises(ChannelEmpty, match="the next ones wait for set_version"):
        channel.get_nowait()
    assert not early.done()
    channel.set_version(1)
    assert early.wait() == ["b"]


@pytest.mark.usefixtures("patient")
def test_ranks_get_their_parts_of_one_consumption(backend):
    channel = admitting(backend, batch_items=4)
    for number in range(8):
        make(channel, number)
    shards = [channel.shard(index, 2, batch_items=4) for index in range(2)]
    assert [list(shard.next_batch(DEADLINE_S)) for shard in shards] == [[0, 2], [1, 3]]
    with pytest.raises(BatchTimeout, match="version 0 has taken 4 of 4 items"):
        shards[1].next_batch(0.05)
    channel.set_version(1)
    parts = [shard.next_batch(DEADLINE_S) for shard in shards]
    assert [list(part) for part in parts] == [[4, 6], [5, 7]]
    assert [part.versions for part in parts] == [[0, 0], [0, 0]]


def test_a_trainer_begins_anew_where_its_checkpoint_was(backend):
    channel = admitting(backend, batch_items=1)
    channel.set_version(5)
    make(channel, "of version 5")
    with pytest.raises(ChannelArgumentError, match="the version is 5, and does not go back to 3"):
        channel.set_version(3)
    channel.set_version(3, begins=True)
    assert channel.admit(max_lag=1).version == 3
    assert channel.get(timeout_s=DEADLINE_S) == "of version 5"


def test_explain_says_who_makes_what_and_who_waits_why(backend):
    channel = admitting(backend, batch_items=1)
    slot = channel.admit(max_lag=0)
    waiting = channel.admit(max_lag=0, async_op=True)
    report = channel.explain()
    (queue,) = report.queues
    assert queue.admission.startswith("version 0 has taken 0 of 1 items, 1 item in the making")
    assert "1 admit waiting until items are taken" in queue.admission
    assert [held.operation for held in queue.held] == [f"slot {slot.number}, for an item of version 0"]
    assert [waits.operation for waits in queue.waiting] == ["admit with max_lag 0"]
    assert report.to_dict()["queues"][0]["admission"] == queue.admission
    assert queue.admission in str(report)
    waiting.cancel()


def test_at_the_end_whoever_waits_is_told(backend):
    channel = admitting(backend, batch_items=1)
    slot = channel.admit(max_lag=0)
    waiting = channel.admit(max_lag=0, async_op=True)
    channel.end()
    with pytest.raises(ChannelClosed, match="has ended"):
        waiting.wait(DEADLINE_S)
    with pytest.raises(ChannelClosed):
        channel.put("too late", slot=slot)
    with pytest.raises(ChannelClosed):
        channel.admit(max_lag=0)
    channel.set_version(1)


def test_mistakes_are_said_at_once(in_process):
    channel = admitting(in_process)
    other = Channel.create(in_process.name())
    slot = channel.admit(max_lag=0)
    for mistake, text in [
        (lambda: channel.admit(max_lag=-1), "max_lag is a whole number of at least 0, not -1"),
        (lambda: channel.admit(max_lag=1.5), "max_lag is a whole number"),
        (lambda: channel.set_version(-1), "version is a whole number of at least 0"),
        (lambda: channel.set_version(1, batch_items=0), "batch_items"),
        (lambda: channel.put("x"), r"this queue admits: put\(item, slot=channel.admit\(max_lag=...\)\)"),
        (lambda: channel.put("x", slot=7), "slot is what `admit` returns, not 7"),
        (lambda: channel.put("x", slot=slot, queue_name="q"), "is not for queue 'q'"),
        (lambda: other.put("x", slot=slot), "is of another channel"),
        (lambda: other.set_version(0), "how many items does a version take"),
        (
            lambda: channel.get_group(2),
            "': queue 'default': it gives slots, each for one item: collect groups before",
        ),
        (lambda: channel.get_batch(min_items=3), "a version takes 2 items, and no batch has 3"),
        (
            lambda: channel.shard(0, 1, batch_items=3).next_batch(),
            "a version takes 2 items, and no batch has 3",
        ),
    ]:
        with pytest.raises(ChannelArgumentError, match=text):
            mistake()
    full = Channel.create(in_process.name())
    full.put("x")
    with pytest.raises(
        ChannelArgumentError, match="': queue 'default': it holds what was put without a slot"
    ):
        full.admit(max_lag=0)


def test_a_dead_letter_does_not_come_back_too_late(in_process):
    channel = admitting(in_process, batch_items=1, max_attempts=1)
    make(channel, "x", 0)
    with pytest.raises(ZeroDivisionError), channel.lease(timeout_s=DEADLINE_S):
        raise ZeroDivisionError
    channel.set_version(1)
    (letter,) = channel.dead_letters()
    with pytest.raises(
        ChannelError, match="version 0 is the last that may take it, and 1 is the present one"
    ):
        letter.put_back()
    assert channel.dead_letters()[0].item == "x"


def test_async_functions_wait_for_leave_too(backend):
    channel = admitting(backend, batch_items=1)

    async def rollout():
        for _ in range(3):
            with await channel.admit(max_lag=0, async_op=True) as slot:
                await channel.put(slot.version, slot=slot, async_op=True)

    async def train():
        for step in range(3):
            assert await channel.get(async_op=True) == step
            await channel.set_version(step + 1, async_op=True)

    async def both():
        await asyncio.wait_for(asyncio.gather(rollout(), train()), DEADLINE_S)

    asyncio.run(both())


def test_a_version_that_is_said_without_waiting_for_it_counts(in_process):
    channel = admitting(in_process, batch_items=1)
    channel.set_version(1, async_op=True)
    gc.collect()
    assert channel.admit(max_lag=0, timeout_s=DEADLINE_S).version == 1


def test_a_slot_is_no_item():
    assert repr(Slot("id", "q", 3, 7)) == "<Slot 3 of queue 'q': version 7>"


def test_a_checkpoint_has_versions_and_places(in_process, tmp_path):
    channel = admitting(in_process, batch_items=2)
    channel.set_version(5)
    make(channel, "a"), make(channel, "b"), make(channel, "c")
    assert channel.get() == "a"
    slot = channel.admit(max_lag=1)
    channel.save(tmp_path / "channel")
    again = Channel.create(in_process.name(), restore=tmp_path / "channel")
    queue = again.explain().queues[0]
    assert queue.admission == "version 5 has taken 1 of 2 items"  # whoever had the slot has it no more
    with pytest.raises(ChannelArgumentError, match="is of another channel"):
        again.put("d", slot=slot)
    again.set_version(5, begins=True)
    assert again.get_batch(min_items=2, max_items=2).versions == [5, 5]
    assert [again.admit(max_lag=1, timeout_s=DEADLINE_S).version for _ in range(2)] == [5, 5]
    again.set_version(6)
    with pytest.raises(ChannelArgumentError, match="does not go back"):
        again.set_version(5)
