"""What the end of a rank means for its group. Pure: events come in, and what is to be done about them goes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rlinf.scheduler.errors import WorkerDied
from rlinf.scheduler.events import WorkerLost

# "end" is as "fail", and the group is stopped so that its name is free; nothing is reported. The way of channels.
OnFailure = Literal["fail", "ignore", "end"]


@dataclass(frozen=True, slots=True)
class Consequences:
    """What is to be done about the end of a rank.

    Attributes:
        report: what listeners are told; None: nothing.
        ends_calls: every pending call of the group is over.
        stop: the group is to be stopped.
        kill: its process may live on behind a connection that is cut: it is to be killed.
    """

    report: WorkerLost | None = None
    ends_calls: bool = False
    stop: bool = False
    kill: bool = False


NOTHING = Consequences()


class Deaths:
    """Which ranks of a group are gone, and what follows from it.

    One thread tells it of events; any thread may ask.

    Args:
        group: the group's name.
        on_failure: what the death of a rank means for the others.

    Attributes:
        dead: why each rank that is gone is gone, in a line; further ones have what it wrote last.
        stopping: the group is being ended, so that ends are no deaths.
    """

    def __init__(self, group: str, on_failure: OnFailure) -> None:
        self.group = group
        self.dead: dict[int, str] = {}
        self.stopping = False
        self._on_failure = on_failure

    # -- what happens ----------------------------------------------------------------------------

    def on_exit(self, rank: int, reason: str) -> Consequences:
        """A rank's process has ended: Ray says so."""
        if self.stopping or rank in self.dead:
            return NOTHING
        self.dead[rank] = reason
        ends_group = self._on_failure == "end"
        return Consequences(
            report=None if ends_group else WorkerLost(self.group, rank, reason.partition("\n")[0]),
            ends_calls=self._on_failure != "ignore",
            stop=ends_group,
        )

    def on_lost(self, rank: int, reason: str) -> Consequences:
        """A rank's connection has been gone for a while, and Ray says nothing of its process."""
        consequences = self.on_exit(rank, reason)
        return consequences if consequences is NOTHING else replace(consequences, kill=True)

    # -- what it means for a call ----------------------------------------------------------------

    def refusal(self, wanted: Sequence[int], why_stopped: str) -> WorkerDied | None:
        """Why a call to these ranks cannot succeed; None if it can.

        Args:
            wanted: the ranks that it goes to.
            why_stopped: what to say if the group is being ended.
        """
        if self.stopping:
            return WorkerDied(self.group, wanted[0], "", why_stopped)
        for rank, reason in self.dead.copy().items():
            if rank in wanted:
                return WorkerDied(self.group, rank, "", reason)
            if self._on_failure != "ignore":
                first, newline, more = reason.partition("\n")
                whole = "; launched with on_failure='fail', the whole group ends with it"
                return WorkerDied(self.group, rank, "", first + whole + newline + more)
        return None

    def end_of_call(self, method: str) -> WorkerDied | None:
        """What a pending call ends with, whatever its ranks; None if it goes on."""
        if self._on_failure == "ignore":
            return None
        for rank, reason in self.dead.items():
            return WorkerDied(self.group, rank, method, reason)
        return None
