"""Files of records are there whole or not at all, and what is wrong with one is said."""

import contextlib
import itertools
import os
import struct
import zlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alarms import interrupted_at
from disks import PAGE_BYTES
from effort import tries
from open_files import open_within
from rlinf_scheduler import record_log
from rlinf_scheduler.comm import disk
from rlinf_scheduler.durable import checkpoint_files
from rlinf_scheduler.durable.checkpoint_files import MAGIC, RecordFile, write_file
from rlinf_scheduler.errors import CheckpointError
from rlinf_scheduler.record_log import HEADER

DATA = Path(__file__).parents[1] / "data"


class Head(msgspec.Struct, array_like=True, tag="test"):
    num: int


class OtherHead(msgspec.Struct, array_like=True, tag="other"):
    num: int


RECORDS = [[b"one", b""], [b"x" * 1000], []]


def write(path, records=RECORDS):
    return write_file(str(path), Head(len(records)), records)


def read(path):
    with contextlib.closing(RecordFile(str(path))) as file:
        head = file.head(Head, "a test's")
        records = [[bytes(frame) for frame in file.frames()] for _ in range(head.num)]
        file.end()
    return records


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file"


@given(records=st.lists(st.lists(st.binary(max_size=50), max_size=4), max_size=5))
@settings(max_examples=tries(25), deadline=None)
def test_what_was_written_is_read(tmp_path_factory, records):
    path = tmp_path_factory.mktemp("records") / "file"
    assert write(path, records) == path.stat().st_size
    assert read(path) == records


def test_a_file_that_was_cut_off_anywhere_is_refused(path):
    for size in reversed(range(write(path, [[b"one", b""], [b"two"], []]))):
        os.truncate(path, size)
        with pytest.raises(CheckpointError, match=r"it is cut off|it is no checkpoint"):
            read(path)


def test_a_file_with_one_wrong_bit_is_refused(path):
    write(path, [[b"one", b""], [b"two"], []])
    content = path.read_bytes()
    for place, bit in itertools.product(range(len(content)), range(8)):
        wrong = bytearray(content)
        wrong[place] ^= 1 << bit
        path.write_bytes(wrong)
        with pytest.raises(
            CheckpointError, match=r"corrupt|it is no checkpoint|newer version|this one reads|cut off"
        ):
            read(path)


def test_a_foreign_file_is_refused(path):
    path.write_bytes(b"PK\3\4 something else")
    with pytest.raises(CheckpointError, match=r"file': it is no checkpoint: it begins with b'PK"):
        read(path)


def test_a_file_of_a_newer_version_is_refused(path):
    write(path)
    content = path.read_bytes()
    path.write_bytes(MAGIC + struct.pack("<I", 4) + content[len(MAGIC) + 4 :])
    with pytest.raises(
        CheckpointError, match="it has format 4, of a newer version of this library; this one reads"
    ):
        read(path)


def test_a_file_of_the_format_before_is_refused_with_what_to_do():
    with pytest.raises(CheckpointError) as refused:
        read(DATA / "format1.channel")
    assert refused.value.problem == (
        "it has format 1, which version 0.1.0 up to November 2026 of this library wrote, and this one reads format 3; "
        "restore it with that one, and let what it holds be taken there"
    )


def test_a_file_that_is_not_there_is_said_to_be_so(path):
    with pytest.raises(CheckpointError, match="it cannot be read: No such file"):
        read(path)


def test_a_file_of_another_kind_is_refused(path):
    write_file(str(path), OtherHead(0), [])
    with pytest.raises(CheckpointError, match="it is not a test's"):
        read(path)


def test_what_follows_the_last_record_is_refused(path):
    write(path)
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(CheckpointError, match="it is corrupt: 4 bytes too much"):
        read(path)


def test_sizes_that_do_not_fit_are_refused_before_memory_is_taken_for_them(path):
    write(path)
    content = path.read_bytes()
    absurd = HEADER.pack(1 << 60, zlib.crc32((1 << 60).to_bytes(8, "little")), 0)
    at = len(MAGIC) + 4
    path.write_bytes(content[:at] + absurd + content[at + HEADER.size :])
    with pytest.raises(CheckpointError, match="it is cut off, or corrupt"):
        read(path)


def test_the_file_before_is_there_until_the_new_one_is_whole(path):
    write(path, [[b"old"]])

    def records():
        yield [b"new"]
        assert read(path) == [[b"old"]]
        message = "the disk is on fire"
        raise OSError(message)

    with pytest.raises(CheckpointError, match="it cannot be written: the disk is on fire"):
        write_file(str(path), Head(1), records())
    assert read(path) == [[b"old"]]
    assert os.listdir(path.parent) == ["file"]


def test_what_a_killed_writer_has_left_is_in_nobodys_way(path):
    path.with_name("file.new").write_bytes(b"half of a")
    write(path, [[b"whole"]])
    assert read(path) == [[b"whole"]]
    assert os.listdir(path.parent) == ["file"]


def test_on_a_full_disk_the_file_before_stays_and_nothing_else(small_disk):
    path = small_disk.path / "file"
    write(path)
    for leave_pages in (0, 1, 2, 3):
        small_disk.fill(leave_pages * PAGE_BYTES)
        with pytest.raises(CheckpointError, match=r"it cannot be written: .*No space left"):
            write(path, [[bytes(PAGE_BYTES)]] * 4)
        assert open_within(path.parent) == []
        small_disk.clear()
        assert read(path) == RECORDS
        assert os.listdir(small_disk.path) == ["file"]
    write(path, [[bytes(PAGE_BYTES)]] * 4)
    assert read(path) == [[bytes(PAGE_BYTES)]] * 4


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of what was interrupted before it could close it
@pytest.mark.parametrize("work", [write, read])
def test_an_interruption_at_any_instruction_leaves_no_file_open(path, work):
    write(path)

    def attempt():
        work(path)

    for number in itertools.count():
        is_interrupted = interrupted_at(
            number, attempt, [checkpoint_files.__file__, record_log.__file__, disk.__file__]
        )
        assert open_within(path.parent) == []
        assert read(path) == RECORDS
        if not is_interrupted:
            return


def test_two_do_not_write_one_file_at_a_time(path):
    def records():
        with pytest.raises(CheckpointError, match="another process, or thread, writes it now"):
            write(path)
        yield [b"first"]

    write_file(str(path), Head(1), records())
    assert read(path) == [[b"first"]]


def test_a_folder_that_is_not_there_is_said_to_be_so(tmp_path):
    with pytest.raises(CheckpointError, match=r"it cannot be written: .*No such file"):
        write(tmp_path / "nowhere" / "file")
