"""What the end of a rank means for its group, and how often it comes back. Pure: it does nothing about it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

from rlinf_scheduler.errors import WorkerDied
from rlinf_scheduler.events import WorkerLost

Verdict: TypeAlias = Literal["fail", "restart", "restart_group", "ignore"]
# What a launch may be told: what a death means, or who says so for each one.
OnFailure: TypeAlias = Verdict | Callable[[WorkerLost], Verdict]
# "end" is as "fail", and the group is stopped so that its name is free; nothing is reported. The way of channels.
Policy: TypeAlias = OnFailure | Literal["end"]
VERDICTS: tuple[str, ...] = get_args(Verdict)
# With these a rank that dies comes back.
RETURNING = ("restart", "restart_group")
# How a rank is: another process is to take its place ("away"); it is gone for good, alone or with the whole group.
RankState: TypeAlias = Literal["there", "away", "dead", "fatal"]
MAX_RESTARTS = 5
WITHIN_S = 60.0
# The first start is at once; the second in a row waits so long, each further one twice as long, up to the last.
FIRST_DELAY_S, LONGEST_DELAY_S = 0.5, 30.0


@dataclass(frozen=True, slots=True)
class Consequences:
    """What is to be done about the end of a rank.

    Attributes:
        report: what listeners are told; None: nothing.
        ends_calls: every pending call of the group is over.
        stop: the group is to be stopped.
        kill: its process may live on behind a connection that is cut: it is to be killed.
        restart: another process is to take its place; until then calls to it wait.
        anew: all other ranks end, too, and come back together with it.
        others: what listeners are told of these.
        ask: the group's owner is to be asked what it means; until then calls to it wait.
    """

    report: WorkerLost | None = None
    ends_calls: bool = False
    stop: bool = False
    kill: bool = False
    restart: bool = False
    anew: bool = False
    others: tuple[WorkerLost, ...] = ()
    ask: bool = False


NOTHING = Consequences()


class Deaths:
    """Which ranks of a group are gone, which of these come back, and what follows from it.

    One thread tells it of events; any thread may ask.

    Args:
        on_failure: what the death of a rank means for the others.
        ranks: the numbers of its ranks.

    Attributes:
        ranks: likewise; those of now.
        dead: why each rank that is gone for good is gone, in a line; further ones have what it wrote last.
        away: likewise of each rank whose place another process is to take, or may.
        stopping: the group is being ended, so that ends are no deaths.
    """

    def __init__(self, group: str, on_failure: Policy, ranks: Sequence[int] = ()) -> None:
        self.group = group
        self.ranks = tuple(ranks)
        self.dead: dict[int, str] = {}
        self.away: dict[int, str] = {}
        self.stopping = False
        self._on_failure = on_failure
        self._left: set[int] = set()
        # Of the dead, those with whom the whole group ends.
        self._fatal: set[int] = set()
        # Of those away, those about whom nobody has said yet what it means.
        self._undecided: set[int] = set()

    @property
    def may_return(self) -> bool:
        """Whether a rank that dies may come back."""
        return self._on_failure in RETURNING or callable(self._on_failure)

    @property
    def are_one(self) -> bool:
        """Whether all ranks come back if one dies."""
        return self._on_failure == "restart_group"

    # -- what happens ----------------------------------------------------------------------------

    def on_exit(self, rank: int, reason: str) -> Consequences:
        """A rank's process has ended: Ray says so."""
        if self.stopping or rank in self.dead or rank in self.away or rank in self._left:
            return NOTHING
        lost = WorkerLost(self.group, rank, reason.partition("\n")[0])
        if self.may_return:
            self.away[rank] = reason
            asks = callable(self._on_failure)
            if asks:
                self._undecided.add(rank)
                return Consequences(lost, ask=True)
            return self._coming_back(rank, lost, anew=self.are_one)
        ends_group = self._on_failure == "end"
        ends_calls = self._die(rank, reason, fatal=self._on_failure != "ignore")
        return Consequences(None if ends_group else lost, ends_calls=ends_calls, stop=ends_group)

    def on_lost(self, rank: int, reason: str) -> Consequences:
        """A rank's connection has been gone for a while, and Ray says nothing of its process."""
        consequences = self.on_exit(rank, reason)
        return consequences if consequences is NOTHING else replace(consequences, kill=True)

    def on_restart(self, rank: int, reason: str) -> Consequences:
        """Somebody wants another process in a rank's place, be it dead or alive."""
        if self.stopping or rank in self._left:
            return NOTHING
        if rank in self.away:
            return self._coming_back(rank, anew=self.are_one) if self._decide(rank) else NOTHING
        died_before = self.dead.pop(rank, None)
        self._fatal.discard(rank)
        self.away[rank] = died_before or reason
        lost = None if died_before is not None else WorkerLost(self.group, rank, reason)
        return replace(self._coming_back(rank, lost, anew=self.are_one), kill=died_before is None)

    def on_verdict(self, rank: int, verdict: Verdict) -> Consequences:
        """The owner has said what a rank's death means; too late if somebody else has decided meanwhile."""
        if self.stopping or not self._decide(rank):
            return NOTHING
        if verdict in RETURNING:
            return self._coming_back(rank, anew=verdict == "restart_group")
        return self.give_up(rank, self.away.get(rank, ""), fatal=verdict == "fail")

    def _coming_back(self, rank: int, lost: WorkerLost | None = None, *, anew: bool) -> Consequences:
        """Another process takes the place of a rank; with `anew`, those of all."""
        others = [each for each in self.ranks if each != rank] if anew else []
        first = self.away[rank].partition("\n")[0]
        why = f"all of '{self.group}' starts anew with rank {rank}: {first}"
        new = [each for each in others if each not in self.away and each not in self.dead]
        for other in others:
            self.away.setdefault(other, self.dead.pop(other, why))
            self._fatal.discard(other)
            self._undecided.discard(other)
        told = tuple(WorkerLost(self.group, other, why) for other in new)
        return Consequences(lost, restart=True, anew=anew, others=told)

    def _decide(self, rank: int) -> bool:
        """Whether what a death means was open until now."""
        was_open = rank in self._undecided
        self._undecided.discard(rank)
        return was_open

    def give_up(self, rank: int, reason: str, *, fatal: bool = True) -> Consequences:
        """A rank that was away does not come back."""
        if rank in self._left:
            return NOTHING
        ends_calls = self._die(rank, reason, fatal=fatal)
        self.away.pop(rank, None)
        return Consequences(ends_calls=ends_calls)

    def on_resized(self, ranks: Sequence[int]) -> None:
        """The group has these ranks from now on: the end of one that left, dead or alive, means nothing any more."""
        self._left = (self._left | set(self.ranks)) - set(ranks)
        self.ranks = tuple(ranks)
        for rank in self._left:
            self._undecided.discard(rank)
            self._fatal.discard(rank)
            self.away.pop(rank, None)
            self.dead.pop(rank, None)

    def on_return(self, rank: int) -> None:
        """Another process has taken a rank's place."""
        self.away.pop(rank, None)

    def _die(self, rank: int, reason: str, *, fatal: bool) -> bool:
        # In this order: other threads ask, and look at the dead first.
        if fatal:
            self._fatal.add(rank)
        self.dead[rank] = reason
        return fatal

    def told(self, rank: int, state: RankState, reason: str) -> bool:
        """Who supervises the group elsewhere says how a rank is; whether that ends every pending call."""
        if state in ("dead", "fatal"):
            ends_calls = self._die(rank, reason, fatal=state == "fatal")
            self.away.pop(rank, None)
            return ends_calls
        if state == "away":
            self.away[rank] = reason
        self.dead.pop(rank, None)
        self._fatal.discard(rank)
        if state == "there":
            self.away.pop(rank, None)
        return False

    def state_of(self, rank: int) -> RankState:
        """How a rank is, as `told` takes it."""
        if rank in self.dead:
            return "fatal" if rank in self._fatal else "dead"
        return "away" if rank in self.away else "there"

    def reason_of(self, rank: int) -> str:
        """Why a rank is not there; "" if it is."""
        return self.dead.get(rank) or self.away.get(rank, "")

    # -- what it means for a call ----------------------------------------------------------------

    def refusal(self, wanted: Sequence[int], why_stopped: str) -> WorkerDied | None:
        """Why a call to these ranks cannot succeed; None if it can.

        Args:
            wanted: the ranks that it goes to.
            why_stopped: what to say if the group is being ended.
        """
        if self.stopping:
            return WorkerDied(
                self.group, wanted[0] if wanted else min(self.ranks, default=0), "", why_stopped
            )
        for rank, reason in self.dead.copy().items():
            if rank in wanted:
                return WorkerDied(self.group, rank, "", reason)
            if rank in self._fatal:
                first, newline, more = reason.partition("\n")
                policy = self._on_failure if self._on_failure in RETURNING else "fail"
                whole = f"; launched with on_failure='{policy}', the whole group ends with it"
                return WorkerDied(self.group, rank, "", first + whole + newline + more)
        return None

    def end_of_call(self, method: str) -> WorkerDied | None:
        """What a pending call ends with, whatever its ranks; None if it goes on."""
        for rank, reason in self.dead.items():
            if rank in self._fatal:
                return WorkerDied(self.group, rank, method, reason)
        return None


class Restarts:
    """Counts them: what dies again and again at once would never do any work.

    Args:
        most: so many
        within_s: in so many seconds.

    >>> restarts = Restarts(most=2, within_s=60)
    >>> restarts.may(0), restarts.may(1), restarts.may(2), restarts.may(61)
    (True, True, False, True)
    """

    def __init__(self, most: int = MAX_RESTARTS, within_s: float = WITHIN_S) -> None:
        self.most = most
        self.within_s = within_s
        self._last: deque[float] = deque()

    def may(self, now: float) -> bool:
        """Whether it is to be started now; then it counts."""
        while self._last and self._last[0] <= now - self.within_s:
            self._last.popleft()
        if len(self._last) >= self.most:
            return False
        self._last.append(now)
        return True

    @property
    def delay_s(self) -> float:
        """How long the start that was counted last is to wait, in seconds.

        >>> restarts = Restarts(most=9, within_s=60)
        >>> [restarts.delay_s for second in range(9) if restarts.may(second)]
        [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
        """
        num_before = len(self._last) - 1
        return min(LONGEST_DELAY_S, FIRST_DELAY_S * 2 ** (num_before - 1)) if num_before > 0 else 0.0
