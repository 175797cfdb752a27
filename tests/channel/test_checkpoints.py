"""Channels that are saved while everybody goes on, and restored, on every backend."""

from __future__ import annotations

import contextlib
import os
import threading

import checkpoint_roles as roles
import numpy as np
import pytest

from effort import tries
from rlinf.testing import LocalRuntime
from rlinf_scheduler.channel import Channel, Starter, control_wire
from rlinf_scheduler.channel.requests import Requests
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.durable import checkpoints
from rlinf_scheduler.durable.checkpoint_files import load_job
from rlinf_scheduler.durable.checkpoints import CheckpointsFeature
from rlinf_scheduler.durable.saving import save_job
from rlinf_scheduler.errors import (
    ChannelArgumentError,
    ChannelClosed,
    ChannelExists,
    ChannelUnanswered,
    CheckpointError,
    CodecError,
    LeaseExpired,
)
from rlinf_scheduler.queueing.leases import Lapse
from rlinf_scheduler.queueing.surveying import QueueSurvey
from rlinf_scheduler.session import current_session
from scarce_threads import refuse_thread
from waits import wait_until

DEADLINE_S = 60.0
LARGE = 1 << 16  # of eight bytes each


def restored(backend, path, **options):
    return Channel.create(backend.name(), restore=path, **options)


def drained(channel, queue_name="default"):
    return list(channel.drain(queue_name))


def save(folder, *channels, extra=None, acknowledge=()):
    save_job(folder, channels, extra, acknowledge, DEADLINE_S)


# -- one channel --------------------------------------------------------------------------------------


def test_a_channel_is_saved_and_restored_once_threads_can_be_had(in_process, tmp_path, monkeypatch):
    channel = in_process.create()
    channel.put("item")
    for step in ("_write", "read"):
        refused = refuse_thread(monkeypatch, step)
        if step == "_write":
            channel.save(tmp_path / "late")
        else:
            assert drained(restored(in_process, tmp_path / "late")) == ["item"]
        assert refused.is_set()


def test_a_restored_channel_has_what_the_saved_one_had_in_order(backend, tmp_path):
    path = tmp_path / "tasks"
    channel = backend.create()
    for number in range(3):
        channel.put(number, weight=number + 1)
    for number in (3, 4):
        channel.put(np.full(LARGE, number), queue_name=("large", None, 1))
    channel.put("urgent", priority=1)
    channel.save(path)
    twin = restored(backend, path)
    assert twin.get() == "urgent"
    assert twin.get_batch(3) == [0, 1]
    assert twin.get() == 2
    assert [int(array[-1]) for array in drained(twin, ("large", None, 1))] == [3, 4]
    assert twin.stats().num_puts == 6
    assert channel.qsize() == 4  # it goes on as it was


def test_the_process_that_saves_has_said_before_what_it_has_taken(backend, tmp_path):
    channel = backend.create()
    for number in range(4):
        channel.put(number)
    assert channel.get() == 0
    with channel.lease() as lease:
        assert lease.item == 1
    handle = channel.get(async_op=True)
    assert handle.wait(DEADLINE_S) == 2
    channel.save(tmp_path / "tasks")
    assert drained(restored(backend, tmp_path / "tasks")) == [3]


def test_what_is_on_lease_is_given_out_again_unless_it_is_acknowledged_in_the_file(backend, tmp_path):
    path = tmp_path / "tasks"
    channel = backend.create()
    for number in range(3):
        channel.put(number)
    task = backend.run(roles.save_in_a_lease, channel, str(path))
    assert task.result(DEADLINE_S) == (0, 1, 0)
    twin = restored(backend, path)
    with twin.lease() as lease:
        assert (lease.item, lease.attempt) == (0, 2)
    assert drained(twin) == [2]
    assert drained(channel) == [2]


def test_dead_letters_ends_and_bounds_are_kept(backend, tmp_path):
    path = tmp_path / "tasks"
    channel = Channel.create(backend.name(), max_attempts=1)
    channel.put("bad")
    channel.put("good")
    with pytest.raises(ZeroDivisionError), channel.lease():
        raise ZeroDivisionError
    channel.end()
    channel.save(path)
    twin = restored(backend, path, max_attempts=1)
    (letter,) = twin.dead_letters()
    assert (letter.item, letter.attempts, letter.reason) == ("bad", 1, "ZeroDivisionError: ")
    with pytest.raises(ChannelClosed):
        twin.put("late")
    assert list(twin) == ["good"]


