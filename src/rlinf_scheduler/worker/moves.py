"""Where ranks are that are not where their launch put them, and the devices that were taken for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import NamedTuple

from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.host.info import job_topology
from rlinf_scheduler.planning import Placement, Topology
from rlinf_scheduler.planning.moving import moved
from rlinf_scheduler.session import Session
from rlinf_scheduler.worker.node_watch import NodeWatch
from rlinf_scheduler.worker.processes import GivesBack, Processes, device_names, devices_of
from rlinf_scheduler.worker.supervision import groups_of


class _TakenPlace(NamedTuple):
    """Where a rank is going, its devices there, and what gives back those that were taken together with them."""

    placement: Placement
    devices: set[tuple[str, str]]
    give_back: GivesBack


class Moves:
    """The moves of a process's groups; a service of its session. Used by threads that bring ranks back.

    Args:
        session: of the process that launched them.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        # One at a time: what one rank gets the next one does not. The I/O thread never waits for it.
        self._lock = threading.Lock()
        # By group and rank.
        self._places: dict[tuple[str, int], _TakenPlace] = {}

    def begin(self, group: str, placement: Placement, topology: Topology) -> Placement:
        """Where a rank goes; the job has the devices there.

        Args:
            group: its group.
            placement: where it was.
            topology: what the group was placed on, with its node groups.

        Raises:
            PlacementError: no other node has what it needs.
            DeviceHeld: others have just taken it.
            ClusterError: Ray does not say what others have.
        """
        nodes = job_topology(self._session).nodes
        processes = self._session.service(Processes)
        with self._lock:
            self._forget_ended()
            gone = self._session.service(NodeWatch).states.unusable()
            used = processes.held_elsewhere() | self._used()
            found = moved(placement, replace(topology, nodes=nodes), gone, used)
            give_back = processes.reserve(group, devices_of([found], nodes), 0.0)
            before = self._places.get((group, placement.rank))
            self._places[group, placement.rank] = _TakenPlace(found, device_names(found, nodes), give_back)
        if before is not None:  # it has moved before: that node is gone, too
            self._give_back(before)
        return found

    def place(
        self,
        group: str,
        find: Callable[[Collection[int], Collection[tuple[int, int]]], list[Placement]],
        given_up: Promise[None],
        *,
        on_free_devices: bool,
    ) -> list[Placement]:
        """Where further ranks of a group are to run; the job has the devices there.

        Args:
            group: its name.
            find: makes the placements, given the ranks of the nodes that are gone, and the accelerators that are used.
            given_up: done when nobody wants them any more.
            on_free_devices: `find` has to know which accelerators are used: Ray is asked.

        Raises:
            PlacementError: `find` does.
            DeviceHeld, ClusterError: as of `begin`.
        """
        nodes = job_topology(self._session).nodes
        processes, watch = self._session.service(Processes), self._session.service(NodeWatch)
        with self._lock:
            self._forget_ended()
            used = processes.held_elsewhere() | self._used() if on_free_devices else set()
            found = find(watch.states.unusable(), used)
            watch.check({each.node_rank for each in found})
            give_back = processes.reserve(group, devices_of(found, nodes), 0.0, given_up)
            for each in found:
                self._places[group, each.rank] = _TakenPlace(each, device_names(each, nodes), give_back)
        return found

    def leave(self, group: str, rank: int) -> None:
        """A rank has left its group: give back what it had, if it moved there or joined there."""
        left = self._places.pop((group, rank), None)
        if left is not None:
            self._give_back(left)

    def give_up(self, group: str, placement: Placement) -> None:
        """A rank could not be started where it was to go; nothing happens if it was not to move there."""
        found = self._places.get((group, placement.rank))
        if found is not None and found.placement is placement:
            self.leave(group, placement.rank)

    def forget(self, group: str) -> None:
        """A group has ended: give back what its ranks had where they went."""
        for name, rank in list(self._places):
            if name == group:
                self.leave(group, rank)

    def _give_back(self, left: _TakenPlace) -> None:
        """Give back what no other rank has that joined together with it."""
        others = [each.devices for each in list(self._places.values()) if each.give_back is left.give_back]
        left.give_back(left.devices.difference(*others))

    def _forget_ended(self) -> None:
        living = {group.name for group in groups_of(self._session)}
        for group in {name for name, _ in list(self._places)} - living:
            self.forget(group)

    def _used(self) -> set[tuple[int, int]]:
        groups = list(groups_of(self._session))
        placements = [rank.placement for group in groups for rank in group.ranks.values()]
        placements += [each.placement for each in list(self._places.values())]
        return {
            (each.node_rank, index)
            for each in placements
            if each.has_accelerators
            for index in each.local_hardware_ranks
        }
