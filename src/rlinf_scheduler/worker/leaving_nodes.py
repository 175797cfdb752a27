"""Ranks leave nodes that are to be given back, in the time that is left: for another node, or out of their group."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from functools import partial

from rlinf_scheduler.errors import PlacementError, SchedulerError
from rlinf_scheduler.events import GroupLaunched, GroupResized, NodeDraining, WorkerReturned
from rlinf_scheduler.host import protocol
from rlinf_scheduler.session import Session
from rlinf_scheduler.worker.node_watch import NodeWatch
from rlinf_scheduler.worker.order import Shrinkage
from rlinf_scheduler.worker.processes import LaunchedRank
from rlinf_scheduler.worker.supervision import Supervision, groups_of

# Of the time that a node has left, ranks may take so much to finish: what has not is to be ended before the node is.
_SHARE = 0.8
# Where nobody said how long it lasts, in seconds.
_UNLIMITED_S = 3600.0
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
        self._draining: dict[str, tuple[NodeDraining, float]] = {}
        session.service(NodeWatch).on_draining.append(self._on_draining)
        session.bus.tap(self._on_event)

    def _on_event(self, event: object) -> None:
        """Ranks that were starting as their node was drained are there."""
        if not self._draining or not isinstance(event, (GroupLaunched, GroupResized, WorkerReturned)):
            return
        if isinstance(event, GroupLaunched):
            new = set(range(event.num_workers))
        elif isinstance(event, GroupResized):
            new = set(event.new_ranks) - set(event.old_ranks)
        else:
            new = {event.rank}
        if new:
            self._session.messenger.submit(partial(self._on_new, event.group, new))

    def _on_new(self, group: str, new: set[int]) -> None:
        for event, until in self._draining.values():
            self._leave(
                [
                    each
                    for each in groups_of(self._session)
                    if each.name == group
                    and any(rank.address.rank in new for rank in _ranks_on(each, event.node_id))
                ],
                event,
                until,
            )

    def _on_draining(self, event: NodeDraining) -> None:
        left_s = _UNLIMITED_S if event.left_s is None else event.left_s * _SHARE
        until = time.monotonic() + left_s
        self._draining[event.node_id] = event, until
        self._leave(list(groups_of(self._session)), event, until)

    def _leave(self, groups: Sequence[Supervision], event: NodeDraining, until: float) -> None:
        for group in groups:
            there = _ranks_on(group, event.node_id)
            if there and group.moves:
                for rank in there:
                    self._session.messenger.run_beside(self._move, group, rank, event.reason, until)
            elif there:
                self._session.messenger.run_beside(self._shrink, group, event, until)
            for rank in list(group.ranks.values()):  # it may have to leave sooner than it was told to
                if rank.placement.node_id == event.node_id and rank.address.rank not in group.members:
                    self._session.messenger.run_beside(self._end_in_time, group, rank, event.reason, until)

    def _move(self, group: Supervision, rank: LaunchedRank, why: str, until: float) -> None:
        """Let a rank finish what it has, and end: as after any death it comes back, on another node."""
        began = time.monotonic()
        left_s = max(0.0, until - began)
        rank.ended_by = why
        if rank.endpoint is not None:
            self._session.messenger.notify(rank.endpoint, protocol.DRAIN, protocol.Drain(why, left_s))
        if rank.gone.wait(left_s):
            return
        try:
            group.restart(rank.address.rank, _BACK_WITHIN_S)
        except SchedulerError as error:
            took_s = time.monotonic() - began
            _log.warning("%s: '%s' is not back after %.0f s: %s", why, rank.address, took_s, error)

    def _end_in_time(self, group: Supervision, rank: LaunchedRank, why: str, until: float) -> None:
        """End a rank that leaves its group already, if it has not finished by then."""
        if not rank.gone.wait(max(0.0, until - time.monotonic())):
            group.kill(rank, why)

    def _shrink(self, group: Supervision, event: NodeDraining, until: float) -> None:
        """Have the ranks leave that are there, those too that have just come."""
        while there := _ranks_on(group, event.node_id):
            numbers = tuple(rank.address.rank for rank in there)
            left_s = max(0.0, until - time.monotonic())
            shrinkage = Shrinkage(ranks=numbers, drain_s=left_s, why=event.reason, in_all=True)
            try:
                group.shrink(shrinkage.checked())
            except PlacementError:  # one of them has left in a resize that went on
                continue
            except SchedulerError as error:
                _log.warning(
                    "%s: ranks %s of '%s' stay there: %s", event.reason, [*numbers], group.name, error
                )
                return


def _ranks_on(group: Supervision, node_id: str) -> list[LaunchedRank]:
    """The members of a group that run on a node."""
    ranks = group.ranks
    there = [ranks[number] for number in group.members.ranks if number in ranks]
    return [rank for rank in there if rank.placement.node_id == node_id]
