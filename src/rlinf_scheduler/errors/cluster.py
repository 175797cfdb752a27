"""The cluster, or a worker group on it, cannot be started or used."""

from __future__ import annotations

from collections.abc import Sequence

from rlinf_scheduler.errors.base import SchedulerError


class ClusterError(SchedulerError):
    """The cluster cannot be started, joined or used as asked."""


class ClusterTimeout(ClusterError, TimeoutError):
    """The cluster was not there at the deadline; the text says what was and what was missing."""


class NodeLost(ClusterError):
    """A node that something is to be started on is gone.

    Args:
        node_rank: its rank.
        reason: which node it is, why it is gone and since when.
    """

    def __init__(self, node_rank: int, reason: str) -> None:
        super().__init__(node_rank, reason)
        self.node_rank = node_rank
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class HardwareUnreachable(ClusterError):
    """Declared hardware, such as a robot, does not answer.

    Args:
        failures: a line for each piece: what, of which node, at which address, and why.
    """

    def __init__(self, failures: Sequence[str]) -> None:
        super().__init__(tuple(failures))
        self.failures = tuple(failures)

    def __str__(self) -> str:
        if len(self.failures) == 1:
            return f"cannot be reached: {self.failures[0]}"
        return "\n".join(["hardware cannot be reached:", *(f"  {line}" for line in self.failures)])


class DeviceMismatch(ClusterError):
    """A rank's process sees other accelerators than its placement gives it.

    Args:
        rank: its rank.
        node: its node's rank and address.
        planned: the accelerators that it should see, as the visibility variable names them, with UUIDs where known.
        seen: those that it sees.
        variable: the visibility variable in its process, `NAME='value'`.
        was_changed: whether that is not what the launch has set.
    """

    def __init__(
        self,
        rank: int,
        node: str,
        planned: Sequence[str],
        seen: Sequence[str],
        variable: str,
        was_changed: bool,
    ) -> None:
        super().__init__(rank, node, tuple(planned), tuple(seen), variable, was_changed)
        self.rank = rank
        self.node = node
        self.planned = tuple(planned)
        self.seen = tuple(seen)
        self.variable = variable
        self.was_changed = was_changed

    def __str__(self) -> str:
        planned, seen = (", ".join(devices) or "none" for devices in (self.planned, self.seen))
        why = (
            f"{self.variable} is not what the launch has set: the worker's module, something that it imports, or the "
            "interpreter's start has changed it; leave it to the placement"
            if self.was_changed
            else f"{self.variable} is as the launch has set it: a device has failed, or the driver counts them in "
            "another order than the vendor's tool (CUDA_DEVICE_ORDER, ROCR_VISIBLE_DEVICES); see `rlinf topology`"
        )
        return (
            f"rank {self.rank} on node {self.node} sees other accelerators than it was placed on\n"
            f"  planned: {planned}\n  sees: {seen}\n  {why}"
        )


class LaunchError(SchedulerError):
    """A worker group did not come up.

    Args:
        group: the group's name.
        problem: what went wrong, one sentence.
        details: one line a rank that failed or is missing.
    """

    def __init__(self, group: str, problem: str, details: Sequence[str] = ()) -> None:
        super().__init__(group, problem, tuple(details))
        self.group = group
        self.problem = problem
        self.details = tuple(details)

    def __str__(self) -> str:
        return "\n".join([f"group '{self.group}': {self.problem}", *(f"  {line}" for line in self.details)])


class ResizeError(LaunchError):
    """A group does not grow, or shrink: `problem` says why, and what has changed all the same, if anything has."""


class GroupExists(LaunchError):
    """A group or a channel of that name is there already."""


class DeviceHeld(LaunchError):
    """Another job, or another program of Ray's, has devices that a group is placed on; `details` says which and who."""


class LaunchTimeout(LaunchError, TimeoutError):
    """Some ranks were not ready at the launch's deadline; `details` says which, and what each waits for."""
