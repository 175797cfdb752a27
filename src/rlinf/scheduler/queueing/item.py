"""What a queue holds."""

from __future__ import annotations

from typing import Any

from rlinf.scheduler.queueing.weights import Exact, exact


class Item:
    """One item of a queue.

    Attributes:
        payload: whatever the shell holds for it; never looked at.
        weight: its weight, as an exact number.
        size_bytes: its size, for accounting only.
        priority: items of a higher one come first.
        order: its place among all items that ever entered its queue; kept when it is given back.
    """

    __slots__ = ("order", "payload", "priority", "size_bytes", "weight")

    def __init__(self, payload: Any, weight: float = 0, size_bytes: int = 0, priority: int = 0) -> None:
        self.payload = payload
        self.weight: Exact = exact(weight)
        self.size_bytes = size_bytes
        self.priority = priority
        self.order = -1

    def __repr__(self) -> str:
        return f"Item(order={self.order}, weight={self.weight}, size_bytes={self.size_bytes})"
