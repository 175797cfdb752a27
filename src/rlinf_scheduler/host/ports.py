"""Ports for rendezvous: picked on the node itself and kept from others until they are used."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from rlinf_scheduler.comm.port_range import PortRange, in_turn, lent_ports
from rlinf_scheduler.errors import ClusterError

_USUAL = range(20_000, 32_000)
_EPHEMERAL_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")


class ReservedPort:
    """A free TCP port of this machine that no other process of this library takes while this object lives.

    Binding and closing a socket would leave the port free for anyone in between. So the port is held by an abstract
    name that all processes of this machine agree on, and it lies outside the range from which the kernel serves
    outgoing connections. A bound socket keeps off programs that are not ours, too: only a socket with SO_REUSEADDR,
    such as the one of torch's rendezvous, can be bound beside it.
    """

    def __init__(
        self,
        *,
        bound: bool = True,
        wanted: int = 0,
        ports: PortRange | None = None,
        highest: int | None = None,
    ) -> None:
        """Reserve one.

        Args:
            bound: whether a socket is bound to it.
            wanted: that one and no other; 0: any.
            ports: the job's, of which some are for this; None: those that suit most machines.
            highest: none above that one; None: any.

        Raises:
            ClusterError: no port in the range is free; or the one that is wanted is not.
        """
        every = _up_to(highest, _USUAL if ports is None else lent_ports(ports))
        for port in [wanted] if wanted else _candidates(every):
            lock = _try_lock(port)
            if lock is None:
                continue
            holder = _bound(port, reuse=bound)
            if holder is not None:
                self.port = port
                self._lock = lock
                self._holder = holder
                if not bound:
                    holder.close()
                return
            os.close(lock)
        if wanted:
            raise ClusterError(f"TCP port {wanted} of this node, the group's for rendezvous, is not free")
        raise ClusterError(
            f"no free TCP port between {every[0]} and {every[-1]} on this node{_why_these(ports)}"
        )

    def release(self) -> None:
        """Let others have the port."""
        self._holder.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def acquire_port(*, ports: PortRange | None = None, highest: int | None = None) -> int:
    """A free TCP port of this machine that is this process's until it ends; errors as of `ReservedPort`."""
    # Its user may bind it without SO_REUSEADDR.
    reserved = ReservedPort(bound=False, ports=ports, highest=highest)
    _kept.append(reserved)
    return reserved.port


_kept: list[ReservedPort] = []


def _up_to(highest: int | None, ports: range) -> range:
    """The ports that are no higher.

    Raises:
        ClusterError: all of them are.
    """
    if highest is None:
        return ports
    if highest < ports[0]:
        raise ClusterError(f"no TCP port up to {highest} is for ranks: theirs are {ports[0]} to {ports[-1]}")
    return range(ports[0], min(ports[-1], highest) + 1)


def _why_these(ports: PortRange | None) -> str:
    if ports is None:
        return ""
    return f": ranks are lent the last quarter of cluster.network.ports, {ports[0]}-{ports[1]}; name a larger range"


def _candidates(every: range) -> list[int]:
    low, high = _ephemeral_range()
    usable = [port for port in every if not low <= port <= high] or list(every)
    return in_turn(usable)


def _ephemeral_range() -> tuple[int, int]:
    try:
        low, high = _EPHEMERAL_RANGE_FILE.read_text().split()
    except (OSError, ValueError):
        return 32_768, 60_999
    return int(low), int(high)


def _try_lock(port: int) -> int | None:
    """A descriptor of what all processes that share the ports agree on; it goes with its process."""
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        lock.bind(f"\0rlinf-port-{port}")
    except OSError:
        lock.close()
        return None
    return lock.detach()


def _bound(port: int, *, reuse: bool) -> socket.socket | None:
    """A socket bound to a port of every address; None if the port is not free."""
    holder = socket.socket()
    # As a rendezvous server itself binds: to that a port in TIME_WAIT from an earlier job is free.
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
    try:
        holder.bind(("", port))
    except OSError:
        holder.close()
        return None
    return holder
