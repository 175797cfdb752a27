"""Files that are appended to until their process dies."""

import os
import signal
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disks import PAGE_BYTES
from effort import tries
from rlinf_scheduler.comm.disk import Disk
from rlinf_scheduler.errors import RecordingError
from rlinf_scheduler.tape.files import TapeFile, TapeReader


def contents(path):
    reader = TapeReader(str(path))
    found = [[bytes(frame) for frame in frames] for _, frames in reader]
    reader.close()
    return found, reader.cut_bytes


@settings(max_examples=tries(25))
@given(
    records=st.lists(st.lists(st.binary(max_size=40), min_size=1, max_size=4), max_size=5),
    cut=st.integers(0, 400),
)
def test_what_is_whole_is_read_wherever_the_file_was_cut(tmp_path_factory, records, cut):
    path = tmp_path_factory.mktemp("tape") / "a.rec"
    file = TapeFile(str(path))
    ends = [file.size_bytes]
    for frames in records:
        file.append(frames)
        ends.append(file.size_bytes)
    file.close()
    assert contents(path) == (records, 0)
    cut_at = max(ends[0], ends[-1] - cut)
    os.truncate(path, cut_at)
    num_whole = sum(end <= cut_at for end in ends) - 1
    assert contents(path) == (records[:num_whole], cut_at - ends[num_whole])


def test_a_forked_child_writes_nothing_into_its_parents_file(tmp_path):
    """It would write over what its parent has written since."""
    file = TapeFile(str(tmp_path / "a.rec"))
    file.append([b"before"])
    may_write, has_asked = os.pipe()
    child = os.fork()
    if not child:
        os.read(may_write, 1)
        file.append([b"of the child's"])
        os._exit(0)
    file.append([b"after"])
    os.write(has_asked, b"x")
    os.waitpid(child, 0)
    file.append([b"at the end"])
    file.close()
    assert contents(tmp_path / "a.rec") == ([[b"before"], [b"after"], [b"at the end"]], 0)
    os.close(may_write)
    os.close(has_asked)


def test_a_damaged_record_is_named(tmp_path):
    path = tmp_path / "a.rec"
    file = TapeFile(str(path))
    for number in range(3):
        file.append([b"%d" % number * 100])
    file.close()
    data = bytearray(path.read_bytes())
    data[-200] ^= 1
    path.write_bytes(data)
    with pytest.raises(RecordingError, match=r"record 2, at byte 132, does not match its checksum"):
        contents(path)


def test_what_is_no_recording_is_said(tmp_path):
    path = tmp_path / "a.rec"
    path.write_text("hello, world")
    with pytest.raises(RecordingError, match="it is no recording: it begins with b'hello, w'"):
        TapeReader(str(path))
    with pytest.raises(RecordingError, match="No such file"):
        TapeReader(str(tmp_path / "b.rec"))


def test_nobody_writes_over_a_recording(tmp_path):
    path = str(tmp_path / "new" / "a.rec")
    TapeFile(path).close()
    with pytest.raises(RecordingError, match="there is a recording of that name already"):
        TapeFile(path)


def test_records_of_many_threads_are_whole(tmp_path):
    file = TapeFile(str(tmp_path / "a.rec"))

    def write(number):
        for _ in range(200):
            file.append([b"%d" % number * 50, b"%d" % number * 500])

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    file.close()
    found, cut = contents(tmp_path / "a.rec")
    assert cut == 0
    assert sorted(frames[0][:1] for frames in found) == sorted([b"0", b"1", b"2", b"3"] * 200)
    assert all(frames[1] == frames[0] * 10 for frames in found)


@pytest.mark.interrupted
def test_who_is_interrupted_leaves_a_file_that_can_be_read(tmp_path, monkeypatch):
    file = TapeFile(str(tmp_path / "a.rec"))
    write = os.pwritev

    def write_half(descriptor, pieces, offset):
        """As if the kernel took only a part, and a signal came then."""
        write(descriptor, [pieces[0][:7]], offset)
        os.kill(os.getpid(), signal.SIGINT)
        return 7

    file.append([b"before"])
    monkeypatch.setattr(Disk, "pwritev", staticmethod(write_half))
    with pytest.raises(KeyboardInterrupt):
        file.append([b"interrupted" * 100])
    monkeypatch.undo()
    file.append([b"after"])
    file.close()
    assert contents(tmp_path / "a.rec") == ([[b"before"], [b"after"]], 0)


def test_what_a_signal_handler_appends_meanwhile_comes_after(tmp_path, monkeypatch):
    file = TapeFile(str(tmp_path / "a.rec"))
    write = os.pwritev
    late = [[b"from the handler"]]

    def write_then_more(descriptor, pieces, offset):
        if late:
            file.append(late.pop())
        return write(descriptor, pieces, offset)

    monkeypatch.setattr(Disk, "pwritev", staticmethod(write_then_more))
    file.append([b"of the thread"])
    file.close()
    assert contents(tmp_path / "a.rec") == ([[b"of the thread"], [b"from the handler"]], 0)


def test_a_record_that_has_no_room_is_taken_back_and_later_ones_are_read(small_disk):
    path = str(small_disk.path / "a.tape")
    file = TapeFile(path)
    file.append([b"before"])
    small_disk.fill(leave_bytes=PAGE_BYTES)
    with pytest.raises(OSError, match="No space left"):
        file.append([bytes(4 * PAGE_BYTES)])
    assert os.stat(path).st_size == file.size_bytes
    small_disk.clear()
    file.append([b"after"])
    file.close()
    assert contents(path) == ([[b"before"], [b"after"]], 0)
