"""How many bytes a channel holds: what its creator said, or a share of the memory of the machine that holds it."""

from __future__ import annotations

from rlinf_scheduler.channel.spec import ChannelSpec
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.comm.shm.limit import memory_bytes
from rlinf_scheduler.queueing import ChannelState, Instruction

logger = Reporter(__name__)

# A quarter of the machine, or of the container.
SHARE = 4


class ByteBound:
    """The bound of one channel; the first put that waits for one that nobody asked for is reported.

    Attributes:
        max_bytes: how many bytes all queues of the channel may hold; 0 is unbounded.
    """

    def __init__(self, spec: ChannelSpec) -> None:
        self.max_bytes = memory_bytes() // SHARE if spec.max_bytes is None else spec.max_bytes
        self._name = spec.name
        self._is_said = spec.max_bytes is not None

    def note(self, state: ChannelState) -> list[Instruction]:
        """A put waits: say once that the channel is full of bytes."""
        if not self._is_said and state.is_crowded:
            self._is_said = True
            logger.warning(
                "channel '%s': puts wait, for it holds %d MiB, which is a share of this machine's memory; take items "
                "from it, or say how much it may hold (max_bytes=)",
                self._name,
                self.max_bytes >> 20,
            )
        return []
