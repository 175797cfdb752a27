"""Which nodes of which Ray run on this machine, as their processes say it. Nothing here asks Ray."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from rlinf.scheduler.engine.authentication import host_and_port
from rlinf.scheduler.engine.probe import network_interfaces
from rlinf.scheduler.errors import ClusterTimeout

_PROC = Path("/proc")
_ADDRESS_OPTION, _IP_OPTION = "--gcs-address=", "--node_ip_address="
_PAUSE_S = 0.25


def wait_for_raylet(address: str, timeout_s: float) -> None:
    """Wait until this machine is a node of the Ray at `address`: only from there can a process join it.

    Ray itself waits for a minute, whatever it is told.

    Raises:
        ClusterTimeout: it is none at the deadline.
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


def raylets_here() -> Iterator[str]:
    """For every node of a Ray that runs on this machine, the address of that Ray."""
    for options in _raylets():
        yield from _values(options, _ADDRESS_OPTION)


def node_ip_here(address: str) -> str | None:
    """Which node of the Ray at `address` this machine is, by its own address; None where Ray finds that by itself.

    Where containers share their process ids, raylets of other nodes are seen, too, and Ray would take any of them.
    """
    there = {
        ip
        for options in _raylets()
        if any(_is_same(address, other) for other in _values(options, _ADDRESS_OPTION))
        for ip in _values(options, _IP_OPTION)
    }
    own = there.intersection(ip for _, ip in network_interfaces())
    return own.pop() if len(there) > 1 and len(own) == 1 else None


def _raylets() -> Iterator[list[str]]:
    """The options of every raylet that runs here."""
    for directory in _PROC.iterdir():
        if directory.name.isdecimal():
            with contextlib.suppress(OSError):  # it has ended
                program, *options = (directory / "cmdline").read_bytes().decode(errors="replace").split("\0")
                if program.rpartition("/")[2] == "raylet":
                    yield options


def _values(options: Iterable[str], name: str) -> Iterator[str]:
    return (option.removeprefix(name) for option in options if option.startswith(name))


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
