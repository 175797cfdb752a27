"""What is ordered when a group is to be launched: records, made by the builder and carried out by the group's home."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from rlinf_scheduler.checks import whole_number
from rlinf_scheduler.comm import Buffer
from rlinf_scheduler.errors import ConfigError
from rlinf_scheduler.planning import Placement, PlacementStrategy, Topology
from rlinf_scheduler.worker.deaths import MAX_RESTARTS, RETURNING, WITHIN_S, Policy

# However little time those have that leave, those that stay have so much to end their calls and to follow, in seconds.
FOLLOW_S = 30.0


@dataclass(frozen=True, slots=True)
class RestartLimit:
    """How often a rank comes back.

    Attributes:
        most: so many times
        within_s: in so many seconds.
    """

    most: int = MAX_RESTARTS
    within_s: float = WITHIN_S


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """How a group is launched.

    Attributes:
        max_concurrency: how many plain methods may run at a time on a rank.
        timeout_s: how long the launch may take, in seconds.
        topology: what the placements were made on; its node groups say what the processes start with and what
            hardware they are given. None: the bare cluster.
        registers_itself: the worker makes its name known; otherwise its host does.
        unresponsive_after_s: how long a rank may be stopped or stuck before it is dead; None: for ever.
        wait_s: how long to wait for devices that others hold, in seconds.
        library_level: the lowest level of what loggers other than the workers' own say that the driver shows; 0: none.
        on_failure: what the death of a rank means.
        limit: how often a rank comes back.
        ready_when: the method that a rank that comes back runs before it is called; "" for none.
        stall_after_s: after how many seconds a call that is not answered is told of; 0: never.
        seed: what the ranks' seeds are derived from; None: one that is drawn.
        sys_path: where modules are found; empty: where the process that launches finds them.
        log_level: the lowest level of what the workers themselves log that is shown; 0: as that process's logging is.
        moves: whether a rank whose node is gone comes back on another one.
    """

    max_concurrency: int = 1
    timeout_s: float = 120.0
    topology: Topology | None = None
    registers_itself: bool = False
    unresponsive_after_s: float | None = None
    wait_s: float = 0.0
    library_level: int = 0
    on_failure: Policy = "fail"
    limit: RestartLimit = RestartLimit()
    ready_when: str = ""
    stall_after_s: float = 0
    seed: int | None = None
    sys_path: tuple[str, ...] = ()
    log_level: int = 0
    moves: bool = False

    @property
    def returns(self) -> bool:
        """Whether a rank that dies may come back."""
        return self.on_failure in RETURNING or callable(self.on_failure)


@dataclass(frozen=True, slots=True)
class Growth:
    """That a group is to grow.

    Attributes:
        num_workers: by how many ranks; None: as many as `placement` makes.
        placement: where they run, with devices that other groups of the job may have; None: on free ones of the kind
            that the group has.
        reuse: numbers of ranks that have left are taken again.
        timeout_s: how long it may take, in seconds.
        ready_when: the method that they run before they are called; "": that of the launch.
    """

    num_workers: int | None = None
    placement: PlacementStrategy | str | Mapping[str, Any] | None = None
    reuse: bool = False
    timeout_s: float = 120.0
    ready_when: str = ""

    @property
    def operation(self) -> str:
        """It as its call is written."""
        return (
            f"grow({self.num_workers})" if self.placement is None else f"grow(placement={self.placement!r})"
        )

    def checked(self) -> Self:
        """It, if it can be meant.

        Raises:
            ConfigError: it says how many ranks twice, or not at all, or that is no number.
        """
        if (self.num_workers is None) == (self.placement is None):
            raise ConfigError("grow(): it takes `num_workers`, or a `placement`, which says how many")
        _check_number(self.num_workers)
        return self


@dataclass(frozen=True, slots=True)
class Shrinkage:
    """That ranks of a group are to leave it.

    Attributes:
        num_workers: so many, the highest.
        ranks: these.
        drain_s: how long they may take to finish what they have, in seconds.
        why: who wants it, in a phrase; "": as its call is written.
    """

    num_workers: int | None = None
    ranks: Sequence[int] | None = None
    drain_s: float = 30.0
    why: str = ""

    @property
    def operation(self) -> str:
        """It as its call is written, or who wants it."""
        asked = f"{self.num_workers}" if self.ranks is None else f"ranks={list(self.ranks)}"
        return self.why or f"shrink({asked})"

    def checked(self) -> Self:
        """It, if it can be meant.

        Raises:
            ConfigError: as of `Growth`.
        """
        if (self.num_workers is None) == (self.ranks is None):
            raise ConfigError("shrink(): it takes `num_workers`, or `ranks`")
        _check_number(self.num_workers)
        if self.ranks is None:
            return self
        ranks = tuple(self.ranks) if isinstance(self.ranks, Iterable) else ()
        if not ranks or None in map(whole_number, ranks):
            raise ConfigError(f"ranks={self.ranks!r}: these are numbers of ranks, one at least")
        return replace(self, ranks=ranks)


def _check_number(num_workers: int | None) -> None:
    if num_workers is not None and whole_number(num_workers, lowest=1) is None:
        raise ConfigError(f"num_workers={num_workers!r}: it is a whole number from 1")


@dataclass(frozen=True, slots=True)
class GroupOrder:
    """A group that is to be launched.

    Attributes:
        factory: the worker's class and its arguments, encoded.
        placements: where the ranks are to be.
        options: how they are launched.
        worker_class: the class, in the process that orders it.
    """

    factory: tuple[Buffer, ...]
    placements: tuple[Placement, ...]
    options: LaunchOptions
    worker_class: type[Any] | None = None
