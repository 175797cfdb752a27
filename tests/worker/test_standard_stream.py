"""What a process prints where the disk is full: left out, counted, and no error of the code that prints."""

import io
import os

import pytest

from disks import PAGE_BYTES
from rlinf_scheduler.host.output_file import PatientFile, with_patience


@pytest.fixture
def printed(small_disk):
    """A stream to a file on the disk that becomes full, and the file."""
    path = small_disk.path / "rollout-0.log"
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    plain = os.fdopen(descriptor, "w", encoding="utf-8")
    stream = with_patience(plain, PatientFile(descriptor))
    yield stream, path
    stream.close()
    plain.close()


def test_what_the_disk_does_not_take_is_counted_and_told_of_when_it_does_again(printed, small_disk):
    stream, path = printed
    print("before", file=stream)
    small_disk.fill()
    for number in range(1000):
        print(f"line {number:06d}", file=stream)
    small_disk.clear()
    print("after", file=stream)
    print("and so on", file=stream)
    before, *taken, missing, after, last = path.read_text().split("\n")[:-1]
    assert (before, after, last) == ("before", "after", "and so on")
    *whole, torn = taken
    assert whole == [f"line {number:06d}" for number in range(len(whole))]
    assert f"line {len(whole):06d}".startswith(torn)
    num_taken = 12 * len(whole) + len(torn)
    assert missing == f"... {12_000 - num_taken:,} bytes are missing here: the disk took no more"


def test_a_large_write_that_has_room_in_part_is_torn_and_that_is_said(printed, small_disk):
    stream, path = printed
    small_disk.fill(leave_bytes=PAGE_BYTES)
    stream.write("x" * 3 * PAGE_BYTES)
    stream.flush()
    small_disk.clear()
    print("after", file=stream)
    note = f"... {2 * PAGE_BYTES:,} bytes are missing here: the disk took no more"
    assert path.read_text() == f"{'x' * PAGE_BYTES}\n{note}\nafter\n"


def test_other_errors_are_those_of_the_code_that_prints(printed):
    stream, _ = printed
    os.close(stream.fileno())
    with pytest.raises(OSError, match="Bad file descriptor"):
        print("nowhere", file=stream)
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def test_a_stream_that_somebody_has_replaced_stays_as_it_is(tmp_path):
    raw = PatientFile(1)
    for stream in (None, io.StringIO(), (tmp_path / "file").open("w")):
        assert with_patience(stream, raw) is stream
    stream.close()
