"""What calls need of a group: where each goes, and what the end of a rank means for those that go on."""

from __future__ import annotations

import logging
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any, Generic, Literal, Protocol, TypeVar
from weakref import ref

from msgspec.structs import replace

from rlinf_scheduler.addresses import WorkerAddress
from rlinf_scheduler.comm import Endpoint
from rlinf_scheduler.comm.loop import Timer, ending
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.waits import LAUNCH, RESULT, Wait
from rlinf_scheduler.errors import CommError, PeerDied, PlacementError, ResizeError, WorkerDied
from rlinf_scheduler.observe.own_activity import OwnActivity
from rlinf_scheduler.observe.process_stats import Activity
from rlinf_scheduler.observe.reasons import Stall, tell_stall
from rlinf_scheduler.planning import Placement
from rlinf_scheduler.ray_backend.ending import end_failed
from rlinf_scheduler.session import Session
from rlinf_scheduler.session.membership import GroupMembers
from rlinf_scheduler.wording import clock_text
from rlinf_scheduler.worker.call import Call, Target
from rlinf_scheduler.worker.deadline import Deadline
from rlinf_scheduler.worker.deaths import Deaths, Policy
from rlinf_scheduler.worker.order import Growth, Shrinkage
from rlinf_scheduler.worker.result import GroupResult

UNREAD_GRACE_S = 3.0
# Of the calls of a group that have failed, so many are told of to who asks what this process is at.
MAX_UNTAKEN = 8
TERMINATED = "the group was terminated"
State = Literal["alive", "unresponsive", "restarting", "dead", "ended"]

_log = logging.getLogger("rlinf.driver")


class KnownRank(Protocol):
    """One rank's process, as a process knows it that calls it; see `LaunchedRank`."""

    address: WorkerAddress
    placement: Placement
    endpoint: Endpoint | None
    gone: Promise[str]
    pid: int
    num_restarts: int
    ended_by: str


RankT = TypeVar("RankT", bound=KnownRank)


def awaits_end(local: dict[str, Any]) -> Wait:
    """Return what a thread waits for that ends a group; since `began`, where that is there."""
    group: GroupCalls[Any] = local["self"]
    there = tuple(str(rank.address) for rank in group.ranks.values() if not rank.gone.done())
    return Wait(RESULT, f"shutdown of '{group.name}'", _since(local), peers=there)


def awaits_restart(local: dict[str, Any]) -> Wait:
    """Return what a thread waits for that restarts the rank `number`; since `began`, where that is there."""
    operation = f"restart of '{local['self'].name}:{local['number']}'"
    return Wait(LAUNCH, operation, _since(local), local["timeout_s"])


def _since(local: dict[str, Any]) -> float:
    return time.monotonic() - local["began"] if "began" in local else 0.0