def test_a_shard_gets_the_step_again_that_it_had_not_done_with(backend, tmp_path):
    path = tmp_path / "tasks"
    channel = backend.create()
    for number in range(8):
        channel.put(number)
    shards = [iter(channel.shard(index, 2, batch_items=4)) for index in range(2)]
    first = [next(shards[0]), next(shards[1])]
    channel.save(path)
    assert next(shards[0]) == [4, 6]  # done with the first by that
    twin = restored(backend, path)
    again = [iter(twin.shard(index, 2, batch_items=4)) for index in range(2)]
    assert [next(shard) for shard in again] == first
    assert [next(shard).step for shard in again] == [1, 1]


def test_a_subscription_goes_on_in_the_middle_of_its_reading(backend, tmp_path):
    path = tmp_path / "tasks"
    channel = backend.create()
    with channel.subscribe("log", maxsize=8) as log:
        for number in range(6):
            channel.put(np.full(LARGE, number))
        assert [int(channel.get(timeout_s=DEADLINE_S)[0]) for _ in range(2)] == [0, 1]
        assert int(log.get(timeout_s=DEADLINE_S)[0]) == 0
        with log.lease(timeout_s=DEADLINE_S) as done, log.lease(timeout_s=DEADLINE_S) as held:
            assert [int(each.item[0]) for each in (done, held)] == [1, 2]
            channel.save(path, acknowledge=[done])
    assert os.path.getsize(path) < 6 * 8 * LARGE, "what both have to read is there once"
    twin = restored(backend, path)
    with pytest.raises(
        ChannelArgumentError, match="'log' already: it sees queue 'default', may hold at most 8"
    ):
        twin.subscribe("log", maxsize=9)
    with twin.subscribe("log", maxsize=8) as again:
        twin.put(np.full(LARGE, 6))
        taken = drained(twin)
        for array in taken:
            array[:] = -1
        twin.end()
        found = [(int(lease.item[0]), lease.attempt) for lease in again.leases()]
    assert len(taken) == 5
    assert found == [(2, 2), (3, 1), (4, 1), (5, 1), (6, 1)]


@pytest.mark.parametrize("options", [{}, {"durable": "journal"}], ids=["in memory", "durable"])
def test_a_restored_subscription_that_nobody_reads_is_given_up(in_process, tmp_path, options):
    channel = in_process.create()
    with channel.subscribe("log", maxsize=1):
        channel.put("x")
        channel.save(tmp_path / "tasks")
    options = {name: tmp_path / path for name, path in options.items()}
    twin = restored(in_process, tmp_path / "tasks", successor_s=0.1, **options)
    twin.put("y", timeout_s=DEADLINE_S)
    assert drained(twin) == ["x", "y"]
    wait_until(lambda: twin.stats().subscriptions == ())


def test_producers_that_were_done_are_done(backend, tmp_path):
    path = tmp_path / "tasks"
    channel = Channel.create(backend.name(), producers=2)
    with channel.producer():
        channel.put("one")
    channel.save(path)
    twin = restored(backend, path, producers=2)
    with twin.producer():
        twin.put("two")
    assert list(twin) == ["one", "two"]


