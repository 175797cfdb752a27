"""How a process is reached: its endpoint, and whether two endpoints lie on one machine."""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path

import msgspec


class Endpoint(msgspec.Struct, array_like=True, frozen=True):
    """How to reach one process.

    Attributes:
        process_id: the hex id of the process's messenger: the hash of a key that only it has; never used twice.
        machine_id: equal for two processes if and only if they can share Unix sockets and memory.
        unix_path: the path of its Unix socket, "" if it has none.
        tcp_address: e.g. "tcp://10.0.0.3:23456", "" if it does not listen on TCP.
    """

    process_id: str
    machine_id: str
    unix_path: str
    tcp_address: str


def local_machine_id() -> str:
    """The id of the machine as this process sees it.

    Two processes have the same id if they run on the same boot of the same kernel, see the same files and
    the same network, and belong to the same user. Containers on one host differ and so use TCP: they
    cannot see each other's Unix sockets.
    """
    parts = [_boot_id(), _namespace("mnt"), _namespace("net"), str(os.getuid())]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()


def _namespace(kind: str) -> str:
    try:
        return str(Path(f"/proc/self/ns/{kind}").readlink())
    except OSError:
        return ""
