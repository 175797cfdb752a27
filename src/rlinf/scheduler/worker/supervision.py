"""What becomes of a group's processes: who died, which calls that ends, and how all of them are stopped."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from ray.exceptions import RayError

from rlinf.scheduler.comm.directory import ANSWER_TIMEOUT_S
from rlinf.scheduler.comm.promise import Promise
from rlinf.scheduler.comm.threads import run_beside
from rlinf.scheduler.comm.transport.peer_session import Loss
from rlinf.scheduler.comm.transport.sockets import SILENCE_S
from rlinf.scheduler.errors import CommError, SchedulerError, WorkerDied
from rlinf.scheduler.host import protocol
from rlinf.scheduler.host.force import kill_process
from rlinf.scheduler.host.info import WorkerAddress, group_entry
from rlinf.scheduler.session import Session
from rlinf.scheduler.session.death_roll import Death
from rlinf.scheduler.worker.call import Call
from rlinf.scheduler.worker.deaths import NOTHING, Consequences, Deaths, OnFailure
from rlinf.scheduler.worker.launched_rank import LaunchedRank
from rlinf.scheduler.worker.node_watch import NodeWatch
from rlinf.scheduler.worker.processes import Processes
from rlinf.scheduler.worker.result import GroupResult

STOP_GRACE_S = 2.0
UNREAD_GRACE_S = 3.0
# Ray says why a process has ended, mostly; where it says nothing, what its connection showed has to do.
UNSAID_GRACE_S = 2.0
_log = logging.getLogger(__name__)


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
        self.ended: Promise[None] = Promise()
        self._deaths = Deaths(name, on_failure)
        self._pending: set[Call] = set()
        self._has_left = False
        # Why each rank that is gone is gone.
        self._reasons: list[Promise[str]] = [Promise() for _ in ranks]
        for rank in ranks:
            rank.exited.add_done_callback(partial(self._note_exit, rank))
        session.messenger.on_peer_lost(self._on_peer_lost)
        self._node_watch = session.service(NodeWatch)
        self._node_watch.on_lost.append(self._on_node_lost)
        groups_of(session).add(self)

    # -- the I/O thread --------------------------------------------------------------------------

    def _on_exit(self, rank: LaunchedRank, reason: str) -> None:
        cut = self.session.messenger.cut_off(rank.endpoint.process_id, SILENCE_S) if rank.endpoint else ""
        if cut:
            # It ended because it has lost us too, or Ray, which has also lost it, guesses.
            node = self._node_watch.states.title(rank.placement.node_rank)
            reason = f"process {rank.pid} on {node}: {cut}"
        consequences = self._deaths.on_exit(rank.address.rank, reason)
        if consequences is not NOTHING and rank.endpoint is not None:
            # Its node may be cut off, and it lives there: nobody takes it any more.
            first = reason.partition("\n")[0]
            death = Death(rank.endpoint.process_id, str(rank.address), first, has_ended=True)
            self.session.deaths.declare(death)
        self._obey(consequences, rank, reason)

    def _on_peer_lost(self, process_id: str) -> None:
        for rank in self.ranks:
            if rank.endpoint is not None and rank.endpoint.process_id == process_id:
                self._on_rank_lost(rank)

    def _on_rank_lost(self, rank: LaunchedRank) -> None:
        lost = self.session.messenger.peers.lost.get(rank.endpoint.process_id) if rank.endpoint else None
        if lost is not None and lost.loss in (Loss.DECLARED, Loss.UNREACHABLE):
            # Ray does not hear of it, or only later.
            self._on_unsaid(rank, lost.reason)
        else:
            reason = lost.reason if lost is not None else ""
            self.session.messenger.call_later(UNSAID_GRACE_S, partial(self._on_unsaid, rank, reason))

    def _on_node_lost(self, node_id: str, reason: str) -> None:
        for rank in self.ranks:
            if rank.placement.node_id == node_id and rank.endpoint is not None:
                self.session.deaths.declare(Death(rank.endpoint.process_id, str(rank.address), reason))
                self._on_unsaid(rank, reason)

    def _on_unsaid(self, rank: LaunchedRank, reason: str) -> None:
        self._obey(self._deaths.on_lost(rank.address.rank, reason), rank, reason)

    def _obey(self, consequences: Consequences, rank: LaunchedRank, reason: str) -> None:
        self._reasons[rank.address.rank].set_result(reason)
        if consequences.report is not None:
            self.session.bus.emit(consequences.report)
        if consequences.ends_calls:
            for call in tuple(self._pending):
                self._end_with_the_dead(call)
        if consequences.stop:
            self.stop_beside()
        elif consequences.kill:  # not here: it may wait for Ray
            run_beside(self._kill, rank)

    def _start(self, call: Call) -> None:
        self._pending.add(call)
        call.complete.add_done_callback(lambda _: self._pending.discard(call))
        call.start()
        self._end_with_the_dead(call)  # a rank may have died since check_alive

    def _end_all_calls(self) -> None:
        for call in tuple(self._pending):
            call.abort(WorkerDied(self.name, self.ranks[0].address.rank, call.method, self.session.failure))

    def _end_with_the_dead(self, call: Call) -> None:
        error = self._deaths.end_of_call(call.method)
        if error is not None:
            call.abort(error)

    def _leave(self) -> None:
        """Free the group's name, once."""
        if self._has_left:
            return
        self._has_left = True
        groups_of(self.session).discard(self)
        self.session.messenger.off_peer_lost(self._on_peer_lost)
        self._node_watch.on_lost.remove(self._on_node_lost)
        left = self.session.directory.unregister_async(group_entry(self.name))
        left.add_done_callback(lambda _: self.ended.set_result(None))

    # -- other threads ---------------------------------------------------------------------------

    def _note_exit(self, rank: LaunchedRank, exited: Future[str]) -> None:
        self.session.messenger.submit(partial(self._on_exit, rank, exited.result()))

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

    def check_alive(self, wanted: Sequence[int]) -> None:
        """Raise WorkerDied if a call to these ranks cannot succeed."""
        refusal = self._deaths.refusal(wanted, self.session.failure or "the group was terminated")
        if refusal is not None:
            raise refusal

    def reason_of_death(self, address: WorkerAddress, wait_s: float, otherwise: str) -> str:
        """Why a rank's process is gone, as far as that is known within `wait_s` seconds."""
        reason = self._reasons[address.rank]
        return reason.result() if reason.wait(wait_s) else otherwise

    def when_gone(self, rank: int, callback: Callable[[str], None]) -> None:
        """Have `callback` called on the I/O thread with why a rank is gone, once it is."""
        self._reasons[rank].add_done_callback(lambda reason: callback(reason.result()))

    def stop(self) -> None:
        """End every process: after the call that it runs now, or after a grace period by force."""
        stop_groups([self])

    def stop_beside(self) -> None:
        """The same in a thread of its own; from any thread, the I/O thread too: what ends a process waits for it."""
        run_beside(self.stop)

    def _watch_unread(self, call: Call, result: GroupResult[Any]) -> None:
        """Log the failure of a call that nobody has asked about a while after it failed.

        The driver may be waiting for something that will never come because of it.
        """
        watched = weakref.ref(result)

        def report() -> None:
            current = watched()
            error = current.unread_failure() if current is not None else None
            if error is not None and not self._deaths.stopping:
                logging.getLogger(f"rlinf.worker.{self.name}").error("not waited for yet: %s", error)

        def settled(_: Promise[None]) -> None:
            if call.failed:
                messenger.call_later(UNREAD_GRACE_S, report)

        messenger = self.session.messenger
        call.settled.add_done_callback(settled)

    def begin_stop(self) -> bool:
        """Ask every process to end; False if the group has ended already."""
        if self.ended.done():
            return False
        self._deaths.stopping = True
        if self.session.failure:  # nobody knows how long it takes to end the processes
            self.session.messenger.submit(self._end_all_calls)
        for rank in self._living():
            if rank.endpoint is not None:
                self.session.messenger.notify(rank.endpoint, protocol.STOP, None)
        return True

    def finish_stop(self, deadline: float) -> None:
        """Wait until the processes have ended, then kill those that have not; can be done again if interrupted."""
        for rank in self._living():
            _wait_until(rank, deadline)
        for rank in self.ranks:
            self._kill(rank)
        self.session.messenger.submit(self._leave)
        if self.session.messenger.why_closed:  # what is handed over after that may not be looked at any more
            groups_of(self.session).discard(self)
            self.ended.set_result(None)
        self.ended.wait(ANSWER_TIMEOUT_S)

    def _kill(self, rank: LaunchedRank) -> None:
        if self._node_watch.headless:  # it is told by its connection, when this process leaves the job
            return
        rank.process.kill()
        if rank.exited.done() or rank.endpoint is None:
            return
        # Ray asks a process to end, and one that is stopped does not hear that.
        if rank.endpoint.machine_id == self.session.messenger.endpoint.machine_id:
            kill_process(rank.pid, rank.born)
        elif rank.placement.node_rank not in self._node_watch.states.lost:
            processes = self.session.service(Processes)
            processes.kill_there(rank.placement.node_id, rank.pid, rank.born)

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
        self._session = session
        self._aborts: set[Callable[[], None]] = set()
        session.on_close(self._close)

    @contextmanager
    def launching(self, abort: Callable[[], None]) -> Iterator[None]:
        """A launch that goes on for as long as the block; `abort` ends it if the process leaves the job meanwhile."""
        self._aborts.add(abort)
        try:
            if self._session.closed:
                abort()
            yield
        finally:
            self._aborts.discard(abort)

    def _close(self) -> None:
        for abort in list(self._aborts):
            abort()
        stop_groups(list(self.groups))


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
