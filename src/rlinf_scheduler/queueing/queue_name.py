"""How a queue is called: by its users, or by its subscription."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Tapped:
    """The name of the queue that a subscription reads; no user can give it to a queue.

    Attributes:
        subscription: its name.
    """

    subscription: str

    def __repr__(self) -> str:
        return f"{self.subscription!r} (a subscription)"


# A string, an int, or a tuple of such names and of None; or what a subscription reads.
QueueName: TypeAlias = str | int | tuple[Any, ...] | Tapped


def as_name(name: Any) -> Any:
    """Return the name of a queue or a group as it was before it travelled: lists were tuples, a dict a `Tapped`."""
    if type(name) is dict:
        return Tapped(**name)
    return tuple(as_name(part) for part in name) if isinstance(name, tuple | list) else name
