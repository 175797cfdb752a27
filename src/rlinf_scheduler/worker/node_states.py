"""Which nodes of a job are gone, since when and why. Pure: what was seen comes in, what is to be told goes out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from rlinf_scheduler.errors import NodeLost
from rlinf_scheduler.planning import Node

# Who was silent for so long, in so many looks, is told of: as soon as what is slow is told from what is not there.
TOLD_AFTER_S = 3.0
_TOLD_AFTER_LOOKS, _GIVEN_UP_AFTER_LOOKS = 2, 4
# Where nobody has listened for so long, on a machine that answers, nobody does: what was restarted would be back.
REFUSED_FOR_S = 5.0


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
        rank = self.rank_of(node_id)
        if rank is None or rank in self.lost:
            return None
        self.lost[rank] = f"{self.title(rank)} is gone: {cause}"
        return rank

    def renew(self, nodes: Sequence[Node], alive: Collection[str]) -> None:
        """The nodes were probed anew: those that are `alive`, by their ids, are not lost any more."""
        self._nodes = list(nodes)
        kept = {rank for rank, node in enumerate(nodes) if node.node_id not in alive}
        self.lost = {rank: cause for rank, cause in self.lost.items() if rank in kept}

    def rank_of(self, node_id: str) -> int | None:
        """Which node that is; None if it is none of the job's."""
        return next((rank for rank, node in enumerate(self._nodes) if node.node_id == node_id), None)

    def node(self, rank: int) -> Node:
        """What is known of it."""
        return self._nodes[rank]

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


@dataclass(frozen=True, slots=True)
class NodeSilence:
    """A node does not answer those who look at it, or did not.

    Attributes:
        node_id: which.
        silent_s: for how long, in seconds.
        over: it answers again.
        too_long: it is given up.
        refused: its machine answers, and says that nobody listens there.
    """

    node_id: str
    silent_s: float
    over: bool = False
    too_long: bool = False
    refused: bool = False


@dataclass(slots=True)
class _Silent:
    since: float
    looks: int = 0
    told: bool = False
    # Since when each look was refused, and how many were; not counted before the last one that was not.
    refused_since: float = 0.0
    refusals: int = 0

    def count(self, began: float, *, refused: bool) -> None:
        self.looks += 1
        if refused:
            self.refused_since = self.refused_since if self.refusals else began
        self.refusals = self.refusals + 1 if refused else 0

    def too_long(self, limit_s: float, now: float) -> bool:
        is_silent = now - self.since >= limit_s and self.looks >= _GIVEN_UP_AFTER_LOOKS
        is_refused = now - self.refused_since >= min(REFUSED_FOR_S, limit_s)
        return is_silent or (is_refused and self.refusals >= _GIVEN_UP_AFTER_LOOKS)


class NodeSilences:
    """Which nodes do not answer, from one look to the next. Times are seconds of a monotonic clock.

    That this process itself stood still counts against nobody: silence is counted in looks, too.

    Args:
        give_up_after_s: for how long a node may be silent.
        limits_s: the same for some of them alone, by their ids.

    >>> silences = NodeSilences(30.0)
    >>> silences.take(["a"], ["b"], began=0.0, now=1.0)
    []
    >>> silences.take(["a"], ["b"], began=2.0, now=3.0)
    [NodeSilence(node_id='b', silent_s=3.0, over=False, too_long=False, refused=False)]
    >>> silences.take(["a", "b"], [], began=4.0, now=4.0)
    [NodeSilence(node_id='b', silent_s=4.0, over=True, too_long=False, refused=False)]
    """

    def __init__(self, give_up_after_s: float, limits_s: Mapping[str, float] = MappingProxyType({})) -> None:
        self._give_up_after_s = give_up_after_s
        self._limits_s = limits_s
        self._silent: dict[str, _Silent] = {}

    def take(
        self,
        answering: Collection[str],
        silent: Collection[str],
        refusing: Collection[str] = (),
        *,
        began: float,
        now: float,
    ) -> list[NodeSilence]:
        """What is to be told of a look: which nodes have answered, which have not until its end or were `refusing`."""
        found: list[NodeSilence] = []
        for node_id in answering:
            before = self._silent.pop(node_id, None)
            if before is not None and before.told:
                found.append(NodeSilence(node_id, now - before.since, over=True))
        for node_id in silent:
            state = self._silent.setdefault(node_id, _Silent(began))
            refused = node_id in refusing
            state.count(began, refused=refused)
            silent_s = now - state.since
            if state.too_long(self._limits_s.get(node_id, self._give_up_after_s), now):
                self.forget(node_id)
                found.append(NodeSilence(node_id, silent_s, too_long=True, refused=refused))
            elif silent_s >= TOLD_AFTER_S and state.looks >= _TOLD_AFTER_LOOKS and not state.told:
                state.told = True
                found.append(NodeSilence(node_id, silent_s, refused=refused))
        return found

    def forget(self, node_id: str) -> None:
        """It is gone."""
        self._silent.pop(node_id, None)

    def silent(self) -> list[str]:
        """Those that did not answer the last time; from any thread."""
        return list(self._silent)

    def silent_s(self, node_id: str, now: float) -> float:
        """For how long a node has been silent, if that was told; else 0."""
        state = self._silent.get(node_id)
        return now - state.since if state is not None and state.told else 0.0