class GroupCalls(ABC, Generic[RankT]):
    """What all views of one group share in this process. Somebody supervises its processes, here or elsewhere.

    The messenger's I/O thread alone says who is dead and which calls go on; no lock is held by anybody.

    Args:
        members: its ranks.
        ranks: their processes.
        on_failure: what the death of a rank means.
        stall_after_s: after how many seconds a call that is not answered is told of; 0: never.

    Attributes:
        session, name, on_failure, stall_after_s: see above.
        members: the ranks that it has now: calls go to these.
        ranks: their processes, and those of ranks that leave until they have ended, by number. Replaced as a whole at
            each change: other threads iterate over it. A rank that comes back is another one here.
        left: why each rank is no member any more that was one, and when it left.
        why_resized: who wanted it to have the members that it has; "" as it was launched.
    """

    def __init__(
        self,
        session: Session,
        members: GroupMembers,
        ranks: Sequence[RankT],
        on_failure: Policy,
        stall_after_s: float,
    ) -> None:
        self.session = session
        self.name = members.group
        self.members = members
        self.ranks: Mapping[int, RankT] = {rank.address.rank: rank for rank in ranks}
        self.left: dict[int, str] = {}
        self.why_resized = ""
        self.on_failure = on_failure
        self.stall_after_s = stall_after_s
        self._deaths = Deaths(members.group, on_failure, members.ranks)
        self._pending = PendingCalls()
        self._untaken = UntakenFailures(session)

    # -- who supervises it -----------------------------------------------------------------------

    @abstractmethod
    def restart(self, number: int, timeout_s: float) -> None:
        """Have another process take a rank's place, and wait until it has.

        Raises:
            WorkerDied: it does not come back, or the group was terminated.
            LaunchTimeout: it is not there at the deadline; it may come later.
        """

    @abstractmethod
    def stop(self) -> None:
        """End every process: after the call that it runs now, or after a grace period by force."""

    @abstractmethod
    def shutdown(self, timeout_s: float | None) -> None:
        """End every process once it has answered the calls that it has got; what is left at the deadline is killed."""

    def grow(self, growth: Growth, given_up: Promise[None] | None = None) -> tuple[int, ...]:
        """Start further ranks, and return their numbers when they are ready.

        Args:
            growth: which.
            given_up: done when nobody wants them any more.

        Raises:
            ResizeError: it cannot be, or is not here to decide.
        """
        raise self._not_resizable("grow")

    def shrink(
        self, shrinkage: Shrinkage, given_up: Promise[None] | None = None, until: Deadline | None = None
    ) -> tuple[int, ...]:
        """Let ranks finish what they have and end, and return their numbers when they have ended.

        Args:
            shrinkage: which.
            given_up: done when nobody wants that any more; what has left has left.
            until: when it has to be over; None: after `drain_s`, from when it is its turn.

        Raises:
            ResizeError: it cannot be, or is not here to decide.
        """
        raise self._not_resizable("shrink")

    def _not_resizable(self, what: str) -> ResizeError:
        return ResizeError(self.name, f"it does not {what}: it is no group of workers that was launched here")

    def stop_beside(self) -> None:
        """As `stop`, in a thread of its own; from any thread, the I/O thread too."""
        self.session.messenger.run_beside(self.stop)

    # -- the I/O thread --------------------------------------------------------------------------

    def _start(self, call: Call) -> None:
        call.leave_out_those_that_left()
        self._pending.add(call)
        if self.stall_after_s:
            watch_stalls(self.session, call, self.stall_after_s)
        if (
            self._deaths.may_return or self._deaths.away
        ):  # since it was made, a rank may have gone or returned
            for index, address in enumerate(call.addresses):
                if call.outcomes[index] is None:  # one that has left may have no process to look for
                    call.aim(index, self.target(address.rank))
        call.start()
        for number, reason in self._deaths.dead.items():
            call.refuse(self._death_in(call, number, reason))
        self._end_with_the_dead(call)  # a rank may have died since check_alive

    def _end_all_calls(self) -> None:
        for call in tuple(self._pending):
            call.abort(WorkerDied(self.name, call.addresses[0].rank, call.method, self.session.failure))

    def _refuse_waiting(self) -> None:
        """The group has ended: calls that wait for a process get none."""
        for call in self._pending:
            for address in call.addresses:
                call.refuse(WorkerDied(self.name, address.rank, call.method, TERMINATED))

    def _end_with_the_dead(self, call: Call) -> None:
        error = self._deaths.end_of_call(call.method)
        if error is not None:
            call.abort(self._death_in(call, error.rank, error.reason))

    def _begin_anew(self, number: int, reason: str) -> None:
        """All ranks end with one: calls that they have are made again by those that come, or end, too."""
        for call in self._pending:
            if call.was_sent and not call.begin_anew():
                call.abort(self._death_in(call, number, reason))

    def _refuse_parts(self, number: int, why: str) -> None:
        """Calls that wait for a rank's next process get none."""
        for call in self._pending:
            call.refuse(self._death_in(call, number, why))

    def _death_in(self, call: Call, number: int, reason: str) -> WorkerDied:
        """What a call ends with when a rank is dead; one that it never reached did not die during it."""
        return WorkerDied(self.name, number, "" if call.awaits(number) else call.method, reason)

    def target(self, number: int) -> Target:
        """Where a call to a rank goes now; from any thread."""
        rank = self.rank(number)
        endpoint = rank.endpoint
        if number in self._deaths.away or (self._deaths.may_return and self._is_lost(endpoint)):
            return Target(rank.address, None)
        return Target(rank.address, endpoint, rank.gone)

    def targets(self, wanted: Sequence[int] | None) -> list[Target]:
        """Where a call goes now: to these ranks, or (None) to the members; from any thread.

        Raises:
            PlacementError: as of `rank`.
        """
        while True:
            members = self.members
            try:
                return [self.target(number) for number in (members.ranks if wanted is None else wanted)]
            except (PlacementError, WorkerDied):  # of the members: one may have left since
                if wanted is not None or self.members is members:
                    raise

    def rank(self, number: int) -> RankT:
        """A rank's process now; from any thread.

        Raises:
            PlacementError: it has left the group.
        """
        rank = self.ranks.get(number)
        if rank is None:
            raise self._not_there(number)
        return rank

    def _not_there(self, number: int) -> PlacementError:
        return PlacementError(f"group '{self.name}' has no rank {number}: {self.left.get(number, 'it left')}")

    def why_left(self, address: WorkerAddress) -> PlacementError | None:
        """Why a rank is no member any more; None where it is one, or the group has ended."""
        has_left = address.rank in self.left and not self._deaths.stopping
        return self._not_there(address.rank) if has_left else None

    def _is_lost(self, endpoint: Endpoint | None) -> bool:
        return endpoint is not None and endpoint.process_id in self.session.messenger.peers.lost

    def next_target(self, address: WorkerAddress) -> Target | None:
        """Where a call is sent again whose rank died; None if that does not come back."""
        is_gone = address.rank in self._deaths.dead or address.rank in self.left
        comes_back = self._deaths.may_return and not is_gone
        return self.target(address.rank) if comes_back and not self._deaths.stopping else None

    def _take_members(self, members: GroupMembers, why: str) -> None:
        """The group has these members from now on; on the I/O thread."""
        self.why_resized = why
        why_left = f"it left at {clock_text(time.time())} ({why})"
        for rank in self.members.ranks:
            if rank not in members:
                self.left[rank] = why_left
                self._refuse_parts(rank, why_left)
        self.left = {rank: why for rank, why in self.left.items() if rank not in members}
        self._deaths.on_resized(members.ranks)
        self.members = members

    @property
    def are_one(self) -> bool:
        """Whether all ranks come back if one dies; from any thread."""
        return self._deaths.are_one

    # -- other threads ---------------------------------------------------------------------------

    def begin(self, call: Call, result: GroupResult[Any]) -> None:
        """Start a call, in one step: all ranks get it or none does.

        Raises:
            CommError: this process has left the job.
        """
        messenger = self.session.messenger
        fail_fast = self.session.fact(FailFast)
        if fail_fast is None:
            self._watch_unread(call)
        else:
            fail_fast.watch(result, call.settled, unless=partial(self._is_let_go, call))
        messenger.submit(ending(partial(self._start, call), call.fail))
        if messenger.why_closed:  # what is handed over after that may not be looked at any more
            raise CommError(f"{self.name}.{call.method}(): {messenger.why_closed}")

    def _is_let_go(self, call: Call) -> bool:
        """Whether its ranks are being ended, or some leave: what it fails with is no failure."""
        return self._deaths.stopping or any(call.addresses[place].rank in self.left for place in call.places)

    def check_alive(self, wanted: Sequence[int], *, of_members: bool = False) -> None:
        """Make sure that a call to these ranks can succeed; `of_members`: those that the group has just now.

        Raises:
            WorkerDied: it cannot: one is gone, with whom it ends.
            PlacementError: one is no member of the group any more.
        """
        for rank in () if of_members else wanted:
            if rank in self.left and not self._deaths.stopping:
                raise self._not_there(rank)
        refusal = self._deaths.refusal(wanted, self.session.failure or TERMINATED)
        if refusal is not None:
            raise refusal

    def reason_of_death(self, call: Call, address: WorkerAddress, wait_s: float, otherwise: str) -> str:
        """Why the process is gone that a call to a rank went to, as far as that is known within `wait_s` seconds."""
        gone = call.why_gone(address)
        return gone.result() if gone is not None and gone.wait(wait_s) else otherwise

    def health(self, number: int) -> RankHealth:
        """How a rank is."""
        rank = self.rank(number)
        state, reason = self._state_of(number, rank)
        return RankHealth(rank.address, state, reason, rank.placement.node_rank, rank.pid, rank.num_restarts)

    def _state_of(self, number: int, rank: RankT) -> tuple[State, str]:
        if self._deaths.stopping:
            return "ended", rank.ended_by or self.session.failure or TERMINATED
        if number in self._deaths.dead:
            return "dead", self._deaths.dead[number]
        if number in self._deaths.away:
            return "restarting", self._deaths.away[number]
        silence = "" if rank.endpoint is None else self.session.why_silent(rank.endpoint.process_id)
        return ("unresponsive", silence) if silence else ("alive", "")

    def _watch_unread(self, call: Call) -> None:
        """Log the failure of a call that nobody has asked about a while after it failed, or ever can.

        The driver may be waiting for something that will never come because of it.
        """

        def report() -> None:
            # Not the caller's own, which may be dropped by now, nor kept for this: it holds what ranks have returned.
            error = GroupResult(call, partial(self.reason_of_death, call)).unread_failure()
            if error is not None and not self._deaths.stopping:
                logging.getLogger(f"rlinf.worker.{self.name}").error("not waited for yet: %s", error)

        def settled(_: Promise[None]) -> None:
            if call.failed:
                messenger.call_later(UNREAD_GRACE_S, report)
                self._untaken.note(call)

        messenger = self.session.messenger
        call.settled.add_done_callback(settled)