def test_it_is_saved_while_producers_and_consumers_go_on(backend, tmp_path):
    path = tmp_path / "tasks"
    channel = Channel.create(backend.name(), maxsize=64)
    stop = threading.Event()
    put, got = [], []

    def produce():
        while not stop.is_set():
            channel.put(np.full(LARGE // 4, len(put)), timeout_s=DEADLINE_S)
            put.append(len(put))
        channel.end()

    def consume():
        for array in channel:
            got.append(int(array[0]))
            array[:] = -1

    threads = [threading.Thread(target=produce), threading.Thread(target=consume)]
    for thread in threads:
        thread.start()
    for round_number in range(5):
        wait_until(lambda n=round_number: len(got) > 10 * n)
        before, before_got = len(put), len(got)
        channel.save(path)
        after = len(got)
        arrays = drained(restored(backend, path))
        numbers = [int(array[0]) for array in arrays]
        assert all((array == array[0]).all() for array in arrays)
        # All that was put before and not taken until after it, without a gap.
        assert (
            numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else after + 1 >= before
        )
        if numbers:
            assert before_got <= numbers[0] <= after + 1
            assert numbers[-1] >= before - 1
    stop.set()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert got == put


def test_what_is_taken_while_it_is_written_is_written_as_it_was(in_process, tmp_path, monkeypatch):
    """Who takes an item may write into its memory, which the file is written from."""
    channel = in_process.create()
    for number in range(6):
        channel.put(np.full(LARGE, number))
    writes, may_write, wrote = threading.Event(), threading.Event(), checkpoints.write_file

    def write_later(*args):
        writes.set()
        assert may_write.wait(DEADLINE_S)
        return wrote(*args)

    monkeypatch.setattr(checkpoints, "write_file", write_later)
    saving = in_process.run(channel.save, str(tmp_path / "tasks"))
    assert writes.wait(DEADLINE_S)
    assert roles.take_and_write_into(channel, 4) == [0, 1, 2, 3]
    may_write.set()
    saving.result(DEADLINE_S)
    twin = restored(in_process, tmp_path / "tasks")
    arrays = drained(twin)
    assert [set(array.tolist()) for array in arrays] == [{0}, {1}, {2}, {3}, {4}, {5}]


def server_of(channel):
    return current_session().service(Starter)._servers[channel.name]


def test_what_was_on_its_way_and_is_taken_before_it_is_written_is_not_there(in_process, tmp_path):
    channel = in_process.create()
    for number in range(3):
        channel.put(np.full(LARGE, number))
    handle = channel.get(async_op=True)
    wait_until(handle.done)
    channel.save(tmp_path / "before")
    array = handle.wait(DEADLINE_S)
    array[:] = -1
    channel.save(tmp_path / "after")
    numbers = [
        [int(each[0]) for each in drained(restored(in_process, tmp_path / name))]
        for name in ("before", "after")
    ]
    assert numbers == [[0, 1, 2], [1, 2]]


def test_what_was_on_its_way_and_is_given_back_is_there_though_some_of_it_is_taken_by_another(
    in_process, tmp_path, monkeypatch
):
    channel = in_process.create()
    for number in range(3):
        channel.put(np.full(LARGE, number))
    handles = [channel.get_batch(min_items=3, max_items=3, async_op=True)]
    wait_until(handles[0].done)
    write = checkpoints._Writing._run

    def write_later(writing, path):
        handles.clear()
        array = channel.get(timeout_s=DEADLINE_S)
        assert int(array[0]) == 0
        array[:] = -1
        return write(writing, path)

    monkeypatch.setattr(checkpoints._Writing, "_run", write_later)
    channel.save(tmp_path / "tasks")
    arrays = drained(restored(in_process, tmp_path / "tasks"))
    assert [set(array.tolist()) for array in arrays] == [{0}, {1}, {2}]


def test_what_a_subscriber_has_read_is_not_taken_from_the_consumer_that_it_is_on_its_way_to(
    in_process, tmp_path
):
    channel = in_process.create()
    with channel.subscribe("log") as log:
        for number in range(3):
            channel.put(np.full(LARGE, number))
        handle = channel.get_batch(min_items=3, max_items=3, async_op=True)
        wait_until(handle.done)
        assert int(log.get(timeout_s=DEADLINE_S)[0]) == 0
        channel.save(tmp_path / "tasks")
    numbers = [int(each[0]) for each in drained(restored(in_process, tmp_path / "tasks"))]
    assert numbers == [0, 1, 2]


def test_a_batch_some_of_which_subscribers_read_is_written_as_it_was_put(in_process):
    """Nobody can tell whether its consumer has taken it, so that must not write into what may be given out again."""
    channel = in_process.create()
    with channel.subscribe("log"):
        channel.put(np.full(LARGE, 7))
    channel.put(np.full(LARGE, 7))
    items = server_of(channel).state.snapshot(at_rest=True).items
    for array in channel.get_batch(min_items=2, max_items=2):
        array[:] = -1
    for item in items:
        assert (np.frombuffer(item.payload.frames()[-1], np.int64)[-LARGE:] == 7).all()


def test_the_blocks_of_a_file_are_free_when_it_is_written(in_process, tmp_path):
    channel = in_process.create()
    channel.put(np.full(LARGE, 1))
    channel.save(tmp_path / "tasks")
    assert not server_of(channel).find(CheckpointsFeature)._held


def test_a_file_is_the_same_in_another_job(sockets, tmp_path):
    """Nothing in it depends on the job: the backends share no session."""
    channel = sockets.create()
    channel.put({"answer": 42})
    channel.save(tmp_path / "tasks")
    with LocalRuntime():
        assert Channel.create("elsewhere", restore=tmp_path / "tasks").get() == {"answer": 42}


def test_a_durable_channel_is_saved_and_restored_as_any_other(in_process, tmp_path):
    channel = Channel.create(in_process.name(), durable=tmp_path / "durable")
    for number in range(3):
        channel.put(np.full(LARGE, number))
    with channel.lease() as lease:
        save(tmp_path / "job", channel, acknowledge=lease)
    path = load_job(tmp_path / "job").channels[channel.name]
    for options in ({}, {"durable": tmp_path / "another"}):
        assert [int(each[-1]) for each in drained(restored(in_process, path, **options))] == [1, 2]


def test_a_channel_of_the_name_must_not_be_there(in_process, tmp_path):
    channel = in_process.create()
    channel.save(tmp_path / "tasks")
    with pytest.raises(ChannelExists):
        Channel.create(channel.name, restore=tmp_path / "tasks")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            {"maxsize": 2},
            "queue 'default' holds 3 items, and maxsize is 2; channel 'bounds' was saved with maxsize=0",
        ),
        ({"max_bytes": 1000}, r"it holds \d+ bytes, and max_bytes is 1000; channel 'bounds' was saved with"),
    ],
)
def test_what_breaks_the_bounds_is_refused(in_process, tmp_path, options, problem):
    channel = Channel.create("bounds", producers=3)
    for number in range(3):
        channel.put(np.full(100, number))
    for _ in range(2):
        with channel.producer():
            pass
    channel.save(tmp_path / "tasks")
    with pytest.raises(CheckpointError, match=problem):
        Channel.create("restored", restore=tmp_path / "tasks", **options)
    assert len(drained(Channel.create("restored", restore=tmp_path / "tasks", maxsize=3))) == 3


