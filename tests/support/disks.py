"""Real disks that become full, or stop: each is mounted in a namespace of a process of its own, and ends with that.

Every test can use the fixtures: `small_disk`, a tmpfs, and `stopping_disk`, an ext4 in a file. A file system is reached
by the process's entry in /proc, from every process of this user; nothing is left behind, however a test ends.
"""

import contextlib
import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PAGE_BYTES = 4096
SMALL_BYTES = 256 << 10
_EXT4_BYTES = 4 << 20
_FILLING, _CROWD = "filling", "crowd"
_HOLDER = str(Path(__file__).with_name("disk_holder.py"))


class Disk:
    """A file system of its own.

    Args:
        process: the one that holds it.

    Attributes:
        path: its folder.
    """

    def __init__(self, process):
        self.path = Path(f"/proc/{process.pid}/cwd/disk")
        self._process = process

    def fill(self, leave_bytes=0):
        """Let it be full, but for so many bytes, in whole pages."""
        with (self.path / _FILLING).open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(PAGE_BYTES)):
                pass
        size = (self.path / _FILLING).stat().st_size
        os.truncate(self.path / _FILLING, size - leave_bytes // PAGE_BYTES * PAGE_BYTES)

    def fill_with_files(self):
        """Let it have no room for another file; those that are there can grow."""
        (self.path / _CROWD).mkdir()
        with contextlib.suppress(OSError):
            for number in itertools.count():
                (self.path / _CROWD / str(number)).touch()

    def clear(self):
        """Let there be room again."""
        (self.path / _FILLING).unlink(missing_ok=True)
        shutil.rmtree(self.path / _CROWD, ignore_errors=True)

    @contextlib.contextmanager
    def stopped(self):
        """Let whatever is to change it wait meanwhile: every write, creation, deletion. What is there can be read.

        Whatever waits so cannot be killed.
        """
        self._order("stop")
        try:
            yield
        finally:
            self._order("go on")

    def _order(self, order):
        self._process.stdin.write(f"{order}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n"


@contextlib.contextmanager
def disk_of(kind, folder, size_bytes):
    """A file system of a kind, `tmpfs` or `ext4`; the test is skipped where it cannot be mounted.

    Args:
        kind: what it is; only an ext4 can be stopped.
        folder: of the test's own.
        size_bytes: how much fits.
    """
    folder.mkdir(exist_ok=True)
    (folder / "disk").mkdir()
    # Not of this process's group: who interrupts the test leaves it the disk until its files are closed.
    process = subprocess.Popen(
        [sys.executable, "-I", _HOLDER, kind, str(size_bytes)],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    with process:
        answer = process.stdout.readline().strip()
        if answer != "done":
            pytest.skip(f"a small disk needs the right to mount a {kind}, as root has it: {answer}")
        yield Disk(process)
        process.stdin.close()


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 256 KiB."""
    with disk_of("tmpfs", tmp_path / "small", SMALL_BYTES) as disk:
        yield disk


@pytest.fixture
def stopping_disk(tmp_path):
    """A disk of a few megabytes that can be stopped."""
    with disk_of("ext4", tmp_path / "stopping", _EXT4_BYTES) as disk:
        yield disk
