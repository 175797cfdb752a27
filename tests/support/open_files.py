"""What this process has open; other threads of it may open and close something at any time."""

import contextlib
import os


def descriptors():
    """All of them: (number, what it is) each."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
    return found


def open_within(folder):
    """The files of a folder that are open, whether they still have a name or not, and the folder itself; for each
    descriptor."""
    where = os.path.realpath(folder)
    return sorted(path for _, path in descriptors() if f"{path}/".startswith(f"{where}/"))


def open_twins(*twins):
    """How often what these descriptors are of is open."""
    wanted = [_identity(os.fstat(twin)) for twin in twins]
    count = 0
    for number, _ in descriptors():
        with contextlib.suppress(FileNotFoundError):
            count += _identity(os.stat(f"/proc/self/fd/{number}")) in wanted
    return count


def _identity(status):
    return status.st_dev, status.st_ino