class PendingCalls:
    """On the I/O thread alone. Iterating gives the calls that some rank has not answered, in the order of starts."""

    def __init__(self) -> None:
        # By which one it is.
        self._calls: dict[int, Call] = {}
        self._num_started = 0
        # By rank: when it answered last, and the first of the calls that the end of its process ended.
        self._answered_at: dict[int, float] = {}
        self._ended: dict[int, tuple[int, Call]] = {}

    def __iter__(self) -> Iterator[Call]:
        return iter(tuple(self._calls.values()))

    def add(self, call: Call) -> None:
        """A call starts."""
        self._num_started += 1
        self._calls[self._num_started] = call
        call.complete.add_done_callback(partial(self._on_complete, self._num_started, call))

    def _on_complete(self, number: int, call: Call, _: Promise[None]) -> None:
        self._calls.pop(number, None)
        for address, outcome, at in zip(call.addresses, call.outcomes, call.answered_at, strict=True):
            if isinstance(outcome, PeerDied):
                # An earlier one may be complete later: other ranks are at it.
                if number < self._ended.get(address.rank, (math.inf, call))[0]:
                    self._ended[address.rank] = number, call
            elif outcome is not None:
                self._answered_at[address.rank] = at

    def forget(self, rank: int) -> None:
        """Another process has a rank's place."""
        self._ended.pop(rank, None)
        self._answered_at.pop(rank, None)

    def end_of(self, rank: int) -> str:
        """What a rank was at when its process ended, just now, in words; "" if it had no call of this process's."""
        since = self._answered_at.get(rank, 0.0)
        ended = [self._ended[rank]] if rank in self._ended else []
        for _, call in sorted([*ended, *self._calls.items()], key=itemgetter(0)):
            index = next((i for i, address in enumerate(call.addresses) if address.rank == rank), None)
            if index is None or not call.sent_at[index]:
                continue
            if call.outcomes[index] is not None and not isinstance(call.outcomes[index], PeerDied):
                since = call.answered_at[index]
                continue
            until = call.answered_at[index] or time.monotonic()
            return f"{until - max(since, call.sent_at[index]):.1f} s into {call.method}()"
        return ""


