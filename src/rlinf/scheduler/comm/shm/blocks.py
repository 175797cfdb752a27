"""Which parts of an arena are free: ranges of bytes, decided without any memory at hand."""

from __future__ import annotations

from bisect import bisect_left


class FreeRanges:
    """The free ranges of the bytes from `begin` to `end`, each as long as it can be.

    A range is taken where it fits first: low addresses are used again and again, so they stay warm, and what was
    never touched stays untouched as long as possible.

    >>> free = FreeRanges(0, 100)
    >>> free.take(30), free.take(30)
    (0, 30)
    >>> free.give(0, 30)
    >>> free.take(20), free.take(20)
    (0, 60)
    >>> free.ranges()
    [(20, 30), (80, 100)]
    """

    __slots__ = ("_begins", "_ends")

    def __init__(self, begin: int, end: int) -> None:
        self._begins = [begin]
        self._ends = [end]

    def take(self, size: int) -> int | None:
        """The beginning of a range of `size` bytes, which is free no longer; None if there is none."""
        for index, begin in enumerate(self._begins):
            if self._ends[index] - begin >= size:
                if self._ends[index] - begin == size:
                    del self._begins[index], self._ends[index]
                else:
                    self._begins[index] = begin + size
                return begin
        return None

    def first_fit(self, size: int) -> int | None:
        """Where `take` would take; nothing changes."""
        return next(
            (begin for begin, end in zip(self._begins, self._ends, strict=True) if end - begin >= size), None
        )

    def give(self, begin: int, size: int) -> None:
        """Make a range free that was taken; it joins its neighbours.

        Raises:
            ValueError: a part of it is free already.
        """
        end = begin + size
        index = bisect_left(self._begins, begin)
        if (index and self._ends[index - 1] > begin) or (
            index < len(self._begins) and self._begins[index] < end
        ):
            message = f"[{begin}, {end}) is free already"
            raise ValueError(message)
        joins_left = index > 0 and self._ends[index - 1] == begin
        joins_right = index < len(self._begins) and self._begins[index] == end
        if joins_left and joins_right:
            self._ends[index - 1] = self._ends[index]
            del self._begins[index], self._ends[index]
        elif joins_left:
            self._ends[index - 1] = end
        elif joins_right:
            self._begins[index] = begin
        else:
            self._begins.insert(index, begin)
            self._ends.insert(index, end)

    def ranges(self) -> list[tuple[int, int]]:
        """All free ranges as (begin, end), ascending."""
        return list(zip(self._begins, self._ends, strict=True))
