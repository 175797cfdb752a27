"""Which items went into a step, and what these were made of: channels that are recorded, in this process."""

import errno
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from disks import PAGE_BYTES
from rlinf.scheduler import Channel, Worker
from rlinf.testing import LocalRuntime
from rlinf_scheduler.channel import Starter, control_wire
from rlinf_scheduler.channel.features import recording
from rlinf_scheduler.channel.features.recording import RecordingFeature
from rlinf_scheduler.channel.spec import channels_of
from rlinf_scheduler.comm import encode
from rlinf_scheduler.errors import ChannelArgumentError, ChannelError, RecordingError
from rlinf_scheduler.queueing.item import ItemId, Trace
from rlinf_scheduler.session import current_session
from rlinf_scheduler.tape import deliveries, files
from rlinf_scheduler.tape.deliveries import DeliveryLog, RecordedChannel, decode_delivery
from rlinf_scheduler.tape.files import TapeFile, TapeReader
from rlinf_scheduler.tape.lineage import Recordings
from rlinf_scheduler.tape.work import MAX_SOURCES, Work, current_work, working_at
from served import DrivenRuntime, served
from waits import wait_until

DEADLINE_S = 60.0


class AtOnce(DrivenRuntime):
    """Nothing is put off."""

    def submit(self, step):
        step()


@pytest.fixture(autouse=True)
def work():
    """What the test itself works at: no other has taken anything for it."""
    with working_at(Work("test")) as work:
        yield work


@pytest.fixture
def channels(tmp_path):
    """Prompts and trajectories, both recorded."""
    with LocalRuntime():
        prompts, trajectories = Channel.create("prompts"), Channel.create("trajectories")
        prompts.record(tmp_path / "prompts.rec", payload=True)
        trajectories.record(tmp_path / "trajectories.rec")
        yield prompts, trajectories


def end(*channels):
    """Have all of it written."""
    for channel in channels:
        channel.record(None)


@pytest.fixture
def recordings(tmp_path):
    """Reads what is recorded there."""
    opened = []

    def read(*paths):
        opened.append(Recordings(paths or [tmp_path]))
        return opened[-1]

    yield read
    for each in opened:
        each.close()


def roll_out(prompts, trajectories, version):
    trajectories.put({"text": prompts.get(timeout_s=60) + "!"}, weight=3, version=version)


def test_a_step_is_traced_to_its_prompts(channels, recordings):
    prompts, trajectories = channels
    for number in range(4):
        prompts.put(f"prompt {number}")
    for version in (811, 810, 811, 811):
        roll_out(prompts, trajectories, version)
    for step in (812, 813):
        with Worker.at_step(step):
            trajectories.get_batch(max_items=2, min_items=2, timeout_s=60)
    end(*channels)
    read = recordings()
    assert read.steps == [812, 813]
    found = read.step(812)
    (batch,) = found.batches
    assert (batch.channel, batch.queue, batch.consumer) == ("trajectories", "default", "driver")
    assert [item.version for item in batch.items] == [811, 810]
    assert [item.weight for item in batch.items] == [3, 3]
    assert found.versions == {810: 1, 811: 1}
    sources = [source for item in batch.items for source in item.sources]
    assert [(source.channel, source.payload) for source in sources] == [
        ("prompts", "'prompt 0'"),
        ("prompts", "'prompt 1'"),
    ]
    told = str(found).splitlines()
    assert told[0] == "step 812: 1 item of version 810, 1 item of version 811"
    assert told[1].startswith("  driver took 2 items of 'trajectories' at ")
    assert told[2].startswith("    driver/")
    assert told[2].endswith(" bytes")
    assert "'trajectories', version 811, weight 3" in told[2]
    assert told[3].endswith("'prompts', 'prompt 0'")
    assert (
        json.loads(json.dumps(found.to_dict()))["batches"][0]["items"][0]["sources"][0]["queue"] == "default"
    )
    assert read.step(7) is None


def test_a_shards_batches_are_of_its_steps(channels, recordings):
    _, trajectories = channels
    for number in range(4):
        trajectories.put(number)
    trajectories.end()
    assert [list(batch) for batch in trajectories.shard(0, 1, batch_items=2)] == [[0, 1], [2, 3]]
    end(*channels)
    assert recordings().steps == [0, 1]