class UntakenFailures:
    """The last calls of a group that have failed, for `why` to tell of while nobody has taken that. On the I/O thread.

    It keeps none of them: a result that is dropped is not waited for.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._calls: list[ref[Call]] = []
        self._forget: Callable[[], None] = lambda: None

    def note(self, call: Call) -> None:
        """A call has failed."""
        if not self._calls:
            self._forget = self._session.service(OwnActivity).add(self.add_to)
        self._calls = [*self._calls, ref(call)][-MAX_UNTAKEN:]

    def add_to(self, activity: Activity) -> Activity:
        """Add them to what this process is at."""
        known = [(kept, call) for kept in self._calls if (call := kept()) is not None]
        told = {kept: failure for kept, call in known if (failure := call.untaken_failure())}
        self._calls = list(told)
        if not told:
            self._forget()
        return replace(activity, failures=(*activity.failures, *told.values()))


@dataclass(frozen=True, slots=True)
class RankHealth:
    """How a rank is.

    Attributes:
        address: its name, `group:rank`.
        state: "alive"; "unresponsive": stopped, stuck or cut off; "restarting": its process is gone, and another one
            takes its place, or may; "dead"; "ended": with its group, which was terminated.
        reason: why it is not alive; "" if it is.
        node_rank: its node.
        pid: its process's id there, the last one's if it has none.
        num_restarts: how many processes had its place before.
    """

    address: WorkerAddress
    state: State
    reason: str
    node_rank: int
    pid: int
    num_restarts: int


def watch_stalls(session: Session, call: Call, stall_after_s: float) -> None:
    """Tell the job's home of a call that owes something for so long, in seconds, and whenever that has doubled."""
    patience = Patience(stall_after_s)
    timers: list[Timer] = []

    def look() -> None:
        now = time.monotonic()
        owed_s = [now - call.owed_since(index) for index in range(len(call.addresses))]
        waited_s = max(owed_s)
        if patience.ends(waited_s):
            pairs = zip(call.addresses, owed_s, strict=True)
            late = tuple(str(address) for address, each_s in pairs if each_s >= stall_after_s)
            tell_stall(session, Stall(call.addresses[0].group, "", f"{call.method}()", late, waited_s))
        begin(patience.left_s(waited_s))

    def begin(pause_s: float) -> None:
        timers[:] = [session.messenger.call_later(pause_s, look)]

    begin(stall_after_s)
    # The timer refers to the call, and that to what has come of it.
    call.complete.add_done_callback(lambda _: timers.pop().cancel())


