"""The file of a durable channel: whole, cut off, damaged, of somebody else, and written anew."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disks import PAGE_BYTES
from open_files import open_within
from rlinf_scheduler.comm.disk import Disk
from rlinf_scheduler.durable.journal import Journal
from rlinf_scheduler.errors import ChannelJournalError

HEADS = [b"one", b"two", b"three"]


def write(folder, heads=HEADS):
    journal = Journal(str(folder), "name")
    journal.finish(journal.begin(b"header"), 0)
    for head in heads:
        journal.append(head, [head * 3, b"", memoryview(bytearray(20_000))])
    journal.close()
    return folder / "journal"


def read(folder):
    journal = Journal(str(folder), "name")
    try:
        return [(block.head, bytes(block.frames)) for block in journal.read()][2:]
    finally:
        journal.close()


def expected(heads=HEADS):
    return [(head, head * 3 + bytes(20_000)) for head in heads]


def test_what_was_appended_is_read_and_can_be_appended_to(tmp_path):
    write(tmp_path)
    journal = Journal(str(tmp_path), "name")
    assert len(list(journal.read())) == 5
    journal.append(b"four", [b"four" * 3, bytes(20_000)])
    journal.close()
    assert read(tmp_path) == expected([*HEADS, b"four"])


@pytest.fixture(scope="module")
def journals(tmp_path_factory):
    """What journals hold that were appended to 0, 1, 2 and 3 times."""
    return [write(tmp_path_factory.mktemp("journal"), HEADS[:count]).read_bytes() for count in range(4)]


@given(st.data())
def test_a_tail_that_was_cut_off_anywhere_is_dropped_and_nothing_before_it(tmp_path_factory, journals, data):
    folder = tmp_path_factory.mktemp("journal")
    size = data.draw(st.integers(len(journals[1]), len(journals[3])))
    zeros = data.draw(st.integers(0, 100))
    (folder / "journal").write_bytes(journals[3][:size] + bytes(zeros))
    found = read(folder)
    assert found == expected()[: len(found)]
    assert len(found) >= 1
    assert read(folder) == found


@given(st.data())
def test_damage_with_something_whole_behind_it_is_refused(tmp_path_factory, journals, data):
    folder = tmp_path_factory.mktemp("journal")
    path = folder / "journal"
    content = bytearray(journals[3])
    place = data.draw(st.integers(0, len(journals[2]) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    with pytest.raises(ChannelJournalError):
        read(folder)
    assert path.read_bytes() == bytes(content)


def test_an_image_larger_than_is_read_at_a_time_is_read_in_parts_and_damage_anywhere_in_it_is_refused(
    tmp_path,
):
    frames = [bytes([number]) * 700_000 for number in range(5)]
    journal = Journal(str(tmp_path), "name")
    journal.finish(journal.begin(b"header", b"image", iter(frames)), 0)
    journal.append(b"later", [b"frame"])
    journal.close()
    path = tmp_path / "journal"
    content = bytearray(path.read_bytes())
    journal = Journal(str(tmp_path), "name")
    _, image, later = journal.read()
    assert (image.head, len(image.frames)) == (b"image", 5 * 700_000)
    assert bytes(image.frames[699_999:700_001]) == b"\0\1"
    assert bytes(image.frames[2_800_000:]) == frames[4]
    assert later == (b"later", b"frame")
    journal.close()
    for place in (100, 2_000_000, 3_400_000):
        content[place] ^= 1
        path.write_bytes(content)
        with pytest.raises(ChannelJournalError, match="is damaged"):
            read(tmp_path)
        content[place] ^= 1


@pytest.mark.parametrize("filling", [bytes(3 << 20), os.urandom(3 << 20)], ids=["zeros", "noise"])
def test_something_whole_far_behind_a_damaged_length_is_found(tmp_path, filling):
    journal = Journal(str(tmp_path), "name")
    journal.finish(journal.begin(b"header"), 0)
    damaged_at = journal.size_bytes
    for frame in (filling, b"answered"):
        journal.append(b"item", [frame])
    journal.close()
    path = tmp_path / "journal"
    content = bytearray(path.read_bytes())
    content[damaged_at] ^= 1
    path.write_bytes(content)
    with pytest.raises(ChannelJournalError, match=f"is damaged at byte {damaged_at} of {len(content)}"):
        read(tmp_path)
    path.write_bytes(
        content[: damaged_at + (2 << 20)]
    )  # the end of it was cut off: nothing whole is behind it
    assert read(tmp_path) == []


@pytest.mark.parametrize("content", [b"", b"RLINF", b"something else altogether", b"RLINFCH\x02"])
def test_what_is_no_journal_is_refused(tmp_path, content):
    (tmp_path / "journal").write_bytes(content)
    with pytest.raises(ChannelJournalError):
        read(tmp_path)


def test_it_is_held_once_and_says_by_whom(tmp_path):
    journal = Journal(str(tmp_path), "name")
    with pytest.raises(ChannelJournalError, match=f"is held by a process that lives: pid {os.getpid()}"):
        Journal(str(tmp_path), "name")
    journal.close()
    Journal(str(tmp_path), "name").close()


def test_it_is_written_anew_with_what_happened_meanwhile(tmp_path):
    path = write(tmp_path)
    journal = Journal(str(tmp_path), "name")
    list(journal.read())
    since = journal.size_bytes
    new = journal.begin(b"header", b"image", [b"frame"])
    journal.append(b"meanwhile", [b"m" * 20_000])
    # A death now leaves the present one as it is.
    assert len(read_copy(path, tmp_path / "copy")) == 4
    journal.finish(new, since)
    assert journal.size_bytes == path.stat().st_size
    journal.append(b"after", [])
    journal.close()
    assert read(tmp_path) == [(b"meanwhile", b"m" * 20_000), (b"after", b"")]


@pytest.mark.parametrize("call", ["fsync", "fstat"])
def test_one_that_cannot_be_finished_is_dropped_and_the_present_one_goes_on(tmp_path, monkeypatch, call):
    write(tmp_path)
    journal = Journal(str(tmp_path), "name")
    list(journal.read())
    open_before = open_within(tmp_path)
    new = journal.begin(b"header", b"image", [b"frame"])
    with monkeypatch.context() as patch:
        patch.setattr(Disk, call, no_room)
        with pytest.raises(OSError, match="No space left"):
            journal.finish(new, journal.size_bytes)
    assert open_within(tmp_path) == open_before
    assert sorted(os.listdir(tmp_path)) == ["journal", "lock"]
    journal.append(b"after", [])
    journal.close()
    assert read(tmp_path) == [*expected(), (b"after", b"")]


def test_one_that_cannot_be_begun_is_dropped(tmp_path, monkeypatch):
    journal = Journal(str(tmp_path), "name")
    open_before = open_within(tmp_path)
    monkeypatch.setattr(Disk, "pwritev", no_room)
    with pytest.raises(OSError, match="No space left"):
        journal.begin(b"header")
    assert open_within(tmp_path) == open_before
    assert os.listdir(tmp_path) == ["lock"]
    journal.close()


def test_nothing_is_appended_to_one_whose_name_may_not_be_on_the_disk(tmp_path, monkeypatch):
    journal = Journal(str(tmp_path), "name")
    journal.finish(journal.begin(b"header"), 0)
    with monkeypatch.context() as patch:
        patch.setattr(Disk, "fsync", no_room)
        with pytest.raises(OSError, match="No space left"):
            journal.append(b"one", [])
    journal.append(b"two", [])
    journal.close()


def test_whoever_held_it_before_and_still_writes_is_not_in_the_way_of_the_next(tmp_path):
    write(tmp_path)
    before = Journal(str(tmp_path), "name")
    list(before.read())
    abandoned = before.begin(b"header")
    before.close()
    journal = Journal(str(tmp_path), "name")
    list(journal.read())
    new = journal.begin(b"header", b"image")
    late = before.begin(b"header")
    journal.finish(new, journal.size_bytes)
    for each in (abandoned, late):
        with pytest.raises(ChannelJournalError, match="is held by this process no more"):
            before.finish(each, 0)
    assert sorted(os.listdir(tmp_path)) == ["journal", "lock"]
    journal.append(b"after", [])
    journal.close()
    journal = Journal(str(tmp_path), "name")
    assert [block.head for block in journal.read()] == [b"header", b"image", b"after"]
    journal.close()


def test_what_a_death_has_left_half_written_is_removed(tmp_path):
    write(tmp_path)
    journal = Journal(str(tmp_path), "name")
    os.close(journal.begin(b"header").fd)
    journal.close()
    assert read(tmp_path) == expected()
    assert sorted(os.listdir(tmp_path)) == ["journal", "lock"]


def test_one_whose_lock_cannot_be_written_is_refused_and_not_held(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Disk, "pwritev", no_room)
        with pytest.raises(ChannelJournalError, match=r"cannot be used: .*No space left"):
            Journal(str(tmp_path), "name")
    Journal(str(tmp_path), "name").close()


@pytest.mark.parametrize("fails", [None, "fdatasync"])
def test_a_block_that_cannot_be_written_whole_is_taken_back(small_disk, monkeypatch, fails):
    path = write(small_disk.path)
    before = path.read_bytes()
    journal = Journal(str(small_disk.path), "name")
    assert len(list(journal.read())) == 5
    with monkeypatch.context() as patch:
        if fails:
            patch.setattr(Disk, fails, no_room)
        else:
            small_disk.fill(leave_bytes=2 * PAGE_BYTES)
        with pytest.raises(OSError, match="No space left"):
            journal.append(b"four", [bytes(20_000)])
    assert path.read_bytes() == before
    small_disk.clear()
    journal.append(b"four", [b"four" * 3, bytes(20_000)])
    journal.close()
    assert read(small_disk.path) == expected([*HEADS, b"four"])


@pytest.mark.parametrize("taken", ["journal", "lock", "folder", "moved", "replaced"])
def test_one_that_somebody_takes_away_takes_no_block_any_more(tmp_path, taken):
    folder = tmp_path / "channel"
    write(folder)
    journal = Journal(str(folder), "name")
    list(journal.read())
    if taken == "folder":
        shutil.rmtree(folder)
    elif taken == "moved":
        folder.rename(tmp_path / "elsewhere")
    elif taken == "replaced":
        shutil.copy(folder / "journal", tmp_path / "copy")
        (tmp_path / "copy").rename(folder / "journal")
    else:
        (folder / taken).unlink()
    new = None if taken in {"folder", "moved"} else journal.begin(b"header")
    with pytest.raises(FileNotFoundError, match="deleted, moved or replaced"):
        journal.append(b"four", [b"four"])
    if new is not None:
        with pytest.raises(FileNotFoundError, match="deleted, moved or replaced"):
            journal.finish(new, journal.size_bytes)
    other = None if taken in {"journal", "replaced"} else Journal(str(folder), "name")
    if other is not None:
        other.finish(other.begin(b"header"), 0)
    journal.remove()
    if other is not None:
        other.append(b"of the other", [])
        other.close()
        assert read(folder) == [(b"of the other", b"")]


def no_room(*_args):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def read_copy(path, folder):
    folder.mkdir()
    Path(folder / "journal").write_bytes(path.read_bytes())
    return read(folder)


def test_a_folder_that_cannot_be_made_is_an_error_that_says_why(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ChannelJournalError, match=r"cannot be used: .*Not a directory"):
        Journal(str(tmp_path / "file" / "folder"), "name")


def test_a_folder_that_others_may_write_to_is_refused(tmp_path):
    for mode in (0o770, 0o707, 0o1777):
        tmp_path.chmod(mode)
        with pytest.raises(ChannelJournalError, match=rf"others may write to \(mode {mode:04o}\); name one"):
            Journal(str(tmp_path), "name")
    tmp_path.chmod(0o755)
    Journal(str(tmp_path), "name").close()


def test_a_folder_of_another_user_is_refused_and_one_that_is_made_is_private(tmp_path, monkeypatch):
    Journal(str(tmp_path / "made"), "name").close()
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(ChannelJournalError, match="of another user"):
        Journal(str(tmp_path), "name")
