"""The process that holds a disk of `disks`, in a mount namespace of its own, until its pipe is closed.

    python disk_holder.py KIND SIZE_BYTES       in the folder in which `disk` is to be mounted over

It says "done" when the disk is there, and after each line that it reads: "stop", "go on".
"""

import ctypes
import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000
_FIFREEZE, _FITHAW = 0xC0045877, 0xC0045878
_MAX_FILES = 500


def _call(name, *args):
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*args):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _enter_namespace():
    user, group = os.getuid(), os.getgid()
    _call("unshare", _CLONE_NEWNS | (_CLONE_NEWUSER if user else 0))
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    _call("mount", b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)


def _mount(kind, size_bytes):
    if kind == "tmpfs":
        _call(
            "mount",
            b"tmpfs",
            b"disk",
            b"tmpfs",
            0,
            b"size=%d,nr_inodes=%d,mode=0700" % (size_bytes, _MAX_FILES),
        )
        return
    with open("image", "wb") as image:
        image.truncate(size_bytes)
    for command in (
        ["mkfs.ext4", "-q", "-O", "^has_journal", "image"],
        ["mount", "-o", "loop", "image", "disk"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(errno.EPERM, done.stderr.strip())


def _hold(kind, size_bytes):
    """Hold it until the test closes its end of the pipe, or is gone; a disk that is stopped goes on then."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        _enter_namespace()
        _mount(kind, size_bytes)
    except OSError as error:
        print(error, flush=True)  # noqa: T201
        return
    disk = os.open("disk", os.O_RDONLY | os.O_DIRECTORY)
    print("done", flush=True)  # noqa: T201
    is_stopped = False
    try:
        for order in sys.stdin:
            is_stopped = order.strip() == "stop"
            fcntl.ioctl(disk, _FIFREEZE if is_stopped else _FITHAW, 0)
            print("done", flush=True)  # noqa: T201
    finally:
        if is_stopped:
            fcntl.ioctl(disk, _FITHAW, 0)


if __name__ == "__main__":
    _hold(sys.argv[1], int(sys.argv[2]))
