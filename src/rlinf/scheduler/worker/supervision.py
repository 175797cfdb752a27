"""What becomes of a group's processes: who died, which calls that ends, and how all of them are stopped."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from ray.exceptions import RayError

from rlinf.scheduler.comm.promise import Promise
from rlinf.scheduler.errors import CommError, SchedulerError, WorkerDied
from rlinf.scheduler.events import WorkerLost
from rlinf.scheduler.host import protocol
from rlinf.scheduler.host.info import WorkerAddress
from rlinf.scheduler.session import Session
from rlinf.scheduler.worker.call import Call
from rlinf.scheduler.worker.launched_rank import LaunchedRank
from rlinf.scheduler.worker.result import GroupResult

# "end" is as "fail", and the group is stopped so that its name is free: the way of channels.
OnFailure = Literal["fail", "ignore", "end"]
STOP_GRACE_S = 2.0
UNREAD_GRACE_S = 3.0
_log = logging.getLogger(__name__)


def group_entry(name: str) -> str:
    """Under which name the directory knows a group."""
    return f"group/{name}"


class Supervision:
    """What all views of one group share: its processes, and what has become of them.

    The messenger's I/O thread alone says who is dead and which calls go on; no lock is held by anybody.
    """

    def __init__(
        self, session: Session, name: str, ranks: Sequence[LaunchedRank], on_failure: OnFailure
    ) -> None:
        self.session = session
        self.name = name
        self.ranks = tuple(ranks)
        self.on_failure = on_failure
        self.stopping = False
        self.dead: dict[int, str] = {}
        self._pending: set[Call] = set()
        # Taken by whoever stops the group, once.
        self._leave_to_stop = deque([True])
        self.ended = threading.Event()
        for rank in ranks:
            rank.exited.add_done_callback(partial(self._note_exit, rank))
        groups_of(session).add(self)

    def _note_exit(self, rank: LaunchedRank, exited: Future[str]) -> None:
        self.session.messenger.submit(partial(self._on_exit, rank, exited.result()))

    def _on_exit(self, rank: LaunchedRank, reason: str) -> None:
        """A process is gone: end the calls that depend on it, unless the group is being stopped."""
        if self.stopping or rank.address.rank in self.dead:
            return
        self.dead[rank.address.rank] = reason
        if not (rank.ended_in_order and self.on_failure == "end"):
            self.session.bus.emit(WorkerLost(self.name, rank.address.rank, reason))
        if self.on_failure != "ignore":
            for call in tuple(self._pending):
                call.abort(WorkerDied(self.name, rank.address.rank, "", reason))
        if self.on_failure == "end":
            # Not here: what ends a process waits for it.
            threading.Thread(target=self.stop, name="rlinf-stop-group", daemon=True).start()

    def begin(self, call: Call, result: GroupResult[Any]) -> None:
        """Start a call, in one step: all ranks get it or none does.

        Raises:
            CommError: this process has left the job.
        """
        messenger = self.session.messenger
        self._watch_unread(call, result)
        messenger.submit(partial(self._start, call))
        if messenger.why_closed:  # what is handed over after that may not be looked at any more
            raise CommError(f"{self.name}.{call.method}(): {messenger.why_closed}")

    def _start(self, call: Call) -> None:
        self._pending.add(call)
        call.complete.add_done_callback(lambda _: self._pending.discard(call))
        call.start()
        if self.on_failure != "ignore":
            for number, reason in self.dead.items():  # it may have died since check_alive
                call.abort(WorkerDied(self.name, number, call.method, reason))

    def check_alive(self, wanted: Sequence[int]) -> None:
        """Raise WorkerDied if a call to these ranks cannot succeed."""
        if self.stopping:
            raise WorkerDied(self.name, wanted[0], "", self.session.failure or "the group was terminated")
        dead = self.dead.copy()
        relevant = {rank: why for rank, why in dead.items() if self.on_failure != "ignore" or rank in wanted}
        for number, reason in relevant.items():
            why = (
                "" if number in wanted else "; launched with on_failure='fail', the whole group ends with it"
            )
            raise WorkerDied(self.name, number, "", reason + why)

    def reason_of_death(self, address: WorkerAddress, wait_s: float) -> str:
        """Why a rank's process is gone, as far as Ray says so within `wait_s` seconds."""
        try:
            return self.ranks[address.rank].exited.result(timeout=wait_s)
        except TimeoutError:
            return "its connection broke"

    def stop(self) -> None:
        """End every process: after the call that it runs now, or after a grace period by force."""
        stop_groups([self])

    def _watch_unread(self, call: Call, result: GroupResult[Any]) -> None:
        """Log the failure of a call that nobody has asked about a while after it failed.

        The driver may be waiting for something that will never come because of it.
        """
        watched = weakref.ref(result)

        def report() -> None:
            current = watched()
            error = current.unread_failure() if current is not None else None
            if error is not None and not self.stopping:
                logging.getLogger(f"rlinf.worker.{self.name}").error("not waited for yet: %s", error)

        def settled(_: Promise[None]) -> None:
            if call.failed:
                messenger.call_later(UNREAD_GRACE_S, report)

        messenger = self.session.messenger
        call.settled.add_done_callback(settled)

    def begin_stop(self) -> bool:
        """Ask every process to end; False if that was done before."""
        try:
            self._leave_to_stop.pop()
        except IndexError:
            return False
        self.stopping = True
        for rank in self._living():
            if rank.endpoint is not None:
                self.session.messenger.notify(rank.endpoint, protocol.STOP, None)
        return True

    def finish_stop(self, deadline: float) -> None:
        """Wait until the processes have ended, then kill those that have not."""
        for rank in self._living():
            _wait_until(rank, deadline)
        for rank in self.ranks:
            rank.kill()
        groups_of(self.session).discard(self)
        try:
            if not self.session.messenger.why_closed:
                self.session.directory.unregister(group_entry(self.name))
        finally:
            self.ended.set()

    def _living(self) -> list[LaunchedRank]:
        return [rank for rank in self.ranks if not rank.exited.done()]


