"""Channels that survive their process: `kill -9` of whoever holds them, and everybody goes on."""

from __future__ import annotations

import contextlib
import errno
import itertools
import multiprocessing
import operator
import os
import queue
import re
import shutil
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata

import msgspec
import numpy as np
import pytest
from durable_roles import hold, measure_opening

from disks import PAGE_BYTES
from rlinf.scheduler import Channel
from rlinf.testing import LocalRuntime
from rlinf_scheduler.channel import (
    ChannelReport,
    channels_of,
    connection,
    unheld_channels,
)
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.durable import durable_channel, opening
from rlinf_scheduler.durable.checkpoint_files import read_channel
from rlinf_scheduler.durable.durable_channel import DurableChannel
from rlinf_scheduler.durable.journal import Journal
from rlinf_scheduler.durable.journal_records import JournaledCommit, ReceivedEnvelope
from rlinf_scheduler.errors import (
    ChannelArgumentError,
    ChannelClosed,
    ChannelJournalError,
    ChannelLost,
    ChannelNotFound,
    ChannelUnanswered,
    CommError,
    LeaseExpired,
)
from scarce_threads import refuse_thread
from waits import wait_until

DEADLINE_S = 60.0
# No client says this.
UNKNOWN = msgspec.Raw(msgspec.msgpack.encode([99]))
_numbers = itertools.count()


class Holders:
    """One durable channel, and the processes that hold it one after the other."""

    def __init__(self, runtime, folder):
        self.context = multiprocessing.get_context("forkserver")
        self.runtime = runtime
        self.folder = str(folder)
        self.name = f"durable-{next(_numbers)}"
        self.options = {}
        self.process = self.pipe = None

    def start(self, **options):
        self.options = options or self.options
        self.pipe, theirs = self.context.Pipe()
        arguments = (self.runtime.address, theirs, self.name, self.folder, self.options)
        self.process = self.context.Process(target=hold, args=arguments, daemon=True)
        self.process.start()
        theirs.close()
        assert self.pipe.poll(DEADLINE_S)
        error = self.pipe.recv()
        if error is not None:
            raise error
        return Channel.connect(self.name, timeout_s=DEADLINE_S)

    def kill(self):
        self.process.kill()
        self.process.join(DEADLINE_S)

    def restart(self):
        self.kill()
        self.start()


@pytest.fixture
def holders(tmp_path):
    with LocalRuntime() as runtime:
        holders = Holders(runtime, tmp_path / "journal")
        yield holders
    if holders.process is not None:
        holders.kill()


def drain(channel, count):
    return [channel.get(timeout_s=DEADLINE_S) for _ in range(count)]


def put_for_ever(channel, put):
    for number in itertools.count():
        channel.put((number, bytes(1_000)))
        put.append(number)


@pytest.mark.parametrize("survives", ["machine", "process"])
def test_what_was_put_is_there_after_the_death_of_its_process_in_order(holders, survives):
    channel = holders.start(survives=survives)
    large = np.arange(100_000)
    for item in range(5):
        channel.put(item, weight=item)
    channel.put(large)
    assert drain(channel, 2) == [0, 1]
    holders.restart()
    assert drain(channel, 3) == [2, 3, 4]
    np.testing.assert_array_equal(channel.get(timeout_s=DEADLINE_S), large)
    assert channel.empty()


@pytest.fixture(params=["turns", "whole"])
def journal_of_large_items(request, tmp_path, monkeypatch):
    """A journal that holds 96 items of a megabyte, as turns or written whole."""
    written = threading.Event()
    finish = Journal.finish

    def note_finished(journal, new, since):
        finish(journal, new, since)
        if since:
            written.set()

    monkeypatch.setattr(Journal, "finish", note_finished)
    monkeypatch.setattr(durable_channel, "GROWN_BYTES", 1 << 30)
    with LocalRuntime() as runtime:
        channel = Channel.create("held", durable=tmp_path, survives="process")
        for number in range(96):
            channel.put(np.full(1 << 20, number, np.uint8), timeout_s=DEADLINE_S)
        if request.param == "whole":
            runtime.messenger.submit(runtime._servers._servers["held"].write_whole)
            assert written.wait(DEADLINE_S)
    return tmp_path


