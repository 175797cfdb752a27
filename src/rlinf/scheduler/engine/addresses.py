"""Which Ray to join: Ray's own rule, but nothing is joined that does not answer, and nobody joins a simulation."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ray._private.utils import get_ray_address_file

from rlinf.scheduler.errors import ClusterError, ClusterTimeout

LOCAL = "local"
_AUTO = "auto"
_ATTEMPT_TIMEOUT_S = 2.0
_ATTEMPT_PAUSE_S = 0.25
_HOW_TO_START = (
    "run `ray start --head` on the first node and `ray start --address=HEAD:6379` on the others, "
    "or try without a cluster: simulate='2x8'"
)


def find_address(address: str | None, num_nodes: int | None, timeout_s: float) -> str:
    """What to hand to `ray.init`: an address where a Ray answers, or "local" for a new one.

    In this order: `address`; the variable RAY_ADDRESS; the cluster that was last started on this machine; a new
    one, unless several nodes are wanted. Ray itself would wait for minutes at an address where nothing answers,
    such as that of a cluster that was killed.

    Raises:
        ClusterTimeout: nothing answers at the address that was given before the deadline.
        ClusterError: the address cannot be read, or there is no cluster to join.
    """
    wanted = address or os.environ.get("RAY_ADDRESS") or None
    if wanted is not None and wanted not in (_AUTO, LOCAL):
        _wait_for_answer(wanted, timeout_s)
        return wanted
    found = None if wanted == LOCAL else _announced()
    if found and _answers(found):
        return found
    if wanted == _AUTO or (num_nodes or 1) > 1:
        raise ClusterError(f"no Ray cluster runs on this machine: {_HOW_TO_START}")
    return LOCAL


@contextmanager
def unannounced() -> Iterator[None]:
    """Keep a Ray that is started inside from becoming the one that other programs on this machine join."""
    before = _announced()
    try:
        yield
    finally:
        if before:
            _announcement().write_text(before)
        else:
            _announcement().unlink(missing_ok=True)


def _announcement() -> Path:
    """Where Ray notes the cluster that was last started on this machine."""
    return Path(get_ray_address_file(None))


def _announced() -> str:
    try:
        return _announcement().read_text().strip()
    except OSError:
        return ""


def _wait_for_answer(address: str, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while not _answers(address):
        if time.monotonic() >= deadline:
            raise ClusterTimeout(f"no Ray answers at {address} after {timeout_s:.0f} s: {_HOW_TO_START}")
        pause.wait(_ATTEMPT_PAUSE_S)


def _answers(address: str) -> bool:
    host, colon, port = address.rpartition(":")
    if "://" in address or not colon or not port.isdecimal():
        raise ClusterError(f"{address!r} is not the address of a Ray cluster: 'HOST:PORT', 'auto' or 'local'")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_ATTEMPT_TIMEOUT_S):
            return True
    except OSError:
        return False
