"""Groups as arguments, results and items: the process that gets one calls its ranks; its launcher supervises them."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import Any, Never

from rlinf_scheduler.addresses import WorkerAddress
from rlinf_scheduler.comm import Endpoint
from rlinf_scheduler.comm.directory import Entry
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.errors import ClusterError, CommError, WorkerDied
from rlinf_scheduler.planning import Placement
from rlinf_scheduler.session import Session, current_session
from rlinf_scheduler.worker.call import Target
from rlinf_scheduler.worker.group_calls import GroupCalls


@dataclass(eq=False)
class SentRank:
    """One rank's process, as the directory knows it; see `LaunchedRank`."""

    address: WorkerAddress
    placement: Placement
    endpoint: Endpoint | None
    gone: Promise[str] = field(default_factory=Promise)
    pid: int = 0
    num_restarts: int = 0
    ended_by: str = ""


class SentGroup(GroupCalls[SentRank]):
    """The processes of a group that another process launched, and supervises.

    A rank that dies ends its own calls here; the next call finds its successor, if it has one.

    Raises:
        WorkerDied: a rank is gone.
    """

    def __init__(self, session: Session, name: str, world_size: int) -> None:
        there = {entry.name: entry for entry in session.directory.list(f"{name}:")}
        addresses = [WorkerAddress(name, rank) for rank in range(world_size)]
        ranks = [
            _rank_of(address, there.get(str(address)) or _find(session, address)) for address in addresses
        ]
        super().__init__(session, name, ranks, "ignore", 0.0)

    def target(self, number: int) -> Target:
        """Where a call to a rank goes now; it may wait for a successor.

        Raises:
            WorkerDied: the rank is gone.
        """
        rank = self.ranks[number]
        if self._is_lost(rank.endpoint):
            self.ranks[number] = rank = _rank_of(rank.address, _find(self.session, rank.address))
        return Target(rank.address, rank.endpoint)

    def restart(self, number: int, timeout_s: float) -> Never:
        """Refuse to: see `GroupCalls`."""
        self._refuse("restart")

    def stop(self) -> Never:
        """Refuse to: see `GroupCalls`."""
        self._refuse("end")

    def shutdown(self, timeout_s: float | None) -> Never:
        """Refuse to: see `GroupCalls`."""
        self._refuse("end")

    def _refuse(self, what: str) -> Never:
        raise ClusterError(
            f"group '{self.name}' was sent here: only the process that launched it can {what} it"
        )


def sent_group(group_class: Any, name: str, worker_class: Any, world_size: int, state: dict[str, Any]) -> Any:
    """The group, or view of one, that was sent to this process.

    Raises:
        ClusterError: this process is no part of the job.
        WorkerDied: a rank is gone.
    """
    launched: Promise[GroupCalls[Any]] = Promise()
    launched.set_result(SentGroup(current_session(), name, world_size))
    group = group_class(name, worker_class, world_size, launched)
    vars(group).update(state)
    return group


def _find(session: Session, address: WorkerAddress) -> Entry:
    try:
        return session.directory.lookup(str(address))
    except CommError as error:
        raise WorkerDied(address.group, address.rank, "", str(error)) from error


def _rank_of(address: WorkerAddress, entry: Entry) -> SentRank:
    return SentRank(address, pickle.loads(entry.info["placement"]), entry.endpoint)
