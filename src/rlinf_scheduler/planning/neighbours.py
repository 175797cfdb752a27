"""Neighbours that belong together, as lists."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def neighbours(items: Iterable[Item], belong: Callable[[Item, Item], bool]) -> Iterator[list[Item]]:
    """Cut a sequence wherever two neighbours do not belong together.

    Args:
        items: in order.
        belong: whether the second of two neighbours goes into the list of the first.

    >>> list(neighbours([1, 2, 3, 7, 8], lambda before, after: after == before + 1))
    [[1, 2, 3], [7, 8]]
    """
    together: list[Item] = []
    for item in items:
        if together and not belong(together[-1], item):
            yield together
            together = []
        together.append(item)
    if together:
        yield together