def test_sources_are_what_was_taken_since_the_last_put(channels, work):
    prompts, _ = channels
    for number in range(4):
        prompts.put(number)
    prompts.get()
    prompts.get()
    prompts.put("of two")
    prompts.put("of the same two")
    assert len(work.sources) == 2
    prompts.get()
    assert [which.number for which in work.sources] == [work.sources[0].number]
    with Worker.at_step(3):
        assert current_work().sources == []
        prompts.get()
        prompts.put("of the step's one")
        prompts.get()
        assert len(current_work().sources) == 2  # of all of the step
    assert len(work.sources) == 1


def test_a_producer_may_say_what_an_item_is_made_of(channels, recordings):
    prompts, trajectories = channels
    for number in range(3):
        prompts.put(number)
    batch = prompts.get_batch(max_items=2, min_items=2)
    with prompts.lease() as lease:
        trajectories.put("of one", sources=batch.ids[1])
        trajectories.put("of three", sources=[batch, lease])
        trajectories.put("of none", sources=())
    with pytest.raises(ChannelArgumentError, match=r"sources are batches, leases, or ids .* not 'x'"):
        trajectories.put("of what", sources="x")
    with Worker.at_step(1):
        trajectories.drain()
    end(*channels)
    (batch,) = recordings().step(1).batches
    assert [[source.payload for source in item.sources] for item in batch.items] == [
        ["1"],
        ["0", "1", "2"],
        [],
    ]


def test_of_many_sources_the_first_are_named_and_the_others_counted():
    work = Work("1")
    work.take([ItemId("a", "p", number) for number in range(MAX_SOURCES - 1)])
    work.take([ItemId("a", "p", number) for number in range(3)])
    assert len(work.sources) == MAX_SOURCES
    assert work.num_left_out == 2


def test_what_was_given_back_counts_for_who_took_it_at_last(channels, recordings):
    prompts, _ = channels
    prompts.put("again")
    with Worker.at_step(1), prompts.lease() as lease:
        lease.nack()
    with Worker.at_step(2), prompts.lease() as lease:
        assert lease.item == "again"
    end(*channels)
    read = recordings()
    assert (read.steps, read.step(1)) == ([2], None)
    assert (read.versions(1), read.versions(2)) == ({}, {None: 1})
    assert [item.payload for item in read.step(2).batches[0].items] == ["'again'"]


def test_what_subscriptions_read_is_not_recorded(channels, recordings):
    prompts, _ = channels
    with prompts.subscribe("log") as seen, Worker.at_step(1):
        prompts.put(1)
        assert seen.get(timeout_s=60) == 1
        assert not current_work().sources
        prompts.get()
    end(*channels)
    (batch,) = recordings().step(1).batches
    assert len(batch.items) == 1


def test_what_is_put_by_who_has_taken_nothing_has_no_trace_and_costs_no_bytes():
    with LocalRuntime():
        channel = Channel.create("plain")
        channel.put(1)
        batch = channel.get_batch(max_items=1)
        assert batch.ids == ()


def test_a_recording_keeps_its_bound_and_says_what_it_dropped(tmp_path, recordings):
    with LocalRuntime():
        channel = Channel.create("bounded")
        channel.record(tmp_path / "a.rec", max_bytes=20_000)
        for number in range(400):
            with Worker.at_step(number):
                channel.put(number)
                channel.get()
        end(channel)
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 20_000
    read = recordings()
    assert read.steps[-1] == 399
    assert len(read.steps) < 400
    dropped = 400 - len(read.steps)
    assert read.notes == [f"{tmp_path / 'a.rec'}: {dropped} older records dropped, beyond its bound"]


def test_what_the_disk_does_not_take_is_left_out_and_counted(tmp_path, monkeypatch, recordings):
    monkeypatch.setattr(deliveries, "BACKLOG_BYTES", -1)
    log = DeliveryLog(str(tmp_path / "a.rec"), RecordedChannel("slow", 0.0), 1 << 20)
    delivery = (0.0, "default", "actor:0", 1, [(("driver", "p", 1), None, None, 0, 5, 0)])
    log.add(delivery, [], 10)
    log.add(delivery, [], 10)
    monkeypatch.undo()
    log.add(delivery, [], 10)
    log.close()
    assert log.ended.wait(60)
    read = recordings()
    assert read.steps == [1]
    assert read.notes == [f"{tmp_path / 'a.rec'}: 2 deliveries missing: the disk took them too slowly"]


