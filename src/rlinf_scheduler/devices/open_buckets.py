"""Which buckets of other processes are open here, and when one is closed: PURE.

A bucket is opened once, whatever is read from it one after the other, and stays open: each opening is a call of the
driver that maps memory. It is closed when its owner wants to give it up or is gone, but never while somebody here reads
it.
"""

from __future__ import annotations

from typing import NamedTuple


class BucketKey(NamedTuple):
    """Which bucket.

    Attributes:
        owner_id: the process id of the process that fills it.
        block: the number of the block that stands for it in that process's arena,
        generation: and which of those that lie there one after the other.
    """

    owner_id: str
    block: int
    generation: int


class OpenBuckets:
    """The buckets that are open.

    >>> buckets, key = OpenBuckets(), BucketKey("p", 1, 1)
    >>> buckets.opened(key); buckets.begin(key)
    >>> buckets.lose("p"), buckets.end(key)
    ([], True)
    """

    def __init__(self) -> None:
        # How often each is in use.
        self._uses: dict[BucketKey, int] = {}
        self._unwanted: set[BucketKey] = set()

    def __contains__(self, key: BucketKey) -> bool:
        return key in self._uses

    def __len__(self) -> int:
        return len(self._uses)

    def opened(self, key: BucketKey) -> None:
        """A bucket is open now."""
        self._uses[key] = 0

    def begin(self, key: BucketKey) -> None:
        """Somebody reads it."""
        self._uses[key] += 1

    def end(self, key: BucketKey) -> bool:
        """Somebody has done with it; whether it is to be closed now."""
        self._uses[key] -= 1
        return self._closes(key)

    def retire(self, key: BucketKey) -> bool:
        """Its owner gives it up; whether it is to be closed now. Nothing happens if it is not open."""
        if key in self._uses:
            self._unwanted.add(key)
        return self._closes(key)

    def lose(self, owner_id: str) -> list[BucketKey]:
        """A process is gone: those of its buckets that are to be closed now. What is read here stays until then."""
        return [key for key in list(self._uses) if key.owner_id == owner_id and self.retire(key)]

    def _closes(self, key: BucketKey) -> bool:
        if key not in self._unwanted or self._uses[key]:
            return False
        self._unwanted.remove(key)
        del self._uses[key]
        return True
