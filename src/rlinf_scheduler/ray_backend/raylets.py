"""Which nodes of which Ray run on this machine, as their processes say it. Nothing here asks Ray."""

from __future__ import annotations

import contextlib
import os
import pwd
import shlex
import socket
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rlinf_scheduler.errors import ClusterError, ClusterTimeout
from rlinf_scheduler.ray_backend.authentication import host_and_port
from rlinf_scheduler.ray_backend.interfaces import network_interfaces
from rlinf_scheduler.ray_backend.probe import variables_of

_PROC = Path("/proc")
_ADDRESS_OPTION, _IP_OPTION, _FOLDER_OPTION = "--gcs-address=", "--node_ip_address=", "--log_dir="
_NODE_OPTION, _WORKER_OPTION = "--node_id=", "--python_worker_command="
# What decides which files, network, processes and devices a process sees.
_SURROUNDINGS = "ns/mnt", "ns/net", "ns/pid", "root"
_PAUSE_S = 0.25


def wait_for_raylet(address: str, timeout_s: float) -> None:
    """Wait until this machine is a node of the Ray at `address`: only from there can a process join it.

    Ray itself waits for a minute, whatever it is told.

    Raises:
        ClusterTimeout: it is none at the deadline.
        ClusterError: it is, and its Ray lets no other user take part.
    """
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while not any(_is_same(address, other) for other in raylets_here()):
        if time.monotonic() >= deadline:
            raise ClusterTimeout(
                f"this machine is no node of the Ray at {address}, after {max(timeout_s, 0):.0f} s: run the program on "
                f"one of its nodes, or `rlinf node start --address {address}` here first"
            )
        pause.wait(_PAUSE_S)
    _check_access(address)


def _check_access(address: str) -> None:
    # Ray itself, which writes there, aborts the process.
    there = [raylet for raylet in _raylets() if raylet.is_of(address)]
    folders = [(folder, raylet.uid) for raylet in there for folder in raylet.values(_FOLDER_OPTION)]
    if folders and not any(_lets_in(folder) for folder, _ in folders):
        folder, uid = folders[0]
        problem = f"the Ray at {address} is that of {_user(uid)}, and its folder {folder} lets nobody else in"
        raise ClusterError(
            f"{problem}: run the program as that user; this process is of {_user(os.getuid())}"
        )


def _lets_in(folder: str) -> bool:
    try:
        os.stat(folder)
    except PermissionError:
        return False
    except OSError:  # it is none of this process's: Ray says what there is
        return True
    return os.access(folder, os.W_OK | os.X_OK)


def _user(uid: int) -> str:
    try:
        return f"user '{pwd.getpwuid(uid).pw_name}'"
    except KeyError:
        return f"user {uid}"


def raylets_here() -> Iterator[str]:
    """For every node of a Ray that runs on this machine, the address of that Ray."""
    for raylet in _raylets():
        yield from raylet.values(_ADDRESS_OPTION)


def node_ip_here(address: str) -> str | None:
    """Which node of the Ray at `address` this machine is, by its own address; None where Ray finds that by itself.

    Where containers share their process ids, raylets of other nodes are seen, too, and Ray would take any of them.
    """
    there = {ip for raylet in _raylets() if raylet.is_of(address) for ip in raylet.values(_IP_OPTION)}
    own = there.intersection(ip for _, ip in network_interfaces())
    return own.pop() if len(there) > 1 and len(own) == 1 else None


def nodes_like_here(node_ids: Collection[str]) -> dict[str, Mapping[str, str]]:
    """Those nodes of this machine whose processes see what this one sees, with the variables that they start with.

    They are this user's, run this interpreter, and have the files, the network and the devices that are here: what
    one of them would say of its node this process can say.
    """
    found: dict[str, Mapping[str, str]] = {}
    for raylet in _raylets():
        for node_id in set(node_ids).intersection(raylet.values(_NODE_OPTION)):
            # It has ended, or is somebody else's; or the kernel does not say what is asked of it (gVisor, say), or an
            # apostrophe in some path keeps its command from being taken apart: a process there can still be asked.
            with contextlib.suppress(OSError, ValueError):
                if (
                    raylet.uid == os.getuid()
                    and raylet.runs_this_python()
                    and _surroundings(raylet.folder) == _surroundings(_PROC / "self")
                ):
                    found[node_id] = variables_of(raylet.folder)
    return found


@dataclass(frozen=True, slots=True)
class _Raylet:
    """A raylet that runs here: what the kernel shows of it, its user's number, and its options."""

    folder: Path
    uid: int
    options: list[str]

    def values(self, name: str) -> Iterator[str]:
        return (option.removeprefix(name) for option in self.options if option.startswith(name))

    def is_of(self, address: str) -> bool:
        return any(_is_same(address, other) for other in self.values(_ADDRESS_OPTION))

    def runs_this_python(self) -> bool:
        return any(shlex.split(command)[:1] == [sys.executable] for command in self.values(_WORKER_OPTION))


def _surroundings(process: Path) -> tuple[str, ...]:
    return *(os.readlink(process / each) for each in _SURROUNDINGS), (process / "cgroup").read_text()


def _raylets() -> Iterator[_Raylet]:
    for directory in _PROC.iterdir():
        if directory.name.isdecimal():
            with contextlib.suppress(OSError):  # it has ended
                program, *options = (directory / "cmdline").read_bytes().decode(errors="replace").split("\0")
                if program.rpartition("/")[2] == "raylet":
                    yield _Raylet(directory, directory.stat().st_uid, options)


def _is_same(one: str, other: str) -> bool:
    """Whether two addresses may be the same place: a machine has several names, and several addresses."""
    (host, port), (other_host, other_port) = host_and_port(one), host_and_port(other)
    if port != other_port:
        return False
    addresses, others = _addresses(host), _addresses(other_host)
    return not addresses or not others or bool(addresses & others) or _is_loopback(addresses | others)


def _addresses(host: str) -> set[str]:
    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(host, None)}
    except OSError:
        return set()


def _is_loopback(addresses: set[str]) -> bool:
    return bool(addresses & {"127.0.0.1", "::1"})
