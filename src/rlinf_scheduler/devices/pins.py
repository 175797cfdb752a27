"""Which blocks of shared memory are pinned here, so that a device reads them by itself, and when one is unpinned: PURE.

A block is pinned when the first object in it is loaded, and stays so for those that come to lie there later: to pin
it is a call of the driver that takes longer than to copy it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class PinKey(NamedTuple):
    """Which block.

    Attributes:
        owner_id: the process id of the process whose block it is.
        block: its number in that process's arena.
    """

    owner_id: str
    block: int


class Pins:
    """The blocks that are pinned.

    Args:
        limit_bytes: how much they are at most.

    >>> pins, one, other = Pins(limit_bytes=10), PinKey("p", 1), PinKey("p", 2)
    >>> pins.make_room(one, 6); pins.add(one, 6); pins.begin(one)
    []
    >>> pins.make_room(other, 6) is None, pins.end(one), pins.make_room(other, 6)
    (True, None, [PinKey(owner_id='p', block=1)])
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        # In the order in which they were last in use, and how often each is.
        self._sizes: dict[PinKey, int] = {}
        self._uses: dict[PinKey, int] = {}

    @property
    def size_bytes(self) -> int:
        """How much all of them are."""
        return sum(self._sizes.values())

    def has(self, owner_id: str) -> bool:
        """Whether some block of a process is pinned."""
        return any(key.owner_id == owner_id for key in self._sizes)

    def __len__(self) -> int:
        return len(self._sizes)

    def covers(self, key: PinKey, size_bytes: int) -> bool:
        """Whether so many bytes of a block, from its beginning on, are pinned."""
        return size_bytes <= self._sizes.get(key, -1)

    def make_room(self, key: PinKey, size_bytes: int) -> list[PinKey] | None:
        """What is to be unpinned before so many bytes of a block are pinned; None if there is no room for them.

        What was pinned of the block itself is: a device reads nothing that is pinned in two pieces.
        """
        if self._uses.get(key) or size_bytes > self.limit_bytes:
            return None
        chosen = [key] if key in self._sizes else []
        excess = self.size_bytes + size_bytes - self.limit_bytes - self._sizes.get(key, 0)
        for other in self.idle():
            if excess <= 0:
                break
            if other != key:
                chosen.append(other)
                excess -= self._sizes[other]
        return chosen if excess <= 0 else None

    def add(self, key: PinKey, size_bytes: int) -> None:
        """So many bytes of a block are pinned."""
        self._sizes[key] = size_bytes

    def begin(self, key: PinKey) -> None:
        """A device may read a block from now on."""
        self._uses[key] = self._uses.get(key, 0) + 1
        self._sizes[key] = self._sizes.pop(key)

    def end(self, key: PinKey) -> None:
        """Undo `begin`: no device will."""
        self._uses[key] -= 1

    def idle(self, which: Callable[[PinKey], bool] = lambda _key: True) -> list[PinKey]:
        """Those of some blocks that no device may read now, the longest unused first."""
        return [key for key in self._sizes if not self._uses.get(key) and which(key)]

    def remove(self, key: PinKey) -> None:
        """A block is not pinned any more."""
        del self._sizes[key]
        self._uses.pop(key, None)
