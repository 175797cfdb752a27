"""`cluster.lend`: further ranks of one group on the devices of another, for a while: planned, done, undone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from rlinf_scheduler.errors import ConfigError, SchedulerError
from rlinf_scheduler.observe.status import DeviceStatus
from rlinf_scheduler.observe.status_service import begin_status, received
from rlinf_scheduler.planning import Topology
from rlinf_scheduler.planning.lending import LentDevices, borrowed_placement, lent_devices
from rlinf_scheduler.session import Session
from rlinf_scheduler.weights import published_weights
from rlinf_scheduler.wording import list_names, size_text, text_table
from rlinf_scheduler.worker.group import WorkerGroup


@dataclass(frozen=True, slots=True)
class LoanPlan:
    """What a loan of devices will do; `print` shows it.

    Attributes:
        lender, borrower: the groups.
        ranks: what each further rank of the borrower gets.
        weights: what those fetch, if they fetch what is published now: bytes, by name.
        devices: what was known of the memory of these devices, by node and index.
    """

    lender: str
    borrower: str
    ranks: tuple[LentDevices, ...]
    weights: Mapping[str, int]
    devices: Mapping[tuple[int, int], DeviceStatus]

    @property
    def memory_bytes(self) -> int | None:
        """How much of their memory is used now, which the lender moves to host memory in its turns; None: unknown."""
        used = [each.memory_used_bytes for each in self.devices.values()]
        return None if None in used or not used else sum(each or 0 for each in used)

    def __str__(self) -> str:
        rows = [("node", "devices", "lent by", "memory in use")]
        for each in self.ranks:
            lenders = ", ".join(f"{self.lender}:{rank}" for rank in each.lenders)
            known = [self.devices.get((each.node_rank, index)) for index in each.devices]
            used = [device.memory_used_bytes for device in known if device is not None]
            memory = size_text(sum(size or 0 for size in used)) if used and None not in used else "not known"
            rows.append((str(each.node_rank), ", ".join(map(str, each.devices)), lenders, memory))
        fetched = [f"{name} ({size_text(size)})" for name, size in self.weights.items()]
        return "\n".join(
            [
                f"{len(self.ranks)} further of '{self.borrower}' on devices of '{self.lender}':",
                *text_table(rows, right=(0,)),
                f"weights that each may fetch: {list_names(fetched) or 'none are published'}",
                f"'{self.lender}' has to leave the memory: device_lock(offload=...) moves it to the host and back",
            ]
        )


class Loan:
    """A loan of devices: `with` it the borrower has further ranks there, at its end they leave.

    Args:
        session: of the process that launched them.
        lender, borrower: the groups.
        num_workers: how many further ranks; None: as many as there are devices for.
        topology: the nodes, with their groups.
        drain_s: how long these may take to finish at the end, in seconds.

    Attributes:
        ranks: the numbers of the further ranks, while there are any.

    Raises:
        PlacementError: the lender has no devices for so many.
        ConfigError: both are the same group.
    """

    def __init__(
        self,
        session: Session,
        lender: WorkerGroup[Any],
        borrower: WorkerGroup[Any],
        num_workers: int | None,
        topology: Topology,
        drain_s: float,
    ) -> None:
        if lender.name == borrower.name:
            raise ConfigError(f"lend('{lender.name}', to='{borrower.name}'): these are two groups")
        self.ranks: tuple[int, ...] = ()
        self._session = session
        self._lender, self._borrower, self._drain_s = lender, borrower, drain_s
        self._lent = lent_devices(lender.placements, borrower.placements, num_workers)
        self._placement = borrowed_placement(self._lent, borrower.placements, topology)

    def plan(self) -> LoanPlan:
        """What it will do, given what is published now, and what is known of the devices.

        Raises:
            ClusterError: the job's driver does not answer.
        """
        weights, status = published_weights(self._session), received(begin_status(self._session))
        wanted = {(each.node_rank, index) for each in self._lent for index in each.devices}
        devices = {
            (node.rank, device.index): device
            for node in status.nodes
            for device in node.devices
            if (node.rank, device.index) in wanted
        }
        sizes = {each.name: max(each.sources.values(), default=0) for each in weights.values()}
        return LoanPlan(self._lender.name, self._borrower.name, tuple(self._lent), sizes, devices)

    def __enter__(self) -> Self:
        if self.ranks:
            raise ConfigError(f"'{self._borrower.name}' has these devices already")
        self.ranks = self._borrower.grow(placement=self._placement)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        ranks, self.ranks = self.ranks, ()
        there = [rank for rank in ranks if rank in self._borrower.members.ranks]
        if kind is None:
            self._give_back(there)
            return
        with suppress(SchedulerError):  # what the block raised is what matters
            self._give_back(there)

    def _give_back(self, ranks: Sequence[int]) -> None:
        if ranks:
            self._borrower.shrink(ranks=ranks, drain_s=self._drain_s)
