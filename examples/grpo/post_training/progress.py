"""Which prompts were learned from, exactly: what a training that goes on has to know."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count


@dataclass(slots=True)
class Progress:
    """How far a training is. Steps take groups as they are completed, so prompts are not learned from quite in order.

    Args:
        num_steps: how many steps were made; also the weights' version.
        first_left: every prompt before it was learned from.
        ahead: prompts behind it that were, too.

    >>> progress = Progress()
    >>> progress.add([0, 2, 3])
    >>> progress
    Progress(num_steps=1, first_left=1, ahead={2, 3})
    """

    num_steps: int = 0
    first_left: int = 0
    ahead: set[int] = field(default_factory=set)

    def add(self, prompts: Iterable[int]) -> None:
        """A step has learned from these.

        Raises:
            ValueError: from one of them for the second time.
        """
        for prompt in prompts:
            if prompt < self.first_left or prompt in self.ahead:
                message = f"prompt {prompt} was learned from before"
                raise ValueError(message)
            self.ahead.add(prompt)
        while self.first_left in self.ahead:
            self.ahead.remove(self.first_left)
            self.first_left += 1
        self.num_steps += 1

    def copy(self) -> Progress:
        """The present state."""
        return Progress(self.num_steps, self.first_left, set(self.ahead))

    def prompts_left(self) -> Iterable[int]:
        """All prompts that were not learned from by now, in order, without end."""
        done = frozenset(self.ahead)
        return (prompt for prompt in count(self.first_left) if prompt not in done)