def test_what_a_bound_let_in_is_no_breach_of_it(in_process, tmp_path):
    channel = in_process.create(maxsize=1)
    channel.put("on its way")
    handle = channel.get(async_op=True)
    wait_until(handle.done)
    channel.put("in the queue")
    channel.save(tmp_path / "tasks")
    assert drained(restored(in_process, tmp_path / "tasks", maxsize=1)) == ["on its way", "in the queue"]


def test_a_file_that_is_none_is_refused_and_the_name_stays_free(backend, tmp_path):
    (tmp_path / "tasks").write_bytes(b"something else")
    name = backend.name()
    with pytest.raises(CheckpointError, match="it is no checkpoint: it begins with b'somethin'"):
        Channel.create(name, restore=tmp_path / "tasks")
    with pytest.raises(CheckpointError, match="it cannot be read: No such file"):
        Channel.create(name, restore=tmp_path / "nothing")
    assert Channel.create(name).qsize() == 0


def test_a_folder_that_is_not_there_is_said_to_be_so(in_process, tmp_path):
    channel = in_process.create()
    with pytest.raises(
        CheckpointError, match=r"nowhere/tasks': channel 'channel-.*': it cannot be written: .*No such"
    ):
        channel.save(tmp_path / "nowhere" / "tasks")
    channel.put("it goes on")
    channel.save(tmp_path / "tasks")


def test_a_lease_that_is_over_is_not_acknowledged_in_a_file(in_process, tmp_path):
    channel = in_process.create()
    channel.put("item")
    with channel.lease() as lease:
        state = server_of(channel).state
        in_process_lapse(channel, lease.generation)
        with pytest.raises(LeaseExpired, match="the lease is over: it was not kept alive"):
            channel.save(tmp_path / "tasks", acknowledge=lease)
        assert lease.num_left == 0
        assert QueueSurvey(state).num_items("default") == 1
    assert not os.path.exists(tmp_path / "tasks")


def looks_of(server):
    checkpoints = server.find(CheckpointsFeature)
    return checkpoints is not None and checkpoints._looks


