"""The network interfaces of this machine, and which of its addresses the other nodes are to use."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from pathlib import Path

from rlinf_scheduler.errors import ClusterError
from rlinf_scheduler.ray_backend.authentication import host_and_port

_SIOCGIFADDR = 0x8915  # netdevice(7)
_IPV6_FILE = Path("/proc/net/if_inet6")
# A node there is this machine's alone.
LOOPBACK = ("127.0.0.1", "::1")
# Addresses of RFC 5737, which are nobody's: what is asked of the kernel sends nothing. A machine may be in one of these
# networks all the same, where this is its broadcast address and leads nowhere; it is not in all of them.
_ANYWHERE = (("192.0.2.255", 9), ("198.51.100.255", 9), ("203.0.113.255", 9))


def own_ip(interface: str | None, address: str | None) -> str:
    """This machine's address in the cluster.

    Args:
        interface: the name of a network interface, or an address of this machine; None: the one from which the
            Ray to join is reached, or, for a new one, other networks. 127.0.0.1 is for a Ray of this machine alone.
        address: the Ray to join, HOST:PORT, or None.

    Raises:
        ClusterError: there is no such interface, it has no address, or none can be chosen.
    """
    if interface is not None:
        return _reachable(_of_interface(interface), address)
    there = network_interfaces()
    places = _ANYWHERE if address is None else (host_and_port(address),)
    ip = next(filter(None, map(_source_towards, places)), None)
    if ip is None:
        lasting = [own for _, own in there if not ipaddress.ip_address(own).is_link_local]
        ip = lasting[0] if len(lasting) == 1 else None
    if ip is None:
        raise ClusterError(
            f"say by which interface the other nodes reach this machine (--interface): {_list(there)}"
        )
    return _reachable(ip, address)


def _reachable(ip: str, address: str | None) -> str:
    if address is not None and ip in LOOPBACK:
        raise ClusterError(f"other nodes cannot reach {ip}: say by which interface they can (--interface)")
    return ip


def _of_interface(interface: str) -> str:
    try:
        return str(ipaddress.ip_address(interface))
    except ValueError:
        pass
    there = network_interfaces()
    own = [ip for name, ip in there if name == interface]
    # IPv4 first, and no address that is good on one cable only.
    own.sort(key=lambda ip: (ipaddress.ip_address(ip).version, ipaddress.ip_address(ip).is_link_local))
    if not own:
        raise ClusterError(
            f"there is no interface {interface!r} here with an address that others can reach: {_list(there)}"
        )
    return own[0]


def _source_towards(place: tuple[str, int]) -> str | None:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(*place, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as any_socket:
            any_socket.connect(address)
            return str(any_socket.getsockname()[0])
    except OSError:
        return None


def _list(there: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(f"{name} {ip}" for name, ip in there) or "it has none but the loopback"


def network_interfaces() -> tuple[tuple[str, str], ...]:
    """Name and address of every interface that has one, the loopback's left out; one entry an address."""
    found = [(name, address) for _, name in socket.if_nameindex() if (address := _ipv4_address(name))]
    found.extend(_ipv6_addresses())
    return tuple(sorted(entry for entry in found if not ipaddress.ip_address(entry[1]).is_loopback))


def _ipv4_address(name: str) -> str:
    request = struct.pack("256s", name.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket.fileno(), _SIOCGIFADDR, request)
        except OSError:  # it has no IPv4 address
            return ""
    return socket.inet_ntoa(answer[20:24])


def _ipv6_addresses() -> list[tuple[str, str]]:
    try:
        lines = _IPV6_FILE.read_text().splitlines()
    except OSError:  # the kernel was built or booted without IPv6
        return []
    rows = (line.split() for line in lines)
    return [(row[5], str(ipaddress.IPv6Address(int(row[0], 16)))) for row in rows if len(row) == 6]
