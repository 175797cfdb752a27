"""How the ranks of a group are, as its launcher knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlinf_scheduler.addresses import WorkerAddress

State = Literal["alive", "unresponsive", "restarting", "dead", "ended"]


@dataclass(frozen=True, slots=True)
class RankHealth:
    """How a rank is.

    Attributes:
        address: its name, `group:rank`.
        state: "alive"; "unresponsive": stopped, stuck or cut off; "restarting": its process is gone, and another one
            takes its place, or may; "dead"; "ended": with its group, which was terminated.
        reason: why it is not alive; "" if it is.
        node_rank: its node.
        pid: its process's id there, the last one's if it has none.
        num_restarts: how many processes had its place before.
    """

    address: WorkerAddress
    state: State
    reason: str
    node_rank: int
    pid: int
    num_restarts: int