def in_process_lapse(channel, generation):
    server, done = server_of(channel), threading.Event()

    def lapse():
        server.carry_out(server.state.apply(Lapse(generation)))
        done.set()

    current_session().messenger.submit(lapse)
    assert done.wait(DEADLINE_S)


def test_a_lease_of_another_channel_is_not_acknowledged(in_process, tmp_path):
    one, other = in_process.create(), in_process.create()
    other.put("item")
    with (
        other.lease() as lease,
        pytest.raises(ChannelArgumentError, match="a lease of it is to be acknowledged, and"),
    ):
        save(tmp_path / "job", one, acknowledge=lease)


# -- a job ----------------------------------------------------------------------------------------


def test_a_job_is_saved_with_its_state_in_one_cut(backend, tmp_path):
    folder = tmp_path / "job"
    tasks, results = backend.create(), backend.create()
    tasks.put("task")
    results.put(np.full(LARGE, 7))
    save(folder, tasks, results, extra={"step": 3, "weights": np.ones(5)})
    saved = load_job(folder)
    assert saved
    assert (saved.extra["step"], saved.extra["weights"].tolist()) == (3, [1.0] * 5)
    assert saved.extra["weights"].flags.writeable
    assert list(saved.channels) == [tasks.name, results.name]
    name = backend.name()
    with pytest.raises(
        CheckpointError, match=f"channel '{name}' is not in it: it has '{tasks.name}', '{results.name}'"
    ):
        Channel.create(name, restore=saved)
    tasks.delete()
    again = Channel.create(tasks.name, restore=saved)
    assert drained(again) == ["task"]


def test_a_checkpoint_and_all_its_parts_are_this_user_s_alone(in_process, tmp_path):
    channel = in_process.create()
    channel.put("a prompt that is nobody else's business")
    before = os.umask(0)
    try:
        channel.save(tmp_path / "channel")
        save(tmp_path / "job", channel, extra={"step": 7})
    finally:
        os.umask(before)
    files = [tmp_path / "channel", *(tmp_path / "job").iterdir()]
    assert len(files) == 4  # the channel's own; index, part and lock of the job's
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert (tmp_path / "job").stat().st_mode & 0o777 == 0o700


def test_where_there_is_no_checkpoint_a_job_begins_anew(in_process, tmp_path):
    saved = load_job(tmp_path / "job", missing_ok=True)
    assert not saved
    assert (saved.extra, saved.channels) == (None, {})
    assert Channel.create("tasks", restore=saved).qsize() == 0
    with pytest.raises(CheckpointError, match="it cannot be read: No such file"):
        load_job(tmp_path / "job")


def test_a_job_that_is_saved_again_has_one_checkpoint(in_process, tmp_path):
    channel = in_process.create()
    for step in range(3):
        channel.put(step)
        save(tmp_path / "job", channel, extra=step)
    assert len(os.listdir(tmp_path / "job")) == 3  # the index, a file, the lock
    saved = load_job(tmp_path / "job")
    assert saved.extra == 2
    assert drained(restored(in_process, saved.channels[channel.name])) == [0, 1, 2]


def test_the_checkpoint_before_is_there_when_the_next_one_fails(in_process, tmp_path, monkeypatch):
    one, other = in_process.create(), in_process.create()
    one.put("item")
    save(tmp_path / "job", one, other, extra="first")
    wrote = checkpoints.write_file

    def fail(path, head, *others):
        if head.spec.name == other.name:
            message = "no space left"
            raise OSError(message)
        return wrote(path, head, *others)

    monkeypatch.setattr(checkpoints, "write_file", fail)
    with one.lease() as lease:
        with pytest.raises(
            CheckpointError, match=f"channel '{other.name}': it cannot be written: OSError.*no space"
        ):
            save(tmp_path / "job", one, other, extra="second", acknowledge=lease)
        assert lease.num_left == 1
    assert load_job(tmp_path / "job").extra == "first"
    monkeypatch.setattr(checkpoints, "write_file", wrote)
    save(tmp_path / "job", one, other, extra="third")
    assert load_job(tmp_path / "job").extra == "third"
    assert len(os.listdir(tmp_path / "job")) == 4


