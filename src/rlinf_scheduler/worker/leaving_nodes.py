"""Ranks leave nodes that are to be given back, in the time that is left: for another node, or out of their group."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence
from functools import partial

from rlinf_scheduler.checks import FOREVER_S
from rlinf_scheduler.errors import PlacementError, SchedulerError
from rlinf_scheduler.events import GroupLaunched, GroupResized, NodeDraining, WorkerReturned
from rlinf_scheduler.session import Session
from rlinf_scheduler.worker.deadline import Deadline
from rlinf_scheduler.worker.node_watch import NodeWatch
from rlinf_scheduler.worker.order import Shrinkage
from rlinf_scheduler.worker.processes import LaunchedRank
from rlinf_scheduler.worker.supervision import Supervision, groups_of

# Of the time that a node has left, ranks may take so much to finish: what has not is to be ended before the node is.
_SHARE = 0.8
# How long a rank that did not finish may take to be back elsewhere, in seconds.
_BACK_WITHIN_S = 120.0
_log = logging.getLogger(__name__)


class LeavingNodes:
    """Has the ranks of a process's groups leave nodes that are to be given back; a service of its session.

    Args:
        session: of the process that launched them.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        # The nodes that are being drained, and until when ranks are to have left them.
        self._draining: dict[str, tuple[NodeDraining, Deadline]] = {}
        session.service(NodeWatch).on_draining.append(self._on_draining)
        session.bus.tap(self._on_event)

    def _on_event(self, event: object) -> None:
        """Ranks that were starting as their node was drained are there; or ranks leave that run there."""
        if not self._draining or not isinstance(event, (GroupLaunched, GroupResized, WorkerReturned)):
            return
        if isinstance(event, GroupLaunched):
            changed = set(range(event.num_workers))
        elif isinstance(event, GroupResized):
            changed = set(event.old_ranks) ^ set(event.new_ranks)
        else:
            changed = {event.rank}
        self._session.messenger.submit(partial(self._on_changed, event.group, changed))

    def _on_changed(self, name: str, changed: Collection[int]) -> None:
        for group in [each for each in groups_of(self._session) if each.name == name]:
            for node in self._draining.values():
                self._leave(group, changed, *node)

    def _on_draining(self, event: NodeDraining) -> None:
        """A node is to be given back, or sooner than it was; on the I/O thread."""
        left_s = FOREVER_S if event.left_s is None else event.left_s * _SHARE
        known = self._draining.get(event.node_id)
        # A share of what is left may end after one of what was left before: it is as sooner as that was, then.
        if known is not None and (known[1].come_nearer(left_s) or known[1].left_s):
            self._draining[event.node_id] = event, known[1]
            return
        until = Deadline(left_s)
        self._draining[event.node_id] = event, until
        for group in list(groups_of(self._session)):
            self._leave(group, list(group.ranks), event, until)

    def _leave(
        self, group: Supervision, numbers: Collection[int], event: NodeDraining, until: Deadline
    ) -> None:
        """Have those of these ranks leave that run on a node."""
        there = [rank for rank in _ranks_on(group, event.node_id) if rank.address.rank in numbers]
        stay = [rank for rank in there if rank.address.rank in group.members]
        for rank in there:
            if rank not in stay:  # it leaves, but may have been given more time for that
                self._session.messenger.run_beside(self._end_in_time, group, rank, event.reason, until)
            elif group.moves:
                self._session.messenger.run_beside(self._move, group, rank, event.reason, until)
        if stay and not group.moves:
            self._session.messenger.run_beside(self._shrink, group, event, until)

    def _move(self, group: Supervision, rank: LaunchedRank, why: str, until: Deadline) -> None:
        """Let a rank finish what it has, and end: as after any death it comes back, on another node."""
        began = time.monotonic()
        rank.ended_by = why
        group.drain(rank, why, until)
        if until.wait(rank.gone):
            return
        try:
            group.restart(rank.address.rank, _BACK_WITHIN_S)
        except SchedulerError as error:
            took_s = time.monotonic() - began
            _log.warning("%s: '%s' is not back after %.0f s: %s", why, rank.address, took_s, error)

    def _end_in_time(self, group: Supervision, rank: LaunchedRank, why: str, until: Deadline) -> None:
        """End a rank that leaves its group already, if it has not finished by then."""
        group.drain(rank, why, until)
        if not until.wait(rank.gone):
            group.kill(rank, why)

    def _shrink(self, group: Supervision, event: NodeDraining, until: Deadline) -> None:
        """Have the ranks leave that are there, those too that have just come."""
        while there := _members_on(group, event.node_id):
            shrinkage = Shrinkage(ranks=there, drain_s=until.left_s, why=event.reason)
            try:
                group.shrink(shrinkage.checked(), until=until)
            except PlacementError:  # one of them has left in a resize that went on
                continue
            except SchedulerError as error:
                _log.warning("%s: ranks %s of '%s' stay there: %s", event.reason, [*there], group.name, error)
                return


def _ranks_on(group: Supervision, node_id: str) -> list[LaunchedRank]:
    """The ranks of a group that run on a node, those that leave too."""
    return [rank for rank in group.ranks.values() if rank.placement.node_id == node_id]


def _members_on(group: Supervision, node_id: str) -> Sequence[int]:
    """Those of them that do not leave."""
    return [rank.address.rank for rank in _ranks_on(group, node_id) if rank.address.rank in group.members]
