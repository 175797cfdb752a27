"""The variables that a rank's process starts with."""

from __future__ import annotations

from collections.abc import Collection

from rlinf_scheduler.hardware.egl import render_settings
from rlinf_scheduler.hardware.vendors import visibility_settings
from rlinf_scheduler.host.info import SEED_VARIABLE
from rlinf_scheduler.planning import Node, Placement
from rlinf_scheduler.planning.environments import LAUNCH_VARIABLES
from rlinf_scheduler.session.membership import GroupMembers


def device_index(placement: Placement) -> int:
    """The number of a rank's first device among those that its process sees: LOCAL_RANK."""
    if not placement.has_accelerators:
        return placement.local_rank
    return 0 if placement.isolate_gpu else placement.local_hardware_ranks[0]


def rank_environment(
    placement: Placement,
    *,
    members: GroupMembers,
    node: Node,
    seed: int,
    set_by_group: Collection[str] = (),
) -> dict[str, str]:
    """What the launch sets for one rank.

    RANK to MASTER_PORT are what `torch.distributed.init_process_group` reads for `env://`. LOCAL_RANK is the index
    to hand to `torch.cuda.set_device`: 0 of the rank's own mask where it is isolated, the first device's index on
    the node where all are visible, and the rank's number among its group's ranks on that node where it
    was given no accelerator.

    Args:
        placement: where the rank runs and what it sees.
        members: the ranks of its group.
        node: the node it runs on.
        seed: of its random numbers.
        set_by_group: the variables that its node groups set: those for renderers stay as they say.
    """
    rendezvous = (
        members.place_of(placement.rank),
        members.world_size,
        device_index(placement),
        placement.local_world_size,
        placement.placement_node_rank,
        members.master_address,
        members.master_port,
    )
    rendering = render_settings(placement, node) if placement.has_accelerators else {}
    return {
        **dict(zip(LAUNCH_VARIABLES, map(str, rendezvous), strict=True)),
        **visibility_settings(node.accelerator_type, placement.visible_accelerators),
        **{name: value for name, value in rendering.items() if name not in set_by_group},
        "RLINF_GROUP": members.group,
        SEED_VARIABLE: str(seed),
        "RLINF_WORKER_LOCAL_RANK": str(placement.local_rank),
        "RLINF_WORKER_NODE_RANK": str(placement.node_rank),
        "RLINF_LOCAL_HARDWARE_RANKS": ",".join(map(str, placement.local_hardware_ranks)),
    }
