"""Which processes of a job are dead, as its home decides: the first word counts. Pure."""

from __future__ import annotations

from collections import OrderedDict

import msgspec

# More than the ranks of a job, all of which may die at a time, and more than once.
MAX_DEATHS = 1 << 16


class Death(msgspec.Struct, frozen=True, array_like=True):
    """A process is dead, whatever it may still do.

    Attributes:
        process_id: which.
        name: how it was called, e.g. "rollout:3"; "" where that was not known.
        cause: why, or how that showed, and when.
        has_ended: it is known to have ended; its starter may know more about why.
    """

    process_id: str
    name: str
    cause: str
    has_ended: bool = False


class DeathRegister:
    """The dead of a job.

    Args:
        home: the process that keeps it; that one is not declared dead by anybody.

    >>> register = DeathRegister("driver")
    >>> register.declare(Death("a", "rollout:0", "killed"), by="b")
    True
    >>> register.declare(Death("b", "rollout:1", "unreachable"), by="a")  # who is dead says nothing
    False
    """

    def __init__(self, home: str) -> None:
        self._home = home
        self._dead: OrderedDict[str, Death] = OrderedDict()

    def declare(self, death: Death, by: str) -> bool:
        """Somebody says that a process is dead; whether it is from now on."""
        if death.process_id == self._home or death.process_id in self._dead or by in self._dead:
            return False
        self._dead[death.process_id] = death
        if len(self._dead) > MAX_DEATHS:
            self._dead.popitem(last=False)
        return True