def test_who_comes_to_hold_a_channel_needs_little_more_memory_than_what_that_holds(journal_of_large_items):
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    process = context.Process(target=measure_opening, args=(theirs, journal_of_large_items), daemon=True)
    process.start()
    assert ours.poll(DEADLINE_S)
    took_bytes, num_items = ours.recv()
    process.join(DEADLINE_S)
    assert num_items == 96
    # What is read before it happens is in memory, too.
    assert took_bytes < 1.35 * (96 << 20)


def test_a_journal_of_which_little_is_read_at_a_time_is_told_again_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(opening, "READ_BYTES", 1)
    with LocalRuntime():
        channel = Channel.create("held", durable=tmp_path)
        for number in range(20):
            channel.put(np.full(100_000, number), timeout_s=DEADLINE_S)
        assert int(channel.get(timeout_s=DEADLINE_S)[0]) == 0
    with LocalRuntime():
        channel = Channel.create("held", durable=tmp_path)
        assert [int(array[-1]) for array in drain(channel, 19)] == list(range(1, 20))


def test_damage_that_shows_only_when_much_has_happened_again_is_told_to_whoever_waits(tmp_path, monkeypatch):
    monkeypatch.setattr(opening, "READ_BYTES", 1)
    with LocalRuntime():
        channel = Channel.create("held", durable=tmp_path)
        for number in range(20):
            channel.put(number, timeout_s=DEADLINE_S)
    path = tmp_path / "journal"
    content = bytearray(path.read_bytes())
    content[len(content) * 3 // 4] ^= 1
    path.write_bytes(content)
    with LocalRuntime(), pytest.raises(ChannelJournalError, match="is damaged at byte"):
        Channel.create("held", durable=tmp_path)


def test_what_was_under_way_goes_on_when_another_process_holds_the_channel(holders):
    channel = holders.start(maxsize=2)
    getting = channel.get(queue_name="later", async_op=True)
    channel.put("a")
    channel.put("b")
    putting = channel.put("c", async_op=True)
    holders.kill()
    meanwhile = [channel.put(item, queue_name="meanwhile", async_op=True) for item in range(2)]
    holders.start()
    for handle in meanwhile:
        handle.wait(DEADLINE_S)
    assert drain(channel, 2) == ["a", "b"]
    putting.wait(DEADLINE_S)
    assert drain(channel, 1) == ["c"]
    channel.put("d", queue_name="later", timeout_s=DEADLINE_S)
    assert getting.wait(DEADLINE_S) == "d"
    assert [channel.get(queue_name="meanwhile", timeout_s=DEADLINE_S) for _ in range(2)] == [0, 1]


def test_a_lease_outlives_the_process_and_is_acknowledged_to_the_next(holders):
    channel = holders.start()
    channel.put("kept")
    channel.put("given back")
    with channel.lease(timeout_s=DEADLINE_S) as lease:
        assert lease.item == "kept"
        holders.restart()
        assert channel.stats().num_leased == 1
    assert channel.stats().num_leased == 0
    with channel.lease(timeout_s=DEADLINE_S) as lease:
        holders.restart()
        lease.nack()
    with channel.lease(timeout_s=DEADLINE_S) as lease:
        assert (lease.item, lease.attempt) == ("given back", 2)


def test_a_lease_that_is_not_kept_alive_lapses_after_a_restart_too_and_its_number_is_not_given_again(holders):
    channel = holders.start()
    channel.put("item")
    context = channel.lease(ttl_s=30.0, work_deadline_s=0.5, timeout_s=DEADLINE_S)
    lease = context.__enter__()
    holders.restart()
    with channel.lease(timeout_s=DEADLINE_S) as again:
        assert again.attempt == 2
        with pytest.raises(LeaseExpired):
            lease.ack()


def test_the_state_of_the_channel_is_kept_ends_dead_letters_counters_and_steps(holders):
    channel = holders.start(max_attempts=1, producers=1)
    with (
        pytest.raises(ZeroDivisionError),
        channel.lease(timeout_s=DEADLINE_S) if channel.put("dead") else channel.lease(),
    ):
        raise ZeroDivisionError
    for item in range(4):
        channel.put(item, queue_name="steps")
    shard = channel.shard(0, 1, queue_name="steps", batch_items=2)
    assert shard.next_batch(timeout_s=DEADLINE_S).step == 0
    channel.put("last", queue_name="ended")
    channel.end("ended")
    holders.restart()
    assert [letter.item for letter in channel.dead_letters()] == ["dead"]
    assert shard.next_batch(timeout_s=DEADLINE_S).step == 1
    assert channel.get("ended", timeout_s=DEADLINE_S) == "last"
    with pytest.raises(ChannelClosed):
        channel.get("ended", timeout_s=DEADLINE_S)
    assert channel.stats().num_puts == 6
    with channel.producer():
        holders.restart()
    with pytest.raises(ChannelClosed):
        channel.put("too late", timeout_s=DEADLINE_S)


def test_a_journal_that_was_written_whole_says_the_same(holders):
    channel = holders.start()
    for item in range(100):
        channel.put(item)
    getting = channel.get(queue_name="later", async_op=True)
    with channel.lease(timeout_s=DEADLINE_S) as lease:
        assert lease.item == 0
        assert drain(channel, 89) == list(range(1, 90))
        write_whole(holders, channel)
        holders.restart()
    assert drain(channel, 10) == list(range(90, 100))
    channel.put("x", queue_name="later")
    assert getting.wait(DEADLINE_S) == "x"
    assert channel.stats().num_leased == 0


def test_a_journal_that_was_written_whole_knows_who_is_admitted(holders):
    channel = holders.start()
    channel.set_version(0, batch_items=2)
    slots = [channel.admit(max_lag=0, timeout_s=DEADLINE_S).__enter__() for _ in range(2)]
    channel.put("first", slot=slots[0])
    write_whole(holders, channel)
    holders.restart()
    channel.put("second", slot=slots[1])
    assert channel.get_batch(max_items=2, min_items=2, timeout_s=DEADLINE_S) == ["first", "second"]
    channel.set_version(1, batch_items=2)
    with channel.admit(max_lag=0, timeout_s=DEADLINE_S) as slot:
        channel.put("third", slot=slot)


@pytest.mark.parametrize("whole", [False, True], ids=["since", "written whole"])
def test_a_subscription_survives_it_and_misses_nothing(holders, whole):
    channel = holders.start(maxsize=0)
    seen = channel.subscribe("log", maxsize=3)
    for item in range(2):
        channel.put(item)
    assert drain(channel, 1) == [0]
    with seen.lease(timeout_s=DEADLINE_S) as lease:
        if whole:
            write_whole(holders, channel)
        holders.restart()
        assert lease.item == 0
    for item in (2, 3, 4):
        channel.put(item)
    assert channel.stats().subscriptions[0].num_items == 3
    assert seen.num_dropped() == 1
    assert drain(seen, 3) == [2, 3, 4]
    assert drain(channel, 4) == [1, 2, 3, 4]
    seen.unsubscribe()
    assert not channel.stats().subscriptions


def write_whole(holders, channel):
    file = os.stat(f"{holders.folder}/journal").st_ino
    holders.pipe.send("write whole")
    deadline = time.monotonic() + DEADLINE_S
    while os.stat(f"{holders.folder}/journal").st_ino == file:
        assert time.monotonic() < deadline
        channel.put("meanwhile", queue_name="meanwhile", timeout_s=DEADLINE_S)


def test_a_journal_that_cannot_be_written_whole_grows_and_is_tried_less_and_less_often(tmp_path, monkeypatch):
    tried_after, commits = [], []
    append = Journal.append

    def count_commit(journal, head, frames):
        commits.append(None)
        append(journal, head, frames)

    def too_large(_journal, _head, _image, _frames):
        tried_after.append(len(commits))
        raise MemoryError

    def no_room(_journal, new, _since):
        tried_after.append(len(commits))
        new.drop()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(durable_channel, "GROWN_COMMITS", 4)
    monkeypatch.setattr(Journal, "append", count_commit)
    for owner, name, failing in (
        (Journal, "begin", too_large),
        (Journal, "finish", no_room),
    ):
        with monkeypatch.context() as patch, LocalRuntime():
            commits.clear()
            channel = Channel.create("grows", durable=tmp_path / name)
            patch.setattr(owner, name, failing)
            tried_after.clear()
            for number in itertools.count():
                channel.put(number, timeout_s=DEADLINE_S)
                if len(tried_after) == 3:
                    break
            # After 4, 8 and 16 turns more, and as many again as it took to try.
            assert all(map(operator.ge, tried_after, [5, 5 + 9, 5 + 9 + 17]))
        with LocalRuntime():
            channel = Channel.create("grows", durable=tmp_path / name)
            assert drain(channel, number + 1) == list(range(number + 1))


def test_what_happens_while_a_journal_is_written_whole_is_not_left_to_the_io_thread(tmp_path, monkeypatch):
    sync, finish = Journal.sync, Journal.finish
    busy, left = itertools.count(), queue.SimpleQueue()

    def sync_while_much_happens(journal, new):
        if channel is not None and next(busy) < 2:
            channel.put(bytes(2 << 20), timeout_s=DEADLINE_S)
        sync(journal, new)

    def note_what_is_left(journal, new, since):
        if since:
            left.put(journal.size_bytes - since)
        finish(journal, new, since)

    monkeypatch.setattr(durable_channel, "GROWN_COMMITS", 4)
    monkeypatch.setattr(Journal, "sync", sync_while_much_happens)
    monkeypatch.setattr(Journal, "finish", note_what_is_left)
    channel = None
    with LocalRuntime():
        channel = Channel.create("busy", durable=tmp_path)
        refused = refuse_thread(monkeypatch, "_write")
        for number in range(5):
            channel.put(number, timeout_s=DEADLINE_S)
        assert left.get(timeout=DEADLINE_S) <= 1 << 20
    assert next(busy) > 2
    assert refused.is_set()
    with LocalRuntime():
        items = drain(Channel.create("busy", durable=tmp_path), 7)
        assert sorted(item if isinstance(item, int) else len(item) for item in items) == [
            *range(5),
            2 << 20,
            2 << 20,
        ]


def test_a_thread_that_writes_a_journal_whole_when_its_process_leaves_ends_in_silence(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(durable_channel, "GROWN_COMMITS", 4)
    has_left = threading.Event()
    sync = Journal.sync
    with LocalRuntime():
        channel = Channel.create("left", durable=tmp_path)
        monkeypatch.setattr(Journal, "sync", lambda *new: has_left.wait(DEADLINE_S) and sync(*new))
        for number in range(5):
            channel.put(number, timeout_s=DEADLINE_S)
        wait_until(lambda: len(os.listdir(tmp_path)) == 3)
    has_left.set()
    wait_until(lambda: sorted(os.listdir(tmp_path)) == ["journal", "lock"])
    with LocalRuntime():
        assert drain(Channel.create("left", durable=tmp_path), 5) == list(range(5))
    assert "is not made smaller" not in caplog.text


def test_to_ask_what_is_there_writes_nothing_and_is_behind_what_was_said_before(holders):
    channel = holders.start()
    for number in range(10):
        putting = channel.put(number, async_op=True)
        assert channel.qsize() == number + 1
        putting.wait(DEADLINE_S)
    assert channel.stats().num_puts == 10
    size = os.path.getsize(f"{holders.folder}/journal")
    for _ in range(10):
        assert (channel.qsize(), channel.stats().num_items, channel.explain().num_items) == (10, 10, 10)
    assert os.path.getsize(f"{holders.folder}/journal") == size
    holders.kill()
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(channel.qsize)
        holders.start()
        assert asked.result(DEADLINE_S) == 10


def test_a_durable_channel_that_was_deleted_leaves_nothing_to_be_done_when_its_process_leaves(tmp_path):
    def to_be_done(runtime):
        messenger = runtime.messenger
        parts = (messenger._loop._finally, messenger._closing.busy, runtime._closers, runtime._fork_callbacks)
        return [len(part) for part in parts]

    with LocalRuntime() as runtime:
        first = None
        for number in range(3):
            channel = Channel.create("short", durable=tmp_path / str(number))
            channel.put("item", timeout_s=DEADLINE_S)
            channel.delete(timeout_s=DEADLINE_S)
            wait_until(lambda: not channels_of(runtime))
            first = first or to_be_done(runtime)
        # What others do meanwhile is over at some time.
        wait_until(lambda: all(map(operator.le, to_be_done(runtime), first)))


def test_a_journal_that_takes_long_to_remove_holds_up_nobody_but_who_deletes_its_channel(
    tmp_path, monkeypatch
):
    remove, disk = Journal.remove, threading.Event()
    monkeypatch.setattr(Journal, "remove", lambda journal: disk.wait(2 * DEADLINE_S) and remove(journal))
    with LocalRuntime() as runtime, ThreadPoolExecutor(1) as pool:
        large, other = Channel.create("large", durable=tmp_path / "journal"), Channel.create("other")
        large.put("item", timeout_s=DEADLINE_S)
        deleted = pool.submit(large.delete, timeout_s=DEADLINE_S)
        try:
            wait_until(lambda: "large" not in channels_of(runtime))
            other.put("goes on", timeout_s=DEADLINE_S)
            assert other.get(timeout_s=DEADLINE_S) == "goes on"
            assert not deleted.done()
        finally:
            disk.set()
        deleted.result(DEADLINE_S)
        assert not (tmp_path / "journal").exists()
        assert Channel.create("large", durable=tmp_path / "journal").empty()


def test_a_channel_whose_journal_cannot_be_removed_is_deleted_and_its_disk_told_of(
    tmp_path, monkeypatch, caplog
):
    def fail(_journal):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Journal, "remove", fail)
    with LocalRuntime() as runtime:
        channel = Channel.create("stays", durable=tmp_path / "journal")
        channel.delete(timeout_s=DEADLINE_S)
        assert "stays" not in channels_of(runtime)
    assert "channel 'stays': its journal cannot be removed: [Errno 30] Read-only file system" in caplog.text


def test_an_operation_waits_for_the_next_process_no_longer_than_it_may(holders, monkeypatch):
    # It is the I/O thread that says why, however late it is.
    monkeypatch.setattr(connection, "IO_THREAD_S", DEADLINE_S)
    channel = holders.start()
    assert channel.qsize() == 0
    kill_and_notice(holders, channel)
    began = time.monotonic()
    with pytest.raises(ChannelUnanswered, match="its process has been gone for"):
        channel.get(timeout_s=0.5)
    assert time.monotonic() - began < DEADLINE_S
    with pytest.raises(ChannelUnanswered, match="no other one holds the channel yet"):
        channel.put("item", timeout_s=0.5)
    holders.start()
    # Whether that was put is not known, and it was.
    assert channel.get(timeout_s=DEADLINE_S) == "item"


def test_a_look_waits_for_the_next_process_and_sees_what_it_holds(holders):
    channel = holders.start()
    channel.put("first")
    holders.kill()
    with ThreadPoolExecutor(1) as pool:
        looked = pool.submit(channel.peek)
        holders.start()
        assert looked.result(DEADLINE_S) == "first"


def test_a_full_disk_ends_the_channel_with_the_reason_and_loses_nothing_that_was_answered(holders):
    channel = holders.start(disk_bytes=100_000)
    put = []
    with pytest.raises(ChannelLost, match=r"its journal cannot be written: .*File too large"):
        put_for_ever(channel, put)
    holders.kill()
    again = holders.start(disk_bytes=None)
    assert [number for number, _ in drain(again, len(put))] == put
    assert again.empty()


def test_a_full_disk_leaves_a_journal_of_what_was_answered_and_nothing_else(small_disk):
    with LocalRuntime() as runtime:
        (small_disk.path / "ballast").write_bytes(bytes(16 * PAGE_BYTES))
        holders = Holders(runtime, small_disk.path / "journal")
        channel = holders.start()
        put = []
        with pytest.raises(ChannelLost, match=r"its journal cannot be written: .*No space left"):
            put_for_ever(channel, put)
        holders.kill()
        with contextlib.closing(Journal(holders.folder, "name")) as journal:
            size = os.stat(f"{holders.folder}/journal").st_size
            assert len(list(journal.read())) > len(put)
            assert journal.size_bytes == size
        os.truncate(small_disk.path / "ballast", 0)
        again = holders.start()
        assert [number for number, _ in drain(again, len(put))] == put
        assert again.empty()
        holders.kill()


def test_a_channel_whose_journal_is_deleted_answers_nobody_any_more(holders):
    channel = holders.start()
    channel.put("before")
    shutil.rmtree(holders.folder)
    with pytest.raises(ChannelLost, match=r"its journal cannot be written: .*deleted, moved or replaced"):
        channel.put("lost")
    with LocalRuntime():
        other = Channel.create(holders.name, durable=holders.folder)
        other.put("of the other")
        assert drain(other, 1) == ["of the other"]


def test_it_is_saved_as_any_other_and_a_new_one_is_restored_from_a_checkpoint(holders, tmp_path):
    channel = holders.start()
    for item in range(4):
        channel.put(item)
    with channel.lease(timeout_s=DEADLINE_S) as lease:
        channel.save(tmp_path / "saved", acknowledge=lease)
    holders.restart()
    channel.save(tmp_path / "again")
    assert drain(channel, 3) == [1, 2, 3]
    holders.kill()
    with pytest.raises(ChannelJournalError, match="is there already"):
        holders.start(restore=str(tmp_path / "saved"))
    restored = Holders(holders.runtime, tmp_path / "other")
    channel = restored.start(restore=str(tmp_path / "saved"))
    assert drain(channel, 1) == [1]
    restored.options = {}
    restored.restart()
    assert drain(channel, 2) == [2, 3]
    restored.kill()
    with pytest.raises(ChannelArgumentError, match="does not survive them"):
        Channel.create("never", durable=tmp_path / "never", holds="node")


@pytest.mark.parametrize("with_others", [False, True], ids=["channel.save", "cluster.save"])
def test_what_a_plain_get_took_is_not_saved_again(holders, tmp_path, with_others):
    channel = holders.start(survives="process")
    other = Channel.create(f"{holders.name}-beside")
    for number in range(10):
        channel.put(number)
        other.put(number)
        assert (channel.get(timeout_s=DEADLINE_S), other.get(timeout_s=DEADLINE_S)) == (number, number)
        path = tmp_path / str(number)
        if with_others:
            holders.runtime.save(path, channels=[channel, other], extra=number + 1)
            notes = holders.runtime.load(path)
            files = [notes.file_of(holders.name), notes.file_of(other.name)]
        else:
            files = [path, tmp_path / f"beside-{number}"]
            channel.save(files[0])
            other.save(files[1])
        assert [num_items(file) for file in files] == [0, 0]


def test_a_save_waits_for_the_next_process_no_longer_than_it_may_and_hears_that_there_is_none(
    holders, tmp_path
):
    channel = holders.start()
    channel.put("item")
    kill_and_notice(holders, channel)
    with pytest.raises(ChannelUnanswered, match="no other one holds the channel yet"):
        channel.save(tmp_path / "late", timeout_s=0.3)
    with ThreadPoolExecutor() as pool:
        saves = [pool.submit(channel.save, tmp_path / "saved", timeout_s=each) for each in (None, 600)]
        # Behind what they have said.
        with pytest.raises(ChannelUnanswered):
            channel.save(tmp_path / "late", timeout_s=0.3)
        anew(holders).start()
        for save in saves:
            with pytest.raises(ChannelLost, match="another channel has its name now"):
                save.result(DEADLINE_S)
    for ask in (lambda: channel.save(tmp_path / "saved"), channel.qsize):
        with pytest.raises(ChannelLost, match="another channel has its name now"):
            ask()


def anew(holders):
    """The same name, and nothing of what was."""
    holders.folder += "-anew"
    return holders


def test_a_save_that_has_waited_for_the_next_process_is_behind_what_was_said_before_it(holders, tmp_path):
    channel = holders.start()
    channel.put("taken")
    channel.put("left")
    handle = channel.get(async_op=True)
    assert handle.wait(DEADLINE_S) == "taken"
    kill_and_notice(holders, channel)
    putting = channel.put("said meanwhile", async_op=True)
    with ThreadPoolExecutor() as pool:
        saving = pool.submit(channel.save, tmp_path / "saved")
        holders.start()
        saving.result(DEADLINE_S)
    putting.wait(DEADLINE_S)
    assert num_items(tmp_path / "saved") == 2


def test_a_channel_that_no_process_holds_is_listed_and_said_to_be_so(holders):
    holders.start()
    assert not unheld_channels(holders.runtime)
    holders.kill()
    wait_until(lambda: unheld_channels(holders.runtime))
    assert holders.name in channels_of(holders.runtime)
    assert "no process holds it now" in ChannelReport.unheld(holders.name).headline
    with pytest.raises(ChannelNotFound, match="whoever creates it again holds it"):
        Channel.connect(holders.name, timeout_s=0)
    holders.start()
    assert not unheld_channels(holders.runtime)
    assert holders.name in channels_of(holders.runtime)


def kill_and_notice(holders, channel):
    """Until then what is asked of the process that dies is not said to wait for the next one."""
    holders.kill()
    wait_until(lambda: channel._connection().client.requests.condition)


def num_items(file):
    return read_channel(file).head.num_payloads


def test_a_journal_whose_lock_is_free_a_moment_later_is_read_then(tmp_path, monkeypatch):
    held, refused = Journal(str(tmp_path), "held"), []

    def open_journal(*args):
        try:
            return Journal(*args)
        except ChannelJournalError as error:
            refused.append(error)
            held.close()  # as of a process that is being killed
            raise

    monkeypatch.setattr(opening, "Journal", open_journal)
    with LocalRuntime():
        channel = Channel.create("held", durable=tmp_path)
        channel.put("item", timeout_s=DEADLINE_S)
        assert drain(channel, 1) == ["item"]
    assert len(refused) == 1


def test_two_processes_that_live_do_not_hold_one_channel(holders):
    holders.start()
    other = Holders(holders.runtime, holders.folder)
    other.name = holders.name
    with pytest.raises(
        ChannelJournalError, match=f"is held by a process that lives: pid {holders.process.pid}"
    ):
        other.start()


def test_a_child_of_its_process_that_outlives_it_does_not_hold_it(holders):
    channel = holders.start()
    channel.put("item")
    holders.pipe.send("fork")
    child = holders.pipe.recv()
    try:
        holders.restart()
        assert drain(channel, 1) == ["item"]
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_deleted_channel_leaves_nothing_behind(holders):
    channel = holders.start()
    channel.put("item")
    channel.delete(timeout_s=DEADLINE_S)
    assert not os.path.exists(holders.folder)
    with pytest.raises(ChannelLost, match="deleted"):
        channel.put("item")


def test_what_was_being_deleted_when_its_process_died_is_deleted(tmp_path, monkeypatch):
    freed = threading.Event()
    with LocalRuntime() as runtime, monkeypatch.context() as patched:
        patched.setattr(DurableChannel, "_on_freed", lambda *_: freed.set())
        with pytest.raises(ChannelUnanswered):
            Channel.create("deleted", durable=tmp_path / "journal").delete(timeout_s=1.0)
        assert freed.wait(DEADLINE_S)
        runtime.messenger.close(0.0)  # as it dies: what is not deleted yet is not waited for
    with LocalRuntime():
        with pytest.raises(ChannelLost, match="is deleted now"):
            Channel.create("deleted", durable=tmp_path / "journal")
        assert Channel.create("deleted", durable=tmp_path / "journal").empty()


def test_a_channel_of_another_name_or_bound_is_refused_with_what_is_there(holders):
    holders.start(maxsize=3)
    holders.kill()
    with pytest.raises(ChannelJournalError, match="created with maxsize=3 and not 4"):
        holders.start(maxsize=4)
    holders.name = "another"
    with pytest.raises(ChannelJournalError, match="created with name='durable"):
        holders.start(maxsize=3)


@pytest.mark.parametrize(
    "version", ["0.0.1", metadata.version("rlinf-scheduler")], ids=["older", "older rules"]
)
def test_a_journal_of_another_version_is_refused_with_what_to_do(holders, monkeypatch, version):
    with monkeypatch.context() as patched:
        patched.setattr("rlinf_scheduler.durable.journal_records.VERSION", version)
        with LocalRuntime():
            Channel.create(holders.name, durable=holders.folder).put("item")
    with pytest.raises(
        ChannelJournalError, match=f"was written by version {re.escape(version)} of this library"
    ):
        holders.start()


def test_a_journal_that_was_written_from_sources_which_were_not_installed_is_read(holders, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr("rlinf_scheduler.durable.journal_records.VERSION", "unknown, rules 4")
        with LocalRuntime():
            Channel.create(holders.name, durable=holders.folder).put("item")
    assert holders.start().get(timeout_s=DEADLINE_S) == "item"


def test_a_journal_with_messages_of_another_shape_is_refused(holders):
    holders.start().put("item")
    holders.kill()
    journal = Journal(holders.folder, holders.name)
    commits = [msgspec.msgpack.decode(block.head, type=JournaledCommit) for block in list(journal.read())[2:]]
    commit = next(
        commit for commit in commits if any(isinstance(record, ReceivedEnvelope) for record in commit.records)
    )
    for record in commit.records:
        if isinstance(record, ReceivedEnvelope):
            record.sizes = []
            record.envelope = msgspec.structs.replace(record.envelope, head=UNKNOWN)
    journal.append(msgspec.msgpack.encode(commit), [])
    journal.close()
    with pytest.raises(ChannelJournalError, match="cannot be read"):
        holders.start()


def test_a_client_that_says_what_cannot_be_read_hears_so_and_harms_no_journal(holders):
    channel = holders.start()
    channel.put("item")
    client = channel._connection().client
    answer = Promise()
    holders.runtime.messenger.submit(
        lambda: client._transport.ask(UNKNOWN, DEADLINE_S).add_done_callback(answer.set_result)
    )
    with pytest.raises(CommError, match="another shape"):
        answer.result(DEADLINE_S).result(0)
    holders.restart()
    assert drain(channel, 1) == ["item"]


def test_a_process_that_is_stopped_and_killed_leaves_its_channel_to_the_next(holders):
    channel = holders.start()
    channel.put("item")
    os.kill(holders.process.pid, signal.SIGSTOP)
    waiting = channel.put("more", async_op=True)
    holders.restart()
    waiting.wait(DEADLINE_S)
    assert drain(channel, 2) == ["item", "more"]


def test_a_job_that_begins_anew_finds_what_the_last_one_had_not_acknowledged(holders, tmp_path):
    channel = holders.start()
    for item in range(3):
        channel.put(item)
    assert channel.get() == 0
    lease = channel.lease(ttl_s=600.0, timeout_s=DEADLINE_S)
    assert lease.__enter__().item == 1
    holders.kill()
    with LocalRuntime() as runtime:
        successor = Holders(runtime, holders.folder)
        successor.name = holders.name
        again = successor.start()
        with again.lease(timeout_s=DEADLINE_S) as first:
            assert (first.item, first.attempt) == (1, 2)
        assert drain(again, 1) == [2]
        again.delete(timeout_s=DEADLINE_S)
        successor.kill()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"durable": ""}, "durable is the path of a folder"),
        ({"durable": 7}, "durable is the path of a folder"),
        ({"survives": "process"}, "survives='process' without durable="),
        ({"durable": "x", "survives": "all"}, "survives is 'machine' or 'process'"),
        ({"durable": "x", "own_process": False}, "has a process of its own"),
    ],
)
def test_options_that_make_no_sense_are_refused(holders, options, problem):
    with pytest.raises(ChannelArgumentError, match=problem):
        Channel.create("never", **options)


def test_slots_and_versions_survive_it_and_whoever_waits_for_leave_goes_on(holders):
    channel = holders.start()
    channel.set_version(4, batch_items=1, timeout_s=DEADLINE_S)
    slot = channel.admit(max_lag=0, timeout_s=DEADLINE_S)
    waiting = channel.admit(max_lag=0, async_op=True, timeout_s=DEADLINE_S)
    holders.restart()
    channel.put("made before", slot=slot, timeout_s=DEADLINE_S)
    assert channel.get_batch(max_items=1, timeout_s=DEADLINE_S).versions == [4]
    assert not waiting.done()
    channel.set_version(5, timeout_s=DEADLINE_S)
    assert waiting.wait().version == 5