def test_two_do_not_save_one_job_at_a_time(in_process, tmp_path, monkeypatch):
    channel = in_process.create()
    wrote, problems = checkpoints.write_file, []

    def write_and_try(*args):
        with pytest.raises(CheckpointError, match="another process, or thread, writes it now") as error:
            save(tmp_path / "job", extra="another")
        problems.append(error)
        return wrote(*args)

    monkeypatch.setattr(checkpoints, "write_file", write_and_try)
    save(tmp_path / "job", channel, extra="first")
    assert len(problems) == 1
    assert load_job(tmp_path / "job").extra == "first"


def test_a_state_that_cannot_be_pickled_changes_nothing(in_process, tmp_path):
    channel = in_process.create()
    with pytest.raises(CodecError):
        save(tmp_path / "job", channel, extra=threading.Lock())
    assert not os.path.exists(tmp_path / "job")


def test_channels_whose_names_begin_alike_have_a_file_each(in_process, tmp_path):
    channels = [Channel.create("经验回放" * 5 + in_process.name()) for _ in range(3)]
    for number, channel in enumerate(channels):
        channel.put(number)
    save(tmp_path / "job", *channels)
    saved = load_job(tmp_path / "job")
    found = [drained(restored(in_process, saved.channels[channel.name])) for channel in channels]
    assert found == [[0], [1], [2]]


def test_what_a_user_has_in_the_folder_stays(in_process, tmp_path):
    folder = tmp_path / "job"
    channel = in_process.create()
    save(folder, channel)
    theirs = {
        "prompts.channel",
        "my.channels.yaml",
        "tasks.channel.new",
        "tasks-2.channel",
        "0-tasks.channel",
    }
    for name in theirs:
        (folder / name).touch()
    (folder / "tasks-0-0123abcd.channel").touch()  # of saves that did not end
    (folder / "tasks%2Fnew-1-0123abcd.channel.new").touch()
    save(folder, channel)
    part = os.path.basename(load_job(folder).channels[channel.name])
    assert set(os.listdir(folder)) == {*theirs, "checkpoint", ".lock", part}


def test_a_subscription_is_not_saved(in_process, tmp_path):
    channel = in_process.create()
    problem = f"<Subscription 'log' of channel '{channel.name}'> is no channel, and only channels are saved"
    with channel.subscribe("log") as log, pytest.raises(CheckpointError, match=problem):
        save(tmp_path / "job", log)
    with pytest.raises(CheckpointError, match="'tasks' is no channel"):
        save(tmp_path / "job", "tasks")
    assert not os.path.exists(tmp_path / "job")


@pytest.mark.parametrize("failing", [control_wire.Look, control_wire.Save])
def test_when_one_channel_fails_the_others_keep_nothing_for_it(in_process, tmp_path, monkeypatch, failing):
    one, other = in_process.create(), Channel.create(in_process.name(), durable=tmp_path / "durable")
    begin = Requests.begin

    def fail(requests, message, *args):
        if isinstance(message, failing) and requests._client.name == other.name:
            answer = Promise()
            answer.set_exception(ChannelUnanswered(other.name, None, "look", 1.0, "it hangs"))
            return answer
        return begin(requests, message, *args)

    monkeypatch.setattr(Requests, "begin", fail)
    for channels in ((one, other), (other, one)):
        with pytest.raises(ChannelUnanswered):
            save(tmp_path / "job", *channels)
        for server in (server_of(one), server_of(other)._server):
            wait_until(lambda server=server: not looks_of(server))
            assert not server.state.queues.tally.watches
    monkeypatch.undo()
    save(tmp_path / "job", one, other)


def test_a_first_look_is_given_up_when_too_much_is_put_after_it(in_process, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "WATCHED_BYTES", 1 << 20)
    one, other = Channel.create(in_process.name(), max_bytes=1 << 20), in_process.create()
    begin = Requests.begin

    def put_much_in_between(requests, message, *args):
        if isinstance(message, control_wire.Save) and requests._client.name == one.name:
            for number in range(num_items):
                one.put(np.full(LARGE, number))
                one.get(timeout_s=DEADLINE_S)
            assert len(server_of(one).state.queues.tally.watches) == (num_items < 3)
        return begin(requests, message, *args)

    monkeypatch.setattr(Requests, "begin", put_much_in_between)
    num_items = 3
    with pytest.raises(
        CheckpointError,
        match=f"channel '{one.name}': more than 1 MiB were put after its first look, before all.*save once more",
    ):
        save(tmp_path / "job", one, other)
    assert not server_of(one).find(CheckpointsFeature)._looks
    assert not server_of(one).find(CheckpointsFeature)._given_up
    num_items = 1
    save(tmp_path / "job", one, other)