class Patience:
    """How long a wait may take until it is told of, and told of again.

    >>> patience = Patience(10.0)
    >>> patience.ends(9.0), patience.ends(11.0), patience.ends(19.0), patience.left_s(19.0)
    (False, True, False, 3.0)
    >>> patience.ends(4.0), patience.left_s(4.0)  # what was waited for has come, and it waits for the next
    (False, 6.0)
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._told_s = 0.0

    def ends(self, waited_s: float) -> bool:
        """Return whether it is to be told of now, given for how long it waits, in seconds."""
        if waited_s < self._told_s:
            self._told_s = 0.0
        if waited_s < max(self._limit_s, 2 * self._told_s):
            return False
        self._told_s = waited_s
        return True

    def left_s(self, waited_s: float) -> float:
        """Return for how much longer it may wait, in seconds, given for how long it does; less than 0: it does not."""
        return max(self._limit_s, 2 * self._told_s) - max(0.0, waited_s)


@dataclass(frozen=True, slots=True)
class FailFast:
    """That a failed call ends this process; its session has it as a fact where `cluster.fail_fast` is true."""

    session: Session
    # Taken by the first failure: who ends already is not interrupted once more.
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def watch(
        self, result: GroupResult[object], settled: Promise[None], *, unless: Callable[[], bool]
    ) -> None:
        """End this process once a call has failed, whether or not somebody waits for it.

        Args:
            result: of the call.
            settled: done when it has ended.
            unless: whether its ranks are being ended, or leave: what fails by that is no failure.
        """
        settled.add_done_callback(partial(self._look_at, result, unless))

    def _look_at(self, result: GroupResult[object], unless: Callable[[], bool], _: Promise[None]) -> None:
        if not unless() and result.failure(reason_wait_s=0.0) is not None:
            self.session.messenger.run_beside(self._end_for, result)

    def _end_for(self, result: GroupResult[object]) -> None:
        if not self._turn.acquire(blocking=False):
            return
        told = "a call has failed, and ends this driver (`cluster.fail_fast: false` keeps it)"
        _log.critical("cluster.fail_fast: %s: %s", told, result.failure())
        end_failed()
