"""The token that lets readers of metrics in, in a file of this user's that Prometheus can be told of."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

from rlinf_scheduler.comm.rundir import private_directory
from rlinf_scheduler.errors import ClusterError

_NAME = "metrics-token"
_TOKEN_BYTES = 24


def own_token_file() -> Path:
    """The file of this user's token on this machine, of mode 0600; made if it is not there, and the same from then on.

    Raises:
        ClusterError: no folder is this user's alone, or the file is not.
    """
    folder = private_directory()
    if folder is None:
        raise ClusterError(
            "no directory for temporary files is this user's alone: name a file by `--token-file`"
        )
    file = folder / _NAME
    if not file.exists():
        _make(file)
    status = file.lstat()
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise ClusterError(
            f"{file} is not this user's alone: remove it, or name another one by `--token-file`"
        )
    return file


def _make(file: Path) -> None:
    """Put a fresh token there, whole, unless another process has just done so."""
    fresh = file.with_name(f"{_NAME}.{secrets.token_hex(8)}")
    descriptor = os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as made:
            made.write(f"{secrets.token_urlsafe(_TOKEN_BYTES)}\n")
        with contextlib.suppress(FileExistsError):
            os.link(fresh, file)
    finally:
        fresh.unlink()
