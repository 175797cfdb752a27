"""The network interfaces of this node, as the kernel lists them."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from pathlib import Path

_SIOCGIFADDR = 0x8915  # netdevice(7)
_IPV6_FILE = Path("/proc/net/if_inet6")


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
