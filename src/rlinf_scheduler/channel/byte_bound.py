"""How many bytes a channel holds: what its creator said, or a share of the memory of the machine that holds it."""

from __future__ import annotations

from rlinf_scheduler.channel.spec import ChannelSpec
from rlinf_scheduler.comm.shm.limit import memory_bytes

# A quarter of the machine, or of the container.
SHARE = 4


def max_bytes_of(spec: ChannelSpec) -> int:
    """Return how many bytes all queues of a channel may hold here; 0 is unbounded."""
    return memory_bytes() // SHARE if spec.max_bytes is None else spec.max_bytes
