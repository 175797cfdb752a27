"""Which bucket of a device is filled next, and when there is one more or one less: PURE."""

from __future__ import annotations

import itertools

# What is shared between processes lies in pieces of this size anyway: nothing else of the process's is in them.
GRAIN_BYTES = 2 << 20
# A bucket may be so many times as large as what is put into it: a small object must not take the place of a large one.
MAX_WASTE = 2


def bucket_bytes(size_bytes: int) -> int:
    """How large a bucket for so many bytes is made."""
    return -(-size_bytes // GRAIN_BYTES) * GRAIN_BYTES


class BucketPool:
    """The buckets that a process has on one device.

    A bucket is filled (taken), or idle, or retiring: given up, and gone once no other process has it open.

    Args:
        limit_bytes: how much they take at most.

    >>> pool = BucketPool(limit_bytes=16 << 20)
    >>> pool.take(6 << 20), pool.may_grow(6 << 20, free_bytes=64 << 20), pool.add(6 << 20)
    (None, True, 0)
    >>> pool.give_back(0)
    >>> pool.take(5 << 20), pool.take(5 << 20), pool.may_grow(12 << 20, free_bytes=64 << 20)
    (0, None, False)
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._sizes: dict[int, int] = {}
        self._idle: set[int] = set()
        self._retiring: set[int] = set()
        self._next_number = itertools.count().__next__

    @property
    def size_bytes(self) -> int:
        """What all of them take, retiring ones too."""
        return sum(self._sizes.values())

    @property
    def num_taken(self) -> int:
        """How many are filled."""
        return len(self._sizes) - len(self._idle) - len(self._retiring)

    def take(self, size_bytes: int) -> int | None:
        """An idle bucket for so many bytes, which is taken now; None if there is none of a fitting size."""
        needed = bucket_bytes(size_bytes)
        fitting = [each for each in self._idle if needed <= self._sizes[each] <= MAX_WASTE * needed]
        number = min(fitting, key=lambda each: (self._sizes[each], each), default=None)
        if number is not None:
            self._idle.remove(number)
        return number

    def may_grow(self, size_bytes: int, free_bytes: int) -> bool:
        """Whether there may be one more: within the limit, and of half at most of what the device has free."""
        needed = bucket_bytes(size_bytes)
        return self.size_bytes + needed <= self.limit_bytes and needed <= free_bytes // 2

    def add(self, size_bytes: int) -> int:
        """There is one more, which is taken: its number."""
        number = self._next_number()
        self._sizes[number] = bucket_bytes(size_bytes)
        return number

    def give_back(self, number: int) -> None:
        """Nobody needs any more what is in a bucket."""
        self._idle.add(number)

    def retire(self, size_bytes: int) -> list[int]:
        """Idle buckets to be given up, large ones first, so that there is room for so many bytes within the limit.

        None if giving up all of them would not be enough.
        """
        missing = self.size_bytes + bucket_bytes(size_bytes) - self.limit_bytes
        missing -= sum(self._sizes[number] for number in self._retiring)
        chosen: list[int] = []
        for number in sorted(self._idle, key=lambda each: (-self._sizes[each], each)):
            if missing <= 0:
                break
            chosen.append(number)
            missing -= self._sizes[number]
        if missing > 0:
            return []
        self._idle.difference_update(chosen)
        self._retiring.update(chosen)
        return chosen

    def gone(self, number: int) -> None:
        """A bucket that was to be given up takes no memory any more."""
        self._retiring.remove(number)
        del self._sizes[number]
