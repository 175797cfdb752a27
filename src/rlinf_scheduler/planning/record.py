"""`Placement`: where one process runs and what it sees; and a quick way to make very many."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one process runs and what it sees.

    Attributes:
        rank: its rank in its component, from 0.
        node_id: the node's name in the cluster.
        node_rank: the node's rank in the cluster.
        placement_node_rank: the node's index among the nodes that this component uses; rank 0 runs on node 0 of them.
        local_rank: its index among this component's processes on its node, in rank order.
        local_world_size: this component's processes on its node.
        hardware_type: what it was given: the accelerators' vendor, a type such as "Robot", or "" for a bare node.
        hardware_ranks: what it was given, numbered in the node group.
        local_hardware_ranks: the same, as indices on the node.
        visible_accelerators: the value of the visibility variable, entry by entry; empty: it sees none.
        isolate_gpu: whether it sees only its own accelerators.
        node_group: the group that its resources belong to (several, with commas, where it takes from several).
        has_accelerators: whether `hardware_ranks` are accelerators.
    """

    rank: int
    node_id: str
    node_rank: int
    placement_node_rank: int = 0
    local_rank: int = 0
    local_world_size: int = 1
    hardware_type: str = ""
    hardware_ranks: tuple[int, ...] = ()
    local_hardware_ranks: tuple[int, ...] = ()
    visible_accelerators: tuple[str, ...] = ()
    isolate_gpu: bool = True
    node_group: str = "cluster"
    has_accelerators: bool = False

    @property
    def local_gpu_id(self) -> int | None:
        """The index on the node of its first accelerator; None where it was given none."""
        return self.local_hardware_ranks[0] if self.has_accelerators else None

    @property
    def local_accelerator_rank(self) -> int | None:
        """Another name of `local_gpu_id`."""
        return self.local_gpu_id

    @property
    def cuda_visible_devices(self) -> tuple[str, ...]:
        """Another name of `visible_accelerators`."""
        return self.visible_accelerators

    @property
    def cluster_node_rank(self) -> int:
        """Another name of `node_rank`."""
        return self.node_rank

    @property
    def isolate_accelerator(self) -> bool:
        """Another name of `isolate_gpu`."""
        return self.isolate_gpu

    @property
    def node_group_label(self) -> str:
        """Another name of `node_group`."""
        return self.node_group


class PlacementDraft:
    """A placement that is being written.

    A frozen dataclass writes every field through `object.__setattr__`. Making one this way takes a third of the time,
    which counts where a plan has hundreds of thousands of processes.
    """

    __slots__ = tuple(field.name for field in fields(Placement))

    def __init__(
        self,
        rank: int,
        node_id: str,
        node_rank: int,
        placement_node_rank: int,
        local_rank: int,
        local_world_size: int,
        hardware_type: str,
        hardware_ranks: tuple[int, ...],
        local_hardware_ranks: tuple[int, ...],
        visible_accelerators: tuple[str, ...],
        isolate_gpu: bool,
        node_group: str,
        has_accelerators: bool,
    ) -> None:
        self.rank = rank
        self.node_id = node_id
        self.node_rank = node_rank
        self.placement_node_rank = placement_node_rank
        self.local_rank = local_rank
        self.local_world_size = local_world_size
        self.hardware_type = hardware_type
        self.hardware_ranks = hardware_ranks
        self.local_hardware_ranks = local_hardware_ranks
        self.visible_accelerators = visible_accelerators
        self.isolate_gpu = isolate_gpu
        self.node_group = node_group
        self.has_accelerators = has_accelerators

    def finished(self) -> Placement:
        """The same object as a `Placement`: both have the same slots. From now on it is frozen."""
        self.__class__ = Placement  # type: ignore[assignment]
        return self  # type: ignore[return-value]