def test_a_process_does_not_stay_for_what_its_disk_takes_no_more(tmp_path, monkeypatch, caplog):
    def refuse(*_args):
        raise OSError(errno.ENOSPC, "No space left on device")

    log = DeliveryLog(str(tmp_path / "a.rec"), RecordedChannel("full", 0.0), 1 << 20)
    log.opened.result(60)
    monkeypatch.setattr("rlinf_scheduler.comm.disk.Disk.pwritev", staticmethod(refuse))
    log.add((0.0, "default", "actor:0", 1, [(("driver", "p", 1), None, None, 0, 5, 0)]), [], 10)
    assert log.is_behind
    wait_until(lambda: not log.is_behind)
    assert "a.rec' ends here" in caplog.text
    log.add((0.0, "default", "actor:0", 2, [(("driver", "p", 2), None, None, 0, 5, 0)]), [], 10)
    assert not log.is_behind
    log.close()
    assert log.ended.wait(60)


def test_a_recording_on_a_disk_that_becomes_full_ends_with_a_whole_delivery(small_disk, caplog):
    path = small_disk.path / "a.rec"
    log = DeliveryLog(str(path), RecordedChannel("full", 0.0), 1 << 20)
    log.opened.result(60)
    small_disk.fill(leave_bytes=8 * PAGE_BYTES)
    for step in range(100):
        log.add(
            (0.0, "default", "actor:0", step, [(("driver", "p", step), None, None, 0, 5, 1)]),
            [bytes(PAGE_BYTES // 2)],
            10,
        )
        wait_until(lambda: not log.is_behind)
    log.close()
    assert log.ended.wait(60)
    assert "a.rec' ends here" in caplog.text
    reader = TapeReader(str(path))
    entries = [decode_delivery(frames[0]) for _, frames in reader]
    assert [entry.step for entry in entries[1:]] == list(range(len(entries) - 1))
    assert len(entries) > 4
    assert reader.cut_bytes == 0
    reader.close()


def test_nobody_waits_for_a_disk_that_takes_nothing(tmp_path, monkeypatch, recordings):
    write, disk, is_stuck = os.pwritev, threading.Event(), threading.Event()

    def write_at_last(*args):
        is_stuck.set()
        assert disk.wait(60)
        return write(*args)

    with LocalRuntime():
        channel = Channel.create("busy")
        channel.record(tmp_path / "a.rec")
        monkeypatch.setattr("rlinf_scheduler.comm.disk.Disk.pwritev", staticmethod(write_at_last))
        for number in range(100):
            with Worker.at_step(number):
                channel.put(number, timeout_s=60)
                assert channel.get(timeout_s=60) == number
        assert is_stuck.wait(60)  # the thread that writes stands there
        disk.set()
        end(channel)
    assert recordings().steps == list(range(100))


def test_nobody_waits_for_a_disk_that_opens_no_file(tmp_path, monkeypatch, recordings):
    make, disk = os.makedirs, threading.Event()

    def make_at_last(*args, **options):
        assert disk.wait(60)
        return make(*args, **options)

    monkeypatch.setattr("rlinf_scheduler.tape.files.os.makedirs", make_at_last)
    with LocalRuntime(), ThreadPoolExecutor(1) as threads:
        channel = Channel.create("busy")
        begun = threads.submit(channel.record, tmp_path / "a.rec")
        try:
            with Worker.at_step(1):
                channel.put("before it is opened", timeout_s=30)
                assert channel.get(timeout_s=30) == "before it is opened"
            assert not begun.done()
        finally:
            disk.set()
        begun.result(60)
        with Worker.at_step(2):
            channel.put("recorded")
            channel.get()
        end(channel)
    assert recordings().steps == [2]


@pytest.mark.parametrize("durable", [False, True])
def test_a_job_that_ends_has_written_what_is_recorded(tmp_path, recordings, durable, monkeypatch):
    monkeypatch.setattr(deliveries, "GATHER_S", 0.3)
    with LocalRuntime():
        channel = Channel.create("items", durable=tmp_path / "journal" if durable else None)
        channel.record(tmp_path / "a.rec")
        channel.put("the last one")
        with Worker.at_step(1):
            channel.get()
    assert recordings(tmp_path / "a.rec").steps == [1]


@pytest.mark.parametrize("durable", [False, True])
def test_a_channel_that_is_deleted_has_written_what_is_recorded(tmp_path, recordings, durable, monkeypatch):
    monkeypatch.setattr(deliveries, "GATHER_S", 0.3)
    with LocalRuntime() as runtime:
        channel = Channel.create("items", durable=tmp_path / "journal" if durable else None)
        channel.record(tmp_path / "a.rec")
        channel.put("the last one")
        with Worker.at_step(1):
            channel.get()
        channel.delete()
        assert recordings(tmp_path / "a.rec").steps == [1]
        # Nothing is left of it for the end of the process.
        assert not [each for each in runtime.messenger._closing.busy if "recording" in repr(each)]


def test_a_torn_end_is_left_out_and_said(channels, tmp_path, recordings):
    prompts, _ = channels
    with Worker.at_step(5):
        for number in range(2):
            prompts.put(number)
            prompts.get()
    end(*channels)
    path = tmp_path / "prompts.rec"
    os.truncate(path, path.stat().st_size - 3)
    read = recordings(path)
    assert [item.payload for batch in read.step(5).batches for item in batch.items] == ["0"]
    assert "bytes are of a delivery that is not whole" in read.notes[0]


def test_what_cannot_be_recorded_or_read_is_said(channels, tmp_path, recordings):
    prompts, _ = channels
    with pytest.raises(ChannelArgumentError, match="there is a recording of that name already"):
        prompts.record(tmp_path / "trajectories.rec")
    with pytest.raises(ChannelArgumentError, match="max_bytes"):
        prompts.record(tmp_path / "b.rec", max_bytes=0)
    (tmp_path / "empty").mkdir()
    with pytest.raises(RecordingError, match=r"there is no file that ends with \.rec"):
        recordings(tmp_path / "empty")
    prompts.put("still recorded")
    with Worker.at_step(1):
        prompts.get()
    end(*channels)
    assert recordings(tmp_path / "prompts.rec").steps == [1]


def test_it_is_no_recording_of_a_rank(tmp_path, recordings):
    file = TapeFile(str(tmp_path / "a.rec"))
    file.append([b"\x81\xa4type\xa5began"])
    file.close()
    with pytest.raises(RecordingError, match="it is no recording of a channel"):
        recordings(tmp_path / "a.rec")
    assert recordings(tmp_path).steps == []  # beside those of channels


def chain(path, length, payload=None):
    """A recording in which each item is made of the two before it, and the last two go into step 1."""
    log = DeliveryLog(str(path), RecordedChannel("chain", 0.0), 1 << 20)
    frames = [] if payload is None else encode(payload).frames()
    for number in range(length):
        trace = Trace([ItemId("a", "p", before) for before in range(max(0, number - 2), number)])
        item = (ItemId("a", "p", number), trace, None, 0, 5, len(frames))
        log.add((float(number), "default", "a", 1 if number >= length - 2 else None, [item]), frames, 10)
    log.close()
    assert log.ended.wait(60)


def test_what_several_items_are_made_of_is_told_once(tmp_path, recordings):
    chain(tmp_path / "a.rec", 40)  # of more than a million ways back
    found = recordings().step(1)
    told = str(found).splitlines()
    assert len(told) < 90
    assert sum(line.strip().startswith("a/3,") and not line.endswith("(see above)") for line in told) == 1
    assert "      a/37, 'chain', 5 bytes (see above)" in told
    (older,) = found.batches[0].items
    (newer,) = found.batches[1].items
    assert [source.is_told_above for source in older.sources[1].sources] == [True, True]
    assert [source.id for source in newer.sources] == ["a/37", "a/38"]
    assert all(source.is_told_above and not source.sources for source in newer.sources)


class Unfriendly:
    def __repr__(self):
        return "two\nlines\x1b[2J" if self is not None and hasattr(self, "kind") else 1 / 0


def test_an_item_is_shown_in_one_line_whatever_it_says_of_itself(tmp_path, recordings):
    silent, loud = Unfriendly(), Unfriendly()
    loud.kind = 1
    for name, payload in (("a", silent), ("b", loud), ("c", np.zeros((2, 2)))):
        chain(tmp_path / name / "a.rec", 1, payload)
    shown = [recordings(tmp_path / name).step(1).batches[0].items[0].payload for name in "abc"]
    assert shown == ["", "two lines\N{REPLACEMENT CHARACTER}[2J", "array([[0., 0.], [0., 0.]])"]


def test_names_that_would_move_a_cursor_do_not(channels, tmp_path, recordings):
    prompts, _ = channels
    with Worker.at_step(1):
        prompts.put(1, queue_name="two\nlines\x1b[2J")
        prompts.get("two\nlines\x1b[2J")
    end(*channels)
    told = str(recordings().step(1))
    assert len(told.splitlines()) == 3
    assert "\x1b" not in told


def test_recordings_of_ranks_beside_them_are_not_kept_open(tmp_path, recordings):
    chain(tmp_path / "channel.rec", 1)
    for number in range(3):
        file = TapeFile(str(tmp_path / f"rank-{number}.rec"))
        file.append([b"\x81\xa4type\xa5began"])
        file.close()
    before = len(os.listdir("/proc/self/fd"))
    recordings()
    assert len(os.listdir("/proc/self/fd")) == before + 1


def test_whoever_held_an_item_before_keeps_its_id_in_a_checkpoint(tmp_path, recordings):
    with LocalRuntime():
        channel = Channel.create("saved")
        channel.put("kept", sources=())
        channel.save(tmp_path / "saved")
        again = Channel.create("again", restore=tmp_path / "saved")
        again.record(tmp_path / "a.rec")
        with Worker.at_step(1):
            (which,) = again.get_batch(max_items=1).ids
        assert ItemId(*which).producer == "driver"
        end(again)
    (batch,) = recordings().step(1).batches
    assert [item.id for item in batch.items] == [f"driver/{which[2]}"]


def test_a_durable_channel_is_recorded_and_told_nothing_of_it(tmp_path, recordings):
    with LocalRuntime():
        channel = Channel.create("durable", durable=tmp_path / "journal")
        channel.record(tmp_path / "a.rec", payload=True)
        channel.put("kept")
        with Worker.at_step(1):
            assert channel.get() == "kept"
        end(channel)
    assert [item.payload for item in recordings().step(1).batches[0].items] == ["'kept'"]


def test_the_file_is_of_its_user_alone(channels, tmp_path):
    assert (tmp_path / "prompts.rec").stat().st_mode & 0o777 == 0o600
    TapeReader(str(tmp_path / "prompts.rec")).close()


def test_a_recording_for_which_nobody_waits_any_more_is_not_begun(tmp_path):
    answers, wanted = [], control_wire.Record(str(tmp_path / "items.rec"), False, 1 << 20)
    server = served(AtOnce())
    server.answer(SimpleNamespace(head=wanted, is_cancelled=True, reply=answers.append))
    wait_until(lambda: answers)
    assert not server.on_delivery


def test_the_step_of_a_get_that_is_refused_is_forgotten(channels):
    prompts, _ = channels
    prompts.set_version(1, "paced", batch_items=1)
    server = current_session().service(Starter)._servers["prompts"]
    with Worker.at_step(3), pytest.raises(ChannelError, match="gives slots"):
        prompts.get_group(2, "paced")
    assert not server.find(RecordingFeature)._steps


class SlowDisk:
    """What is written to recordings waits while it is held."""

    def __init__(self, monkeypatch):
        write, self._free = files.append_whole, threading.Event()
        self._free.set()
        monkeypatch.setattr(files, "append_whole", lambda *args: self._free.wait(DEADLINE_S) and write(*args))

    def hold(self):
        self._free.clear()

    def go_on(self):
        self._free.set()


@pytest.fixture
def disk(monkeypatch):
    disk = SlowDisk(monkeypatch)
    yield disk
    disk.go_on()


def test_a_recording_that_is_not_written_in_time_is_told_of_and_nobody_waits_for_it(
    channels, tmp_path, disk, monkeypatch, caplog
):
    monkeypatch.setattr(recording, "CLOSE_S", 0.05)
    prompts, _ = channels
    disk.hold()
    prompts.put("late")
    assert prompts.get() == "late"
    prompts.delete()
    told = f"channel 'prompts': its recording '{tmp_path / 'prompts.rec'}' is not all on disk after 0.05 s"
    assert told in caplog.text


@pytest.mark.parametrize("durable", [False, True], ids=["in memory", "durable"])
def test_a_channel_whose_disk_is_slow_is_deleted_while_others_go_on(
    channels, tmp_path, disk, recordings, monkeypatch, durable
):
    monkeypatch.setattr(recording, "CLOSE_S", 20.0)
    slow, other = Channel.create("slow", durable=tmp_path / "journal" if durable else None), channels[1]
    slow.record(tmp_path / "slow.rec", payload=True)
    disk.hold()
    with Worker.at_step(1):
        slow.put("recorded")
        assert slow.get() == "recorded"
    with ThreadPoolExecutor(1) as pool:
        deleted = pool.submit(slow.delete, timeout_s=DEADLINE_S)
        wait_until(lambda: "slow" not in channels_of(current_session()))
        began = time.monotonic()
        for number in range(3):
            other.put(number, timeout_s=DEADLINE_S)
            assert other.get(timeout_s=DEADLINE_S) == number
        took_s = time.monotonic() - began
        assert not deleted.done()
        disk.go_on()
        deleted.result(DEADLINE_S)
    assert took_s < 10
    assert [item.payload for item in recordings(tmp_path / "slow.rec").step(1).batches[0].items] == [
        "'recorded'"
    ]
