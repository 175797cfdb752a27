"""`cluster.lend`: further ranks of one group on the devices of another, for a while: planned, done, undone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from rlinf_scheduler.errors import ClusterError, ConfigError, SchedulerError
from rlinf_scheduler.observe.status import DeviceStatus
from rlinf_scheduler.observe.status_service import begin_status, received
from rlinf_scheduler.planning import Topology
from rlinf_scheduler.planning.lending import LentDevices, borrowed_placement, lent_devices
from rlinf_scheduler.scaling.launched import has_ended
from rlinf_scheduler.session import Session
from rlinf_scheduler.session.membership import GroupMembers
from rlinf_scheduler.weights import published_weights
from rlinf_scheduler.wording import ranges_text, size_text, text_table
from rlinf_scheduler.worker.group import WorkerGroup

_log = logging.getLogger(__name__)


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
        fetched = [f"'{name}' ({size_text(size)})" for name, size in self.weights.items()]
        return "\n".join(
            [
                f"{len(self.ranks)} further of '{self.borrower}' on devices of '{self.lender}':",
                *text_table(rows, right=(0,)),
                f"weights that each may fetch: {', '.join(fetched) or 'none are published'}",
                f"'{self.lender}' has to leave the memory: device_lock(offload=...) moves it to the host and back",
            ]
        )


class Loan:
    """A loan of devices: `with` it the borrower has further ranks there, at its end they leave.

    Args:
        session: of the process whose loan it is.
        lender, borrower: the groups.
        num_workers: how many further ranks; None: as many as there are devices for.
        topology: gives the nodes of now, with their groups.
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
        topology: Callable[[], Topology],
        drain_s: float,
    ) -> None:
        if lender.name == borrower.name:
            raise ConfigError(f"lend('{lender.name}', to='{borrower.name}'): these are two groups")
        self.ranks: tuple[int, ...] = ()
        self._session = session
        self._lender, self._borrower, self._drain_s = lender, borrower, drain_s
        self._topology, self._loans = topology, session.service(Loans)
        self._num_workers = len(self._lent(num_workers))

    @property
    def borrower(self) -> str:
        """The group that grows."""
        return self._borrower.name

    @property
    def lender(self) -> str:
        """The group whose devices these are."""
        return self._lender.name

    def _lent(self, num_workers: int | None) -> list[LentDevices]:
        """The devices as both groups are now: what the lender has left is not its to lend."""
        for group in (self._lender, self._borrower):
            if has_ended(group):
                raise ClusterError(f"group '{group.name}' has ended")
        return lent_devices(self._lender.placements, self._borrower.placements, num_workers)

    def plan(self) -> LoanPlan:
        """What it does if it begins now, given what is published, and what is known of the devices.

        Raises:
            PlacementError: the lender has no devices for so many any more.
            ClusterError: the job's driver does not answer, or one of the groups has ended.
        """
        lent = self._lent(self._num_workers)
        weights, status = published_weights(self._session), received(begin_status(self._session))
        wanted = {(each.node_rank, index) for each in lent for index in each.devices}
        devices = {
            (node.rank, device.index): device
            for node in status.nodes
            for device in node.devices
            if (node.rank, device.index) in wanted
        }
        sizes = {each.name: max(each.sources.values(), default=0) for each in weights.values()}
        return LoanPlan(self._lender.name, self._borrower.name, tuple(lent), sizes, devices)

    def __enter__(self) -> Self:
        if self.ranks:
            has = f"'{self._borrower.name}' has ranks {ranges_text(self.ranks)} by it"
            raise ConfigError(f"this loan is on already: {has}")
        before, lent = self._borrower.members, self._lent(self._num_workers)
        placement = borrowed_placement(lent, self._borrower.placements, self._topology())
        self._loans.there.add(self)
        try:
            self.ranks = self._borrower.grow(placement=placement)
        except BaseException:
            self._undo(before, lent)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._end(raises=kind is None)

    def end(self) -> None:
        """Have the further ranks leave: once more, where they did not at the end of the block.

        Raises:
            ResizeError: they do not; the loan goes on.
        """
        self._end(raises=True)

    def _undo(self, before: GroupMembers, lent: Sequence[LentDevices]) -> None:
        """Who was interrupted, or told of a rank that did not follow, may have been so when others had come."""
        places = {(each.node_rank, tuple(each.devices)) for each in lent}
        came = (each for each in self._borrower.placements if each.rank not in before.ranks)
        self.ranks = tuple(
            each.rank for each in came if (each.node_rank, tuple(each.local_hardware_ranks)) in places
        )
        self._end(raises=False)

    def _end(self, *, raises: bool) -> None:
        """End it; as long as ranks stay, whatever comes in between, it goes on and says whose they are."""
        try:
            self._give_back()
        except SchedulerError as error:
            has = f"'{self.borrower}' has ranks {ranges_text(self.ranks)} on devices of '{self.lender}'"
            stays = f"{has}, until `end()` of this loan gives them back" if self.ranks else "no rank is left"
            if raises:
                error.add_note(stays)
                raise
            # What has been raised already is what matters.
            _log.warning("the loan of '%s' to '%s': %s: %s", self.lender, self.borrower, stays, error)
        finally:
            if not self.ranks:
                self._loans.there.discard(self)

    def _give_back(self) -> None:
        self.ranks = self._left()
        try:
            if self.ranks:
                self._borrower.shrink(ranks=self.ranks, drain_s=self._drain_s)
        except SchedulerError:
            if not has_ended(self._borrower):  # then nobody has them any more
                raise
        finally:
            self.ranks = self._left()

    def _left(self) -> tuple[int, ...]:
        """Return those of its ranks that are there."""
        there = () if has_ended(self._borrower) else self._borrower.members.ranks
        return tuple(rank for rank in self.ranks if rank in there)


class Loans:
    """The loans that go on; a service of the session of who has made them."""

    def __init__(self, _session: Session) -> None:
        self.there: set[Loan] = set()


def lender_of(session: Session, borrower: str) -> str:
    """Return the group that lends devices to a group now; "" if none does."""
    loans = list(session.service(Loans).there)
    on = (loan for loan in loans if loan.borrower == borrower and not has_ended(loan._borrower))
    return next((loan.lender for loan in on), "")
