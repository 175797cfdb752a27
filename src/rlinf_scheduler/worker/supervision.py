"""What becomes of a group's processes: who died, which calls that ends, and how all of them are stopped."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from ray.exceptions import RayError

from rlinf_scheduler.comm.directory import ANSWER_TIMEOUT_S
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.transport.peer_session import Loss
from rlinf_scheduler.comm.transport.sockets import SILENCE_S
from rlinf_scheduler.comm.waits import awaited
from rlinf_scheduler.errors import LaunchError, LaunchTimeout, SchedulerError
from rlinf_scheduler.events import WorkerGivenUp, WorkerLost, WorkerReturned
from rlinf_scheduler.host import protocol
from rlinf_scheduler.host.info import group_entry
from rlinf_scheduler.host.processes import kill_process
from rlinf_scheduler.session import Session
from rlinf_scheduler.session.membership import Death, GroupMembers
from rlinf_scheduler.wording import seconds_text
from rlinf_scheduler.worker.deadline import Deadline
from rlinf_scheduler.worker.deaths import (
    NOTHING,
    RETURNING,
    VERDICTS,
    Consequences,
    RankState,
    Verdict,
)
from rlinf_scheduler.worker.group_calls import GroupCalls, awaits_end, awaits_restart
from rlinf_scheduler.worker.node_watch import NodeWatch
from rlinf_scheduler.worker.order import LaunchOptions
from rlinf_scheduler.worker.processes import GivesBack, LaunchedRank, Processes
from rlinf_scheduler.worker.successors import StartSuccessors, Successors

STOP_GRACE_S = 2.0
# A shutdown without a deadline says after this whom it waits for.
TELL_S = 10.0
# A process that was killed has ended within it; one that has not is out of reach.
KILLED_WITHIN_S = 1.0
# A rank that is gone without a word of Ray's is seen to be within it.
_LOOK_S = 1.0
# Ray says why a process has ended, mostly; where it says nothing, what its connection showed has to do.
UNSAID_GRACE_S = 2.0
_log = logging.getLogger(__name__)


class Supervision(GroupCalls[LaunchedRank]):
    """A group in the process that launched it: its processes, and what becomes of them.

    Attributes:
        ended: done when all of it has ended.
        give_back: gives its devices back before the job ends.
        worker_class: of its ranks, where this process has ordered it.
        moves: whether a rank whose node is gone, or is to be given back, comes back on another one.
        on_change: called on the I/O thread with each rank of whom there is news, and with None when the group is being
            ended, and when it has ended.
    """

    def __init__(
        self,
        session: Session,
        members: GroupMembers,
        ranks: Sequence[LaunchedRank],
        options: LaunchOptions,
        start_successors: StartSuccessors | None = None,
    ) -> None:
        super().__init__(session, members, ranks, options.on_failure, options.stall_after_s)
        self.ended: Promise[None] = Promise()
        self.moves = options.moves
        self.give_back: GivesBack | None = None
        self.worker_class: type[Any] | None = None
        self.on_change: list[Callable[[int | None], None]] = []
        self._has_left = False
        self._successors = Successors(
            session,
            start_successors or _cannot_start,
            options.limit,
            kill=self._kill,
            returned=self._on_return,
            given_up=self._on_given_up,
        )
        # Whose connection may be lost: many are at once when a job ends, and none of them looks through all.
        self._by_process: dict[str, LaunchedRank] = {}
        for rank in ranks:
            self._follow(rank)
        session.messenger.on_peer_lost(self._on_peer_lost)
        self._node_watch = session.service(NodeWatch)
        self._node_watch.on_lost.append(self._on_node_lost)
        groups_of(session).add(self)

    # -- the I/O thread --------------------------------------------------------------------------

    def _on_exit(self, rank: LaunchedRank, reason: str) -> None:
        if not self._is_present(rank):
            return
        cut = (
            self.session.messenger.peers.cut_off(rank.endpoint.process_id, SILENCE_S) if rank.endpoint else ""
        )
        if cut:
            # It ended because it has lost us too, or Ray, which has also lost it, guesses.
            node = self._node_watch.states.title(rank.placement.node_rank)
            reason = f"process {rank.pid} on {node}: {cut}"
        else:
            reason = self._with_call(rank, rank.ended_by or reason)
        consequences = self._deaths.on_exit(rank.address.rank, reason)
        if consequences is not NOTHING and rank.endpoint is not None:
            # Its node may be cut off, and it lives there: nobody takes it any more.
            first = reason.partition("\n")[0]
            death = Death(rank.endpoint.process_id, str(rank.address), first, has_ended=True)
            self.session.deaths.declare(death)
        self._obey(consequences, rank, reason)

    def _on_peer_lost(self, process_id: str) -> None:
        rank = self._by_process.pop(process_id, None)
        if rank is not None:
            self._on_rank_lost(rank)

    def _follow(self, rank: LaunchedRank) -> None:
        rank.exited.add_done_callback(partial(self._note_exit, rank))
        if rank.endpoint is not None:
            self._by_process[rank.endpoint.process_id] = rank

    def _on_rank_lost(self, rank: LaunchedRank) -> None:
        lost = self.session.messenger.peers.lost.get(rank.endpoint.process_id) if rank.endpoint else None
        if lost is not None and lost.loss in (Loss.DECLARED, Loss.UNREACHABLE):
            # Ray does not hear of it, or only later.
            self._on_unsaid(rank, lost.reason)
        else:
            reason = lost.reason if lost is not None else ""
            self.session.messenger.call_later(UNSAID_GRACE_S, partial(self._on_unsaid, rank, reason))

    def _on_node_lost(self, node_id: str, reason: str) -> None:
        for rank in self.ranks.values():
            if rank.placement.node_id == node_id and rank.endpoint is not None:
                self.session.deaths.declare(Death(rank.endpoint.process_id, str(rank.address), reason))
                self._on_unsaid(rank, reason)

    def _is_present(self, rank: LaunchedRank) -> bool:
        """Whether no other process has taken its place."""
        return self.ranks.get(rank.address.rank) is rank

    def _on_unsaid(self, rank: LaunchedRank, reason: str) -> None:
        if self._is_present(rank):
            reason = self._with_call(rank, rank.ended_by or reason)
            self._obey(self._deaths.on_lost(rank.address.rank, reason), rank, reason)

    def _with_call(self, rank: LaunchedRank, reason: str) -> str:
        """Why a rank is gone, with what it was at."""
        if rank.address.rank in self.left:
            reason = f"{self.left[rank.address.rank]}; {reason}"
        first, newline, more = reason.partition("\n")
        was_at = self._pending.end_of(rank.address.rank)
        return f"{first}, {was_at}{newline}{more}" if was_at else reason

    def _obey(
        self, consequences: Consequences, rank: LaunchedRank, reason: str, *, afresh: bool = False
    ) -> None:
        rank.gone.set_result(reason)
        if consequences is not NOTHING:  # it could end nothing any more
            self.session.messenger.run_beside(self._end_by_force, rank)
        if consequences.report is not None:
            self.session.bus.emit(consequences.report)
        if consequences.ends_calls:
            for call in self._pending:
                self._end_with_the_dead(call)
        if consequences.stop:
            self.session.messenger.run_beside(self.stop)
        elif consequences.restart:
            self._restart(consequences, rank, reason, afresh=afresh)
        elif consequences.kill:  # not here: it may wait for Ray
            self.session.messenger.run_beside(self._kill, rank)
        if consequences.ask and consequences.report is not None:
            self.session.messenger.run_beside(self._ask, rank, consequences.report)
        self._tell(rank.address.rank)
        for other in self._deaths.ranks if consequences.anew else ():
            self._tell(other)

    def _restart(self, consequences: Consequences, rank: LaunchedRank, reason: str, *, afresh: bool) -> None:
        ranks = [rank]
        if consequences.anew:
            self._begin_anew(rank.address.rank, reason)
            ranks += [self.ranks[other] for other in self._deaths.ranks if other != rank.address.rank]
        for lost in consequences.others:
            self.ranks[lost.rank].gone.set_result(lost.reason)
            self.session.bus.emit(lost)
        self._successors.begin(ranks, reason, anew=consequences.anew, afresh=afresh)

    def _tell(self, number: int | None) -> None:
        for callback in self.on_change:
            callback(number)

    def _on_verdict(self, rank: LaunchedRank, verdict: Verdict) -> None:
        number = rank.address.rank
        if not self._is_present(rank):  # it has come back meanwhile; what became of its successor is not said
            return
        reason = self._deaths.away.get(number, "")
        consequences = self._deaths.on_verdict(number, verdict)
        if consequences is not NOTHING:
            self._obey(consequences, rank, reason)
            if verdict not in RETURNING:
                self._stay_away(number, reason)

    def _on_restart(self, number: int, asked: Promise[Promise[None] | None]) -> None:
        if number not in self.ranks or number in self.left:  # it has just left
            asked.set_result(None)
            return
        rank, reason = self.ranks[number], "group.restart() ends it"
        consequences = self._deaths.on_restart(number, reason)
        if consequences.restart:
            self._obey(consequences, rank, self._deaths.away[number], afresh=True)
        asked.set_result(self._successors.awaited(number))

    def _on_return(self, ranks: Sequence[LaunchedRank], away_s: float) -> bool:
        """Other processes have taken the places of ranks; whether they are wanted."""
        if any(rank.address.rank in self.left for rank in ranks):
            return False
        self.ranks = {**self.ranks, **{rank.address.rank: rank for rank in ranks}}
        if self._deaths.stopping:  # looked at afterwards: who stops the group looks at the ranks after that
            return False
        for rank in ranks:
            number, node_rank = rank.address.rank, rank.placement.node_rank
            self._deaths.on_return(number)
            self._pending.forget(number)
            returned = WorkerReturned(self.name, number, node_rank, rank.pid, rank.num_restarts, away_s)
            self.session.bus.emit(returned)
        for rank in ranks:
            self._follow(rank)
            if self._is_lost(rank.endpoint):
                self._on_rank_lost(rank)
            for call in self._pending:
                call.go_on(self.target(rank.address.rank))
            self._tell(rank.address.rank)
        return True

    def _on_given_up(self, numbers: Sequence[int], reason: str) -> None:
        if self._deaths.stopping:
            return
        first = reason.partition("\n")[0]
        for number in numbers:
            if number in self.left:
                continue
            self.session.bus.emit(WorkerGivenUp(self.name, number, first))
            self._obey(self._deaths.give_up(number, reason), self.ranks[number], reason)
            self._stay_away(number, reason)

    def _stay_away(self, number: int, reason: str) -> None:
        """A rank does not come back: who waits for that is told."""
        self._refuse_parts(number, reason)
        name, first = str(self.ranks[number].address), reason.partition("\n")[0]
        self.session.directory.give_up_async(name, first)

    def _note_forced(self, ranks: Sequence[LaunchedRank], who: str, tells: bool) -> None:
        """Ranks have not ended in time, and are killed now."""
        for rank in ranks:
            rank.ended_by = f"{who} ended it"
        if tells:
            each = (self._with_call(rank, str(rank.address)) for rank in ranks)
            _log.warning("%s of group '%s' ended by force: %s", who, self.name, "; ".join(each))

    def _ask_to_end(self, how: str) -> None:
        if self._node_watch.headless and self.session.closed:
            # Ray would have to end what then has nothing to do any more; without this process they end themselves.
            return
        for rank in self._living():
            if rank.endpoint is not None:
                self.session.messenger.notify(rank.endpoint, how, None)

    def _leave(self) -> None:
        """Free the group's name, once."""
        if self._has_left:
            return
        self._has_left = True
        self._refuse_waiting()
        groups_of(self.session).discard(self)
        self.session.messenger.off_peer_lost(self._on_peer_lost)
        self._node_watch.on_lost.remove(self._on_node_lost)
        left = self.session.directory.unregister_async(group_entry(self.name))
        left.add_done_callback(lambda _: self._on_ended())

    def _on_ended(self) -> None:
        self.ended.set_result(None)
        self._tell(None)

    # -- other threads ---------------------------------------------------------------------------

    def _note_exit(self, rank: LaunchedRank, exited: Future[str]) -> None:
        self.session.messenger.submit(partial(self._on_exit, rank, exited.result()))

    @awaited(awaits_restart)
    def restart(self, number: int, timeout_s: float) -> None:
        """Have another process take a rank's place, and wait until it has."""
        began = time.monotonic()
        asked: Promise[Promise[None] | None] = Promise()
        deadline = began + timeout_s
        self.session.messenger.submit(lambda: self._on_restart(number, asked))
        asked.wait(timeout_s)
        back = asked.result(0) if asked.done() else None
        is_back = asked.done() and (back is None or back.wait(max(0.0, deadline - time.monotonic())))
        if not is_back and not self._deaths.stopping:
            problem = f"rank {number} is not back after {seconds_text(timeout_s)}"
            otherwise = "it has just come back" if asked.done() else "it has just been told to end"
            raise LaunchTimeout(self.name, problem, [self._deaths.away.get(number, otherwise)])
        self.check_alive([number])

    def _ask(self, rank: LaunchedRank, lost: WorkerLost) -> None:
        """Ask the group's owner what a death means; a thread's own work."""
        verdict: Verdict = "fail"
        try:
            answer = self.on_failure(lost) if callable(self.on_failure) else "fail"
            if answer in VERDICTS:
                verdict = answer
            else:
                _log.error("on_failure of '%s' returned %r: it is one of %s", self.name, answer, VERDICTS)
        except Exception:  # noqa: BLE001 - the user's code: its group fails then
            _log.exception("on_failure of '%s' failed; the group ends with rank %d", self.name, lost.rank)
        self.session.messenger.submit(lambda: self._on_verdict(rank, verdict))

    def stop(self) -> None:
        """End every process: after the call that it runs now, or after a grace period by force."""
        stop_groups([self], "group.terminate()")

    def shutdown(self, timeout_s: float | None) -> None:
        """End every process once it has answered the calls that it has got; what is left at the deadline is killed."""
        if self.begin_stop(protocol.FINISH):
            within = "" if timeout_s is None else f"timeout_s={timeout_s:g}"
            deadline = None if timeout_s is None else time.monotonic() + timeout_s
            self.finish_stop(deadline, f"group.shutdown({within})", tells=True)

    def begin_stop(self, how: str = protocol.STOP) -> bool:
        """Ask every process to end; False if the group has ended already."""
        if self.ended.done():
            return False
        self._deaths.stopping = True
        if self.session.failure:  # nobody knows how long it takes to end the processes
            self.session.messenger.submit(self._end_all_calls)
        self._successors.stop()
        self._stop_resizing()
        if self._deaths.may_return:  # not any more
            for rank in self.ranks.values():
                self.session.directory.give_up_async(str(rank.address), "its group was terminated")
        # By the I/O thread, as calls are started: none that was made before is overtaken.
        self.session.messenger.submit(partial(self._ask_to_end, how))
        if self.on_change:
            self.session.messenger.submit(partial(self._tell, None))
        return True

    @awaited(awaits_end)
    def finish_stop(self, deadline: float | None, who: str, *, tells: bool = False) -> None:
        """Wait until the processes have ended, then kill those that have not; can be done again if interrupted.

        Args:
            deadline: on the monotonic clock; None: there is none, and those that are waited for are told of.
            who: what ends those that have not ended then, for messages.
            tells: log which those are.
        """
        began = time.monotonic()
        told_at = began + TELL_S
        while waited_for := [rank for rank in self._living() if not rank.gone.done()]:
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                # By the I/O thread, before it hears of their ends.
                self.session.messenger.submit(partial(self._note_forced, waited_for, who, tells))
                break
            if deadline is None and now >= told_at:
                names = ", ".join(str(rank.address) for rank in waited_for)
                _log.warning("the shutdown of group '%s' waits for calls of %s", self.name, names)
                told_at = now + 10 * TELL_S
            wait([rank.exited for rank in waited_for], _LOOK_S if deadline is None else deadline - now)
        for rank in self.ranks.values():
            self._kill(rank)
        wait([rank.exited for rank in self._living() if not rank.gone.done()], KILLED_WITHIN_S)
        self._successors.wait_stopped(ANSWER_TIMEOUT_S)
        self._wait_resized(ANSWER_TIMEOUT_S)
        self.session.messenger.submit(self._leave)
        if self.session.messenger.why_closed:  # what is handed over after that may not be looked at any more
            groups_of(self.session).discard(self)
            self.ended.set_result(None)
        self.ended.wait(ANSWER_TIMEOUT_S)

    def _stop_resizing(self) -> None:
        """The group is being ended: a resize that goes on is given up."""

    def _wait_resized(self, timeout_s: float) -> None:
        """After that, wait until what it has started is gone."""

    def drain(self, rank: LaunchedRank, why: str, until: Deadline) -> None:
        """Tell a rank to finish what it has until then, and again whenever that comes nearer; from any thread."""
        if rank.endpoint is not None and not rank.gone.done():
            until.nearer.add_done_callback(lambda _: self.drain(rank, why, until))
            self.session.messenger.notify(rank.endpoint, protocol.DRAIN, protocol.Drain(why, until.left_s))

    def kill(self, rank: LaunchedRank, why: str) -> None:
        """End a rank by force."""
        rank.ended_by = why
        self._kill(rank)

    def _kill(self, rank: LaunchedRank) -> None:
        if self._node_watch.headless:  # it is told by its connection, when this process leaves the job
            return
        rank.process.kill()
        if not rank.exited.done():  # Ray asks a process to end, and one that is stopped does not hear that
            self._end_by_force(rank)

    def _end_by_force(self, rank: LaunchedRank) -> None:
        """End what is left of a rank: its process, and what that has started."""
        if rank.endpoint is None:
            return
        left = rank.pid, rank.born, rank.endpoint.process_id
        if rank.endpoint.machine_id == self.session.messenger.endpoint.machine_id:
            kill_process(*left)
        elif rank.placement.node_rank not in self._node_watch.states.lost:
            self.session.service(Processes).kill_there(rank.placement.node_id, *left)

    def state_of(self, number: int) -> tuple[RankState, str]:
        """How a rank is, and why it is not there; on the I/O thread."""
        return self._deaths.state_of(number), self._deaths.reason_of(number)

    @property
    def stopping(self) -> bool:
        """Whether the group is being ended, or has ended."""
        return self._deaths.stopping

    def _living(self) -> list[LaunchedRank]:
        return [rank for rank in self.ranks.values() if not rank.exited.done()]


def stop_groups(groups: Iterable[Supervision], who: str) -> None:
    """End groups side by side, so that all of them together take one grace period.

    Args:
        groups: which.
        who: what ends them, for messages.
    """
    stopping = [group for group in groups if group.begin_stop()]
    deadline = time.monotonic() + STOP_GRACE_S
    for group in stopping:
        try:
            group.finish_stop(deadline, who)
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
        stop_groups(list(self.groups), "the end of its job")


def groups_of(session: Session) -> set[Supervision]:
    """The groups that this process launched and that are not stopped."""
    return session.service(LaunchedGroups).groups


@dataclass(frozen=True, slots=True)
class GroupEntry:
    """A group of workers."""

    name: str
    world_size: int


def groups_in(session: Session) -> dict[str, GroupEntry]:
    """The worker groups of the job, by name; one that is being launched too."""
    sizes = session.directory.group_sizes()
    return {name: GroupEntry(name, size) for name, size in sizes.items()}


def _cannot_start(before: Sequence[LaunchedRank], *_: object) -> list[LaunchedRank]:
    raise LaunchError(before[0].address.group, "it was not launched here: no rank can be started again")
