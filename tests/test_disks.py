"""The disks that tests fill and stop."""

import errno
import os
import threading

import pytest

from disks import PAGE_BYTES


def test_a_small_disk_takes_what_is_left_and_no_more(small_disk):
    small_disk.fill(leave_bytes=PAGE_BYTES)
    file = os.open(small_disk.path / "file", os.O_CREAT | os.O_WRONLY)
    try:
        assert os.write(file, bytes(2 * PAGE_BYTES)) == PAGE_BYTES
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            os.write(file, bytes(1))
        small_disk.clear()
        assert os.write(file, bytes(PAGE_BYTES)) == PAGE_BYTES
    finally:
        os.close(file)


def test_a_stopped_disk_takes_nothing_until_it_goes_on(stopping_disk):
    written = threading.Event()

    def write():
        (stopping_disk.path / "file").write_text("here")
        written.set()

    thread = threading.Thread(target=write)
    with stopping_disk.stopped():
        thread.start()
        assert not written.wait(0.1)
    thread.join()
    assert (stopping_disk.path / "file").read_text() == "here"
