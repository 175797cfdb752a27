"""Which nodes of a job are gone, since when and why. Pure: what was seen comes in, what is to be told goes out."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rlinf.scheduler.errors import NodeLost
from rlinf.scheduler.planning import Node


class NodeStates:
    """The nodes of a job, living and lost. The first word about a node counts.

    Args:
        nodes: in rank order.

    Attributes:
        lost: why each node that is gone is gone, by its rank.

    >>> states = NodeStates([Node("a" * 8, "10.0.0.5"), Node("b" * 8, "10.0.0.7")])
    >>> states.lose("b" * 8, "its raylet ended at 12:03:04")
    1
    >>> print(states.refusal([0, 1]))
    node 1 (10.0.0.7, bbbbbbbb) is gone: its raylet ended at 12:03:04
    >>> states.lose("b" * 8, "Ray says so") is None
    True
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = list(nodes)
        self.lost: dict[int, str] = {}

    def lose(self, node_id: str, cause: str) -> int | None:
        """A node is gone; its rank, or None where that is no news, or no node of the job."""
        for rank, node in enumerate(self._nodes):
            if node.node_id == node_id and rank not in self.lost:
                self.lost[rank] = f"{self.title(rank)} is gone: {cause}"
                return rank
        return None

    def renew(self, nodes: Sequence[Node], alive: Collection[str]) -> None:
        """The nodes were probed anew: those that are `alive`, by their ids, are not lost any more."""
        self._nodes = list(nodes)
        kept = {rank for rank, node in enumerate(nodes) if node.node_id not in alive}
        self.lost = {rank: cause for rank, cause in self.lost.items() if rank in kept}

    def title(self, rank: int) -> str:
        """How a node is called: by its rank, its address, which several may share, and the begin of its id."""
        node = self._nodes[rank]
        return f"node {rank} ({node.ip}, {node.node_id[:8]})"

    def living(self) -> list[str]:
        """The ids of the nodes that are not lost."""
        return [node.node_id for rank, node in enumerate(self._nodes) if rank not in self.lost]

    def refusal(self, ranks: Collection[int]) -> NodeLost | None:
        """Why nothing can be started on these nodes; None if it can."""
        for rank in sorted(ranks):
            if rank in self.lost:
                return NodeLost(rank, self.lost[rank])
        return None
