"""Options of communication, which are accepted by this scheduler."""

from __future__ import annotations

from dataclasses import dataclass

from rlinf.scheduler.absent import absent

CollectiveGroup = absent(
    "CollectiveGroup",
    __name__,
    "no collective group carries what workers send: how bytes go is chosen for each pair; use `Worker.send`, `recv` "
    "and `broadcast`, and `options=` of them",
)


@dataclass
class CollectiveGroupOptions:
    """What `options=` of `send`, `recv`, `send_tensor`, `recv_tensor` and `broadcast` takes.

    They tune NCCL, which carries nothing here, so none of them has an effect: on one device tensors are handed over by
    CUDA IPC, on one node by shared memory, and a broadcast is written once on each node, however many members it has.

    Attributes:
        accel_cluster_size: how many thread blocks of NCCL's make a cluster.
        accel_max_ctas: how many of them it uses at most.
        accel_min_ctas: how many at least.
        is_high_priority_stream: whether it uses streams of high priority.
        use_ring_broadcast: whether a broadcast goes to the first receiver, and from there to the others.
    """

    accel_cluster_size: int | None = None
    accel_max_ctas: int | None = None
    accel_min_ctas: int | None = None
    is_high_priority_stream: bool = False
    use_ring_broadcast: bool = False

    def is_empty_options(self) -> bool:
        """Return whether all of them are as they are by default."""
        return self == CollectiveGroupOptions()
