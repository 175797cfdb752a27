"""What a worker's accelerators are, asked of the worker or of its class, for functions far from any worker."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from rlinf_scheduler.hardware.vendors import local_vendor
from rlinf_scheduler.host.info import Role, job_topology, own_role
from rlinf_scheduler.planning import Placement
from rlinf_scheduler.session import Session, current_or_none

V = TypeVar("V")


class ClassFact(Generic[V]):
    """An attribute of workers that is on their class too; one that a program sets on a worker wins.

    Args:
        read: makes it of the vendor of the accelerators, "" without any.
    """

    def __init__(self, read: Callable[[str], V]) -> None:
        self._read = read
        self.__doc__ = read.__doc__

    def __get__(self, worker: Any, _owner: type) -> V:
        return self._read(vendor_here() if worker is None else vendor_of(worker))


def vendor_of(worker: Any) -> str:
    """The vendor of a worker's accelerators; "" without any."""
    session, role = worker._rlinf_session, worker._rlinf_role
    return _vendor_of_placement(session, role.info.placement)


def vendor_here() -> str:
    """The vendor of the accelerators of the rank that this process is; of one that is none, of this machine's.

    Raises:
        ClusterError: this process is to become a rank, and has not been told which.
    """
    role: Role | None = own_role()
    if role is None:
        return local_vendor(os.environ)
    return _vendor_of_placement(current_or_none(), role.info.placement)


def _vendor_of_placement(session: Session | None, placement: Placement) -> str:
    # A job of plain processes knows of no nodes.
    if session is None or not placement.has_accelerators:
        return ""
    return job_topology(session).nodes[placement.node_rank].accelerator_type
