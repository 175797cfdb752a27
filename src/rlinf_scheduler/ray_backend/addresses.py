"""Which Ray to join: Ray's own rule, but nothing is joined that does not answer, and nobody joins a simulation."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ray._common import utils as ray_common_utils
from ray._private import utils as ray_private_utils

from rlinf_scheduler.comm.rundir import private_directory
from rlinf_scheduler.errors import ClusterError, ClusterTimeout
from rlinf_scheduler.ray_backend.authentication import host_and_port
from rlinf_scheduler.ray_backend.folders import LONGEST_FOLDER_BYTES
from rlinf_scheduler.wording import seconds_text

LOCAL = "local"
# Ray's, which note and forget the cluster that was last started here.
_WRITE, _RESET = ray_private_utils.write_ray_address, ray_common_utils.reset_ray_address

_AUTO = "auto"
_ATTEMPT_TIMEOUT_S = 2.0
_ATTEMPT_PAUSE_S = 0.25
_HOW_TO_START = (
    "run `rlinf node start --head` on the first machine and `rlinf node start --address HEAD:6379` on the others, "
    "or try without a cluster: simulate='2x8'"
)
_log = logging.getLogger(__name__)


def find_address(address: str | None, num_nodes: int | None, timeout_s: float) -> str:
    """What to hand to `ray.init`: an address where a Ray answers, or "local" for a new one.

    In this order: `address`; the variable RAY_ADDRESS; the cluster that was last started on this machine, by
    `rlinf node start` or by `ray start`; a new one, unless several nodes are wanted. Ray itself would wait for minutes
    at an address where nothing answers, such as that of a cluster that was killed.

    Raises:
        ClusterTimeout: nothing answers at the address that was given before the deadline.
        ClusterError: the address cannot be read, or there is no cluster to join.
    """
    wanted = address or os.environ.get("RAY_ADDRESS") or None
    if wanted is not None and wanted not in (_AUTO, LOCAL):
        _wait_for_answer(wanted, timeout_s)
        return wanted
    for found in () if wanted == LOCAL else _announced_here():
        if _answers(found):
            return found
    if wanted == _AUTO or (num_nodes or 1) > 1:
        raise ClusterError(f"no Ray cluster runs on this machine: {_HOW_TO_START}")
    return LOCAL


@contextmanager
def unannounced() -> Iterator[None]:
    """Keep a Ray that is started inside from becoming the one that other programs on this machine join.

    Nor is what they join forgotten where one is stopped inside. Nothing is written that would have to be put back:
    others start and stop theirs meanwhile.
    """
    ray_private_utils.write_ray_address = ray_common_utils.reset_ray_address = lambda *_, **__: None
    try:
        yield
    finally:
        ray_private_utils.write_ray_address, ray_common_utils.reset_ray_address = _WRITE, _RESET


def _announcement() -> Path:
    """Where Ray notes the cluster that was last started on this machine."""
    return Path(ray_common_utils.get_ray_address_file(None))


def _announced_here() -> list[str]:
    """The clusters that were last started here, the newest first."""
    paths = {_announcement()}
    private = private_directory(LONGEST_FOLDER_BYTES)
    if private is not None:
        paths.add(private / "ray" / _announcement().name)
    found = [(path.stat().st_mtime_ns, _read(path)) for path in paths if path.exists()]
    return [address for _, address in sorted(found, reverse=True) if address]


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _wait_for_answer(address: str, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    told = False
    while not _answers(address):
        if time.monotonic() >= deadline:
            raise ClusterTimeout(
                f"no Ray answers at {address} after {seconds_text(timeout_s)}: {_HOW_TO_START}"
            )
        if not told:
            told = True
            _log.warning(
                "no Ray answers at %s yet; it is waited for, %s at most", address, seconds_text(timeout_s)
            )
        pause.wait(_ATTEMPT_PAUSE_S)


def _answers(address: str) -> bool:
    try:
        with socket.create_connection(host_and_port(address), timeout=_ATTEMPT_TIMEOUT_S):
            return True
    except OSError:
        return False
