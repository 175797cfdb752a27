"""A fixed range of ports, and who takes which of them: processes that listen, and ports that are lent to programs."""

from __future__ import annotations

import os
from collections.abc import Sequence

# The first and the last, both included.
PortRange = tuple[int, int]


def listening_ports(ports: PortRange) -> range:
    """Those on which processes of the job listen: the first three quarters.

    >>> listening_ports((20000, 20007)), lent_ports((20000, 20007))
    (range(20000, 20006), range(20006, 20008))
    """
    return range(ports[0], _first_lent(ports))


def lent_ports(ports: PortRange) -> range:
    """Those that ranks are lent for servers of their own, such as a rendezvous; nobody else takes one in between."""
    return range(_first_lent(ports), ports[1] + 1)


def in_turn(ports: Sequence[int]) -> list[int]:
    """All of them; every process starts elsewhere, so that many that start at once seldom meet."""
    start = (os.getpid() * 131) % len(ports)
    return [*ports[start:], *ports[:start]]


def _first_lent(ports: PortRange) -> int:
    first, last = ports
    return last + 1 - max(1, (last + 1 - first) // 4)
