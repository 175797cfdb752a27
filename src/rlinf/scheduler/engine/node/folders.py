"""Folders of mode 0700: for what is noted of nodes, and for Ray, which lets everybody write into what it makes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from rlinf.scheduler.comm.rundir import is_private, private_directory
from rlinf.scheduler.errors import ClusterError

TMPDIR_VARIABLE = "RAY_TMPDIR"
# Of a folder for Ray: it adds 68 bytes for a socket's path, and the kernel takes 107.
LONGEST_FOLDER_BYTES = 39


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