def stop_groups(groups: Iterable[Supervision]) -> None:
    """End groups side by side, so that all of them together take one grace period."""
    stopping = [group for group in groups if group.begin_stop()]
    deadline = time.monotonic() + STOP_GRACE_S
    for group in stopping:
        try:
            group.finish_stop(deadline)
        except (SchedulerError, RayError):  # the others are to be ended all the same
            _log.warning("group '%s' did not end in order", group.name, exc_info=True)


class LaunchedGroups:
    """The groups that a process launched and that are not stopped; a service of its session, which ends them."""

    def __init__(self, session: Session) -> None:
        self.groups: set[Supervision] = set()
        session.on_close(lambda: stop_groups(list(self.groups)))


def groups_of(session: Session) -> set[Supervision]:
    """The groups that this process launched and that are not stopped."""
    return session.service(LaunchedGroups).groups


@dataclass(frozen=True, slots=True)
class GroupEntry:
    """A group of workers.

    Attributes:
        name: its name.
        world_size: how many ranks it has.
    """

    name: str
    world_size: int


def groups_in(session: Session) -> dict[str, GroupEntry]:
    """The worker groups of the job, by name; one that is being launched too."""
    prefix = group_entry("")
    entries = session.directory.list(prefix)
    # What holds a channel is launched as a group, but says no size.
    sizes = {e.name.removeprefix(prefix): e.info["world_size"] for e in entries if "world_size" in e.info}
    return {name: GroupEntry(name, size) for name, size in sizes.items()}


def _wait_until(rank: LaunchedRank, deadline: float) -> None:
    try:
        rank.exited.result(timeout=max(0.0, deadline - time.monotonic()))
    except TimeoutError:
        return  # it is in a call: it will be killed