def test_what_was_lost_is_known_to_a_restored_channel(in_process, tmp_path):
    channel = in_process.create()
    for _ in range(3):
        channel.put("item")
    server, lost = server_of(channel), threading.Event()

    def lose():
        server.state.lose_items(lambda payload: "went")
        lost.set()

    current_session().messenger.submit(lose)
    assert lost.wait(DEADLINE_S)
    channel.save(tmp_path / "tasks")
    before, after = channel.stats(), restored(in_process, tmp_path / "tasks").stats()
    assert (after.num_lost, after.num_gets, after.bytes_out) == (3, 0, 0)
    assert (before.num_lost, before.num_gets, before.bytes_out) == (3, 0, 0)


def test_a_channel_is_saved_once(in_process, tmp_path):
    channel = in_process.create()
    with pytest.raises(CheckpointError, match=f"channel '{channel.name}' is to be saved twice"):
        save(tmp_path / "job", channel, channel)


def test_a_job_whose_file_is_gone_or_cut_off_is_refused(in_process, tmp_path):
    channel = in_process.create()
    channel.put("item")
    save(tmp_path / "job", channel)
    path = load_job(tmp_path / "job").channels[channel.name]
    os.truncate(path, 10)
    with pytest.raises(CheckpointError, match="it has 10 bytes, and was written with"):
        load_job(tmp_path / "job")
    os.unlink(path)
    with pytest.raises(
        CheckpointError, match=r"it cannot be seen here \(No such file.*a folder that all share"
    ):
        load_job(tmp_path / "job")


def test_who_names_the_folder_of_a_job_is_told_what_to_name(in_process, tmp_path):
    save(tmp_path / "job", in_process.create())
    with pytest.raises(
        CheckpointError, match=r"it is a folder; what is restored from is Cluster.load\(path\)"
    ):
        Channel.create("tasks", restore=tmp_path / "job")


def test_what_moves_from_channel_to_channel_meanwhile_is_in_one_of_them_at_least(backend, tmp_path):
    """Items go round in a circle, so that no order of the channels is the right one."""
    one, other = backend.create(), backend.create()
    num_items = 20
    for number in range(num_items):
        one.put(number)
    stop = threading.Event()

    def move(source, target):
        with contextlib.suppress(ChannelClosed):
            while not stop.is_set():
                with source.lease(timeout_s=DEADLINE_S) as lease:
                    target.put(lease.item)

    movers = [threading.Thread(target=move, args=pair) for pair in ((one, other), (other, one)) * 2]
    for mover in movers:
        mover.start()
    try:
        for _ in range(tries(5)):  # while four threads move as fast as they can
            save(tmp_path / "job", one, other)
            saved = load_job(tmp_path / "job")
            found = []
            for path in saved.channels.values():
                found += drained(restored(backend, path))
            assert set(found) == set(range(num_items))
    finally:
        stop.set()
        for channel in (one, other):  # what is in neither hand nor queue is waited for no longer
            channel.close()
        for mover in movers:
            mover.join(DEADLINE_S)


@pytest.mark.parametrize("upstream_first", [True, False])
def test_what_moves_between_the_cuts_of_two_channels_is_in_one_of_them(
    in_process, tmp_path, monkeypatch, upstream_first
):
    one, other = in_process.create(), in_process.create()
    one.put("item")
    begin, asked = Requests.begin, []

    def ask_and_move(requests, message, *args):
        answer = begin(requests, message, *args)
        asked.append(message)
        if isinstance(message, control_wire.Save) and len(asked) in (1, 3):
            with one.lease() as lease:
                other.put(lease.item)
        return answer

    monkeypatch.setattr(Requests, "begin", ask_and_move)
    save(tmp_path / "job", *((one, other) if upstream_first else (other, one)))
    saved = load_job(tmp_path / "job")
    assert other.get() == "item"
    assert one.qsize() == 0
    assert "item" in [
        each for path in saved.channels.values() for each in drained(restored(in_process, path))
    ]
