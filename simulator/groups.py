"""A group whose ranks divide a queue, and which is resized while they do: rank n is of the process with number n."""

from __future__ import annotations

from msgspec.structs import replace

from rlinf_scheduler.session import Session
from rlinf_scheduler.session.membership import GroupMembers
from simulator.cluster import Cluster

GROUP = "actor"


class ResizedGroup:
    """The ranks of one group.

    Args:
        cluster: its processes.
        size: how many ranks it has in the beginning.

    Attributes:
        members: those that it has now.
    """

    def __init__(self, cluster: Cluster, size: int) -> None:
        self._cluster = cluster
        self.members = GroupMembers(GROUP, tuple(range(size)), launched_ns=1)

    def resize(self, rank: int) -> bool:
        """Let a rank leave, or one come that is none of them; whether it is one now. The last one stays."""
        ranks = {*self.members.ranks} ^ {rank}
        if not ranks:
            return True
        self.members = replace(self.members, ranks=tuple(sorted(ranks)), epoch=self.members.epoch + 1)
        self._cluster.world.note("group", "has ranks", *self.members.ranks)
        self.tell()
        return rank in ranks

    def tell(self) -> None:
        """Let the job's home tell all processes which ranks there are, if it lives."""
        home = self._cluster.processes.home
        if home.alive:
            process = self._cluster.processes.of(home)
            home.later(0, self._tell, process.session, self.members)

    @staticmethod
    def _tell(session: Session, members: GroupMembers) -> None:
        session.members.tell(members)
