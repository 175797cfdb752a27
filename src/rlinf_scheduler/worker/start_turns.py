"""How many processes start at a time on one machine.

Ray gives a process a minute to come up. Where hundreds start on a few cores at once, none of them does within it, and
Ray ends those that are nearly there. A few for each core keep the cores as busy, and each is up within moments.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.session import Session

# Each waits for Ray, too, so a core has more than one at a time; and a machine some, however little is known of it.
_OF_A_CORE = 2
MIN_AT_ONCE = 8


class StartTurns:
    """Which processes are starting; a service of a session, shared by all launches.

    It has no lock, which a signal handler could meet: two launches that look at once may start one process too many.

    Attributes:
        changed: done when there is more room than when it was read.
    """

    def __init__(self, _session: Session | None = None) -> None:
        self.changed: Promise[None] = Promise()
        self._starting: dict[str, dict[object, None]] = {}

    def begin(self, machine: str, process: object) -> None:
        """A process begins to start on a machine."""
        self._starting.setdefault(machine, {})[process] = None

    def end(self, machine: str, process: object) -> None:
        """It is up, or gone; on the I/O thread."""
        self._starting.get(machine, {}).pop(process, None)
        self.wake()

    def wake(self) -> None:
        """Let all launches look again; on the I/O thread."""
        before, self.changed = self.changed, Promise()
        before.set_result(None)

    def room(self, machine: str, limit: int) -> int:
        """How many more may start there."""
        return limit - len(self._starting.get(machine, ()))


def limits_of(machines: Sequence[str], num_cores: Mapping[str, float]) -> dict[str, int]:
    """How many processes may start at a time on each machine.

    Args:
        machines: their addresses.
        num_cores: of those where that is known; others are taken to have as many as this one.
    """
    here = os.cpu_count() or 1
    cores = {machine: max(here, num_cores.get(machine, 0)) for machine in machines}
    return {machine: max(MIN_AT_ONCE, int(_OF_A_CORE * each)) for machine, each in cores.items()}


def in_turn(
    machines: Sequence[str], limits: Mapping[str, int], turns: StartTurns
) -> Iterator[int | Promise[None]]:
    """The places of processes in the order in which they may start; a promise: nothing may until it is done.

    Args:
        machines: on which machine each process is to start; the first of a machine starts first.
        limits: how many may start at a time on each machine.
        turns: the launches that are starting; one that gets a place begins there before the next one.
    """
    left: dict[str, list[int]] = {}
    for place in reversed(range(len(machines))):
        left.setdefault(machines[place], []).append(place)
    while left:
        changed = turns.changed
        free = [machine for machine in left if turns.room(machine, limits[machine]) > 0]
        if not free:
            yield changed
        for machine in free:
            yield left[machine].pop()
            if not left[machine]:
                del left[machine]
