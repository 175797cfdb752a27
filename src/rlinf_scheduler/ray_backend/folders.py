"""Folders of mode 0700: for what is noted of nodes, and for Ray, which lets everybody write into what it makes."""

from __future__ import annotations

import os
import re
import shutil
import socket
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from rlinf_scheduler.comm.rundir import is_private, private_directory
from rlinf_scheduler.errors import ClusterError

TMPDIR_VARIABLE = "RAY_TMPDIR"
# Of a folder for Ray: it adds 68 bytes for a socket's path, and the kernel takes 107.
LONGEST_FOLDER_BYTES = 39
# So many sessions of Ray's stay in a folder, for their logs; of older ones those that have ended are removed.
KEPT_SESSIONS = 10
# A Ray that lives, on whatever machine that has this folder, writes to its logs every ten seconds.
QUIET_S = 600.0
_SESSION = re.compile(r"session_\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d_\d+_\d+")
_ATTEMPT_S = 1.0


def own_directory(longest_bytes: int | None = None) -> Path:
    """This user's private directory, with a path of so many bytes at most.

    Raises:
        ClusterError: there is none: somebody else has its names.
    """
    path = private_directory(longest_bytes)
    if path is None:
        raise ClusterError("no directory of mode 0700 can be had for Ray: other users have taken its names")
    return path


def ray_folder(environment: Mapping[str, str]) -> Path:
    """A folder of mode 0700 for Ray to make its own in: under `RAY_TMPDIR`, else this user's private directory.

    Raises:
        ClusterError: none can be had, or its path would be too long, or not ASCII.
    """
    given = environment.get(TMPDIR_VARIABLE)
    if not given:
        return own_directory(LONGEST_FOLDER_BYTES)
    path = Path(given).resolve() / f"rlinf-{os.getuid()}"
    if len(os.fsencode(path)) > LONGEST_FOLDER_BYTES:
        raise ClusterError(
            f"{TMPDIR_VARIABLE}={given} is too long: Ray's sockets have paths of at most 107 bytes, so that its "
            f"folder's may have {LONGEST_FOLDER_BYTES - len(path.name) - 1}"
        )
    if not str(path).isascii():
        raise ClusterError(
            f"{TMPDIR_VARIABLE}={given}: Ray takes no folder with letters that are not ASCII ({path})"
        )
    with suppress(FileExistsError):
        path.mkdir(mode=0o700, parents=True)
    if not is_private(path):
        raise ClusterError(f"{path} is not a directory of this user alone (mode 0700)")
    return path


def prune_sessions(folder: Path) -> None:
    """Remove what Rays of ours that have ended have left in a folder of `ray_folder`, but for the newest."""
    with suppress(OSError):  # nothing of Ray's is there
        names = sorted(
            (path.name for path in folder.iterdir() if _SESSION.fullmatch(path.name)), reverse=True
        )
        for name in names[KEPT_SESSIONS:]:
            with suppress(OSError):  # another process has removed it
                if _has_ended(folder / name):
                    shutil.rmtree(folder / name, ignore_errors=True)


def _has_ended(session: Path) -> bool:
    if not stat.S_ISDIR(session.lstat().st_mode):
        return False
    logs, sockets = (
        list(part.iterdir()) if part.is_dir() else [] for part in (session / "logs", session / "sockets")
    )
    written = max(path.lstat().st_mtime for path in (session, *logs))
    return time.time() - written > QUIET_S and not any(map(_is_listened_to, sockets))


def _is_listened_to(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as any_socket:
        any_socket.settimeout(_ATTEMPT_S)
        try:
            any_socket.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:  # it cannot be told: a process that is stopped takes no more connections, say
            return True
    return True
