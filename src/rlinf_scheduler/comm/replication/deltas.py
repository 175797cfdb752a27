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
# What is a tenth shorter is used where the user says so; else what is expected to save a quarter of the time.
SHORTER, QUICKER = 0.9, 0.75
DELTA, NO_BASE, TOO_LONG = "delta", "no version before", "too much has changed"


class OpenQuestion(NamedTuple):
    """A reader's question that is not answered."""

    request: Request
    want: Want
    gone: Callable[[], None]


@dataclass(slots=True, eq=False)
class Delta:
    """What has changed in an object since the one before, the `base`.

    Attributes:
        holders: who keeps that, by machine; until its machine has the new one.
        forced: it is used even if it takes longer.
        size_bytes: how large it is; 0 as long as it is not known, and questions wait.
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

    An object of F bytes over a link of r bytes/s takes F / r. Of D bytes that have changed it takes D / r, beside what
    comparing takes here and making it there, which grow with F.
    """

    def __init__(self) -> None:
        # Seconds a byte: of whole objects to a machine, of comparing, and of making one on a machine.
        self._copied: dict[str, float] = {}
        self._compared = 1 / COMPARED_BYTES_PER_S
        self._made: dict[str, float] = {}

    def limit_bytes(self, delta: Delta, size_bytes: int) -> int:
        """Return how much may have changed, before it is compared; 0: not to compare."""
        if delta.forced:
            return int(size_bytes * SHORTER)
        saves = [self._saves(machine) - self._share(machine, self._compared) for machine in delta.holders]
        limit = int(size_bytes * (min(saves, default=0.0) + QUICKER - 1))
        if limit <= 0:
            self._compared /= FORGIVEN
            self._made = {machine: each / FORGIVEN for machine, each in self._made.items()}
        return max(0, limit)

    def pays(self, delta: Delta, machine_id: str, size_bytes: int) -> bool:
        """Return whether a machine has an object earlier of what has changed, which is known."""
        return delta.forced or delta.size_bytes < size_bytes * self._saves(machine_id)

    def compared(self, size_bytes: int, took_s: float) -> None:
        """Note how long two whole objects took."""
        self._compared = (self._compared + took_s / size_bytes) / 2

    def copied(self, machine_id: str, size_bytes: int, took_s: float) -> None:
        """Note how long a whole object took to a machine."""
        _note(self._copied, machine_id, max(took_s, 1e-6) / size_bytes)

    def made(self, delta: Delta, machine_id: str, size_bytes: int, took_s: float) -> None:
        """Note how long it took until a machine had made an object of what has changed."""
        link_s = delta.size_bytes * self._copied.get(machine_id, 0.0)
        _note(self._made, machine_id, max(0.0, took_s - link_s) / size_bytes)

    def _saves(self, machine_id: str) -> float:
        """Return the share of an object of which the way may be saved, so that making it takes as long."""
        return 1 - self._share(machine_id, self._made.get(machine_id, self._compared))

    def _share(self, machine_id: str, s_per_byte: float) -> float:
        """Return which share of an object is copied to a machine meanwhile; none where that is not known."""
        copied = self._copied.get(machine_id)
        return 0.0 if copied is None else s_per_byte / copied


def _note(means: dict[str, float], machine_id: str, new: float) -> None:
    """Note what was measured; what was before counts as much as all that was before that."""
    means[machine_id] = (means.get(machine_id, new) + new) / 2


@dataclass(slots=True, eq=False)
class MachineCopies:
    """How the objects of one name have come to other machines, where deltas were made.

    Attributes:
        counts: how many as `DELTA`, and as a whole for which reason.
        delta_bytes: how large the last delta was.
    """

    counts: Counter[str] = field(default_factory=Counter)
    delta_bytes: int = 0
