"""The stacks of ranks, whatever they are at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlinf_scheduler.observe.graph import graph_of
from rlinf_scheduler.observe.process_stats import JobActivity, Stack
from rlinf_scheduler.observe.why import ask_job, stack_lines
from rlinf_scheduler.observe.words import state_text
from rlinf_scheduler.session import Session


@dataclass(frozen=True, slots=True)
class RankStack:
    """Where a rank is: `print(stack)`.

    Attributes:
        address: its name, `group:rank`.
        at: that in a line: the innermost line of the user's, or that it is idle, stopped, or gone.
        threads: its stacks, its main thread's first; none of a process that is stopped, or idle.
    """

    address: str
    at: str
    threads: tuple[Stack, ...]

    def __str__(self) -> str:
        return "\n".join([self.at, *stack_lines(self.threads, whole=True)])


def stacks_of(session: Session, names: Sequence[str], within_s: float) -> list[RankStack]:
    """The stacks of the processes of these names, in their order.

    Raises:
        ClusterError: the process that keeps the job's directory does not answer.
    """
    return rank_stacks(ask_job(session, within_s, tuple(names)), names)


def rank_stacks(look: JobActivity, names: Sequence[str]) -> list[RankStack]:
    """The same, given what was found."""
    graph = graph_of(look)
    threads = {each.process: each.stacks for each in look.silent}
    threads.update((each.process, each.stacks) for each in look.doing)
    return [RankStack(name, state_text(graph, name), threads.get(name, ())) for name in names]
