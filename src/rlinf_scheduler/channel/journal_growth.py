"""When the journal of a durable channel is to be written whole."""

from __future__ import annotations

# It is written whole when it has grown by so much, and by twice what it was then, or by so many turns.
GROWN_BYTES = 64 << 20
GROWN_TURNS = 100_000


class JournalGrowth:
    """How much a journal has grown since it was last written whole, or that was tried.

    Args:
        num_turns: how many have happened since then.
        size_bytes: what it was then.
    """

    def __init__(self, num_turns: int = 0, size_bytes: int = 0) -> None:
        self._num_turns = num_turns
        self._max_turns = GROWN_TURNS
        self._size_bytes = size_bytes

    def add_turn(self, size_bytes: int) -> bool:
        """Count a turn, after which the journal has this size; whether it is to be written whole now."""
        self._num_turns += 1
        grown_bytes = size_bytes - self._size_bytes
        return grown_bytes > max(GROWN_BYTES, 2 * self._size_bytes) or self._num_turns > self._max_turns

    def begin(self) -> None:
        """It is being written whole: what comes now has happened since then."""
        self._num_turns = 0

    def succeed(self, size_bytes: int) -> None:
        """It was written whole, and was of this size then."""
        self._max_turns, self._size_bytes = GROWN_TURNS, size_bytes

    def fail(self, size_bytes: int) -> None:
        """It was not: it is to grow from this size by as much once more, or by twice as many turns."""
        self._max_turns, self._size_bytes = 2 * self._max_turns, size_bytes
