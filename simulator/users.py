"""One call of a user of a simulated process."""

from __future__ import annotations

from simulator.script import NOWAIT, Call

UNANSWERED_US = 1_000_000
"""An operation without waiting has ended by then."""


class UserCall:
    """One call, as its user sees it.

    Attributes:
        step: what was asked.
        ticket: the number of its operation; another one when it begins anew.
        outcome: how it ended; empty while it has not.
        items: what was delivered.
        ended_us: when its operation was over, whether its user has looked or not.
        done_step: of a rank: the step that it has done with.
        part_step: of a rank: the step that was delivered.
    """

    __slots__ = (
        "began_us",
        "done_step",
        "ended_us",
        "items",
        "outcome",
        "part_step",
        "paused_us",
        "step",
        "ticket",
    )

    def __init__(self, step: Call) -> None:
        self.step = step
        self.ticket = step.number
        self.outcome = ""
        self.items: list[int] | None = None
        self.began_us = self.ended_us = self.paused_us = 0
        self.done_step = self.part_step = -1

    @property
    def limit_us(self) -> int | None:
        """How long it may take; None for ever."""
        return UNANSWERED_US if self.step.timeout_us == NOWAIT else self.step.timeout_us
