"""What has changed from one object to the next, for machines that have the one before: the publisher's side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.peer import Request
from rlinf_scheduler.comm.replication.records import Key, Want

# Two objects are compared at so many bytes/s, as long as none have been; later, as quickly as the last ones were.
COMPARED_BYTES_PER_S = 1 << 30
# After what was too slow, it is taken for somewhat quicker each time, so that it is tried again.
FORGIVEN = 1.1
# What saves less than a tenth of an object is not worth its while.
WORTH = 0.9
DELTA, NO_BASE, TOO_LONG = "delta", "no version before", "too much has changed"


class OpenQuestion(NamedTuple):
    """A reader's question that is not answered."""

    request: Request
    want: Want
    gone: Callable[[], None]


@dataclass(slots=True, eq=False)
class Delta:
    """What has changed in an object since the one before.

    Attributes:
        base: the object before.
        holders: who keeps that, by machine; until its machine has the new one.
        forced: it is used even if it takes longer.
        size_bytes: how large it is; 0 as long as it is not known.
        waiting: questions that wait for it.
        given: the processes that make the object of it.
    """

    base: Key
    holders: dict[str, Endpoint]
    forced: bool
    size_bytes: int = 0
    waiting: list[OpenQuestion] = field(default_factory=list)
    given: set[str] = field(default_factory=set)

    def waits(self, want: Want) -> bool:
        """Whether a reader's answer depends on it, and it is not known yet."""
        return not self.size_bytes and not want.refused and want.reader.machine_id in self.holders


def delta_of(key: Key) -> Key:
    """Return as which object what has changed in one is published."""
    return Key(f"{key.name}\0delta", key.number)


class Pays:
    """Decides by what was measured whether a delta is quicker than a whole object.

    An object of F bytes over a link of r bytes/s takes F / r. Of D bytes that have changed it is made in D / r, and as
    long again as comparing has taken, F / c each.
    """

    def __init__(self) -> None:
        self._copied: dict[str, float] = {}  # bytes/s of whole objects, by machine
        self._compared = float(COMPARED_BYTES_PER_S)

    def limit_bytes(self, delta: Delta, size_bytes: int) -> int:
        """Return how much may have changed, before it is compared; 0: not to compare."""
        if delta.forced:
            return int(size_bytes * WORTH)
        slowest = min((self._copied.get(machine, 0.0) for machine in delta.holders), default=0.0)
        limit = size_bytes * (WORTH - 2 * slowest / self._compared)
        if limit <= 0:
            self._compared *= FORGIVEN
        return max(0, int(limit))

    def pays(self, delta: Delta, machine_id: str, size_bytes: int) -> bool:
        """Return whether a machine has an object earlier of what has changed, which is known."""
        there = self._copied.get(machine_id, 0.0)
        return delta.forced or delta.size_bytes < size_bytes * (1 - there / self._compared)

    def compared(self, size_bytes: int, took_s: float) -> None:
        """Note how long two whole objects took."""
        self._compared = size_bytes / max(took_s, 1e-6)

    def copied(self, machine_id: str, size_bytes: int, took_s: float) -> None:
        """Note how long a whole object took to a machine."""
        self._copied[machine_id] = size_bytes / max(took_s, 1e-6)


@dataclass(slots=True, eq=False)
class MachineCopies:
    """How the objects of one name have come to other machines, where deltas were made.

    Attributes:
        counts: how many as `DELTA`, and as a whole for which reason.
        delta_bytes: how large the last delta was.
    """

    counts: Counter[str] = field(default_factory=Counter)
    delta_bytes: int = 0
