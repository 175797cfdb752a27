"""What became of a value that somebody waits for, as its waiter and its owner both see it."""

from __future__ import annotations

from typing import Any

# What is marked there is seen by nobody.
NOWHERE = bytearray(1)


class ConsumedFlag:
    """What became of a value: known to both sides, also when the promise itself is gone.

    The waiter says that it has the value by stores, right before its `return`: CPython lets no signal handler run
    in between. Until then the value may still go back to where it came from.

    Attributes:
        taken: the waiter has it.
        mark: one byte that says the same to other processes, where the value lies in shared memory.
        whole: what became of the several values of which this is one, if they are taken together; else None.
    """

    __slots__ = ("mark", "taken", "whole")

    def __init__(self) -> None:
        self.taken = False
        self.mark: Any = NOWHERE
        self.whole: ConsumedFlag | None = None

    @property
    def is_taken(self) -> bool:
        """Whether the waiter has it, alone or with others."""
        return self.taken or (self.whole is not None and self.whole.is_taken)
