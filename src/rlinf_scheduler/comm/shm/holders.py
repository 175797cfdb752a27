"""Who holds which block: a table in shared memory, of which each process writes one row.

A process that reads blocks has a *slot*: a row of one byte for each block, which it alone writes. To hold a block it
writes 1 and then compares the block's generation with the one that it was told: the owner raises the generation before
it uses a block for something else and then looks at the rows, so of the two one always sees the other. To release it,
it writes 0 and then marks the block's group as dirty. The owner looks at dirty groups only, whatever the number of
blocks.

Who lets a device read a block by itself has it *pinned*, whether it holds it or not: a device goes on with the pages
that the block had then, so as long as it is pinned its owner fills it anew, but gives its pages back to nobody. Whoever
pins a block holds it meanwhile.

The table knows nothing of where the bytes of the blocks lie: in this arena, or on a device.

    pids         u32 of each slot: which process has it; 0 if none ever had, or it gave the slot back
    pinning      u8 of each slot: 1 once its process has pinned something
    dirty        u8 of each group of GROUP blocks: something was released
    marks        u8 of each block: 1 once somebody has taken what lies there for himself
    generations  u64 of each block
    held         u8 of each block, a row for each slot
    pinned       u8 of each block, a row for each slot
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rlinf_scheduler.comm.framing import Bytes
from rlinf_scheduler.comm.shm import kernel

MAX_SLOTS = 256
GROUP = 256
_PAGE = 4096


def _parts(num_blocks: int) -> list[int]:
    """Where the table's parts begin, in the order from above, and where it ends; each at a page, each row too."""
    row = _row_bytes(num_blocks)
    sizes = [5 * MAX_SLOTS, row // GROUP, row, 8 * row, MAX_SLOTS * row, MAX_SLOTS * row]
    places = [0]
    for size in sizes:
        places.append(places[-1] - (-size // _PAGE) * _PAGE)
    return places


def _row_bytes(num_blocks: int) -> int:
    return -(-num_blocks // _PAGE) * _PAGE


def table_bytes(num_blocks: int) -> int:
    """How long the table of so many blocks is; what was never written of it costs nothing."""
    return _parts(num_blocks)[-1]


class HolderTable:
    """The table, for its owner and for those who hold.

    Args:
        memory: of `table_bytes(num_blocks)`, zeros at first; shared by all.
        num_blocks: how many blocks there are.

    Two slots hold a block; the owner gets it back when both have released it:

    >>> table = HolderTable(np.zeros(table_bytes(1000), np.uint8), 1000)
    >>> table.pids[:2] = 11, 12
    >>> generation = table.renew(300)
    >>> table.hold(0, 300, generation), table.hold(1, 300, generation), table.hold(1, 300, generation - 1)
    (True, True, False)
    """

    def __init__(self, memory: Bytes, num_blocks: int) -> None:
        places = _parts(num_blocks)
        self.row_bytes = row = _row_bytes(num_blocks)
        self.pids: npt.NDArray[np.uint32] = memory[: 4 * MAX_SLOTS].view(np.uint32)
        self.pinning: Bytes = memory[4 * MAX_SLOTS : 5 * MAX_SLOTS]
        self.dirty: Bytes = memory[places[1] : places[1] + row // GROUP]
        self._marks: memoryview[Any] = memory[places[2] : places[2] + row].data
        generations = memory[places[3] : places[3] + 8 * row].view(np.uint64)
        self._held: Bytes = memory[places[4] : places[4] + MAX_SLOTS * row].reshape(MAX_SLOTS, row)
        # Single items are read and written five times faster through these.
        self._cells: memoryview[Any] = self._held.reshape(-1).data
        self._pinned: memoryview[Any] = memory[places[5] : places[5] + MAX_SLOTS * row].data
        self._generations: memoryview[Any] = generations.data
        self._dirty: memoryview[Any] = self.dirty.data
        self._pids: memoryview[Any] = self.pids.data.cast("B")
        self._known_slots: tuple[bytes, list[int]] = (b"", [])
        self._rows_at = places[4:6]

    def rows_at(self, slot: int) -> list[int]:
        """Where a slot's rows begin, in bytes from the beginning of the table."""
        return [place + slot * self.row_bytes for place in self._rows_at]

    # -- who holds -------------------------------------------------------------------------------

    def hold(self, slot: int, index: int, generation: int) -> bool:
        """Hold a block; False if it is not of that generation any more, and then it is not held.

        Somebody who holds the block vouches for it meanwhile, or it may be gone.
        """
        self._cells[slot * self.row_bytes + index] = 1
        kernel.fence()
        if self._generations[index] == generation:
            return True
        self.release(slot, index)
        return False

    def release(self, slot: int, index: int) -> None:
        """Undo `hold`."""
        self._cells[slot * self.row_bytes + index] = 0
        self._dirty[index // GROUP] = 1

    def pin(self, slot: int, index: int) -> None:
        """Let a block keep its pages, from now on until `unpin` or the end of the process; the slot holds it now."""
        self.pinning[slot] = 1
        self._pinned[slot * self.row_bytes + index] = 1
        kernel.fence()

    def unpin(self, slot: int, index: int) -> None:
        """Undo `pin`."""
        self._pinned[slot * self.row_bytes + index] = 0

    def mark(self, index: int) -> memoryview[Any]:
        """One byte of a block that is held: 0 in each generation, until a user of the block writes 1."""
        return self._marks[index : index + 1]

    # -- the owner -------------------------------------------------------------------------------

    def slots(self) -> list[int]:
        """The slots that have, or had, a process."""
        pids = self._pids.tobytes()
        known, slots = self._known_slots
        if pids != known:
            slots = np.flatnonzero(np.frombuffer(pids, np.uint32)).tolist()
            self._known_slots = pids, slots
        return slots

    def is_held(self, index: int) -> bool:
        """Whether any slot holds a block."""
        cells, row = self._cells, self.row_bytes
        # A loop is five times faster than numpy for a few slots, and level for a hundred.
        return any(cells[slot * row + index] for slot in self.slots())

    def is_pinned(self, index: int) -> bool:
        """Whether any slot has pinned a block, which nobody holds."""
        # Reading a row that was never written would give it pages.
        cells, row, pinning = self._pinned, self.row_bytes, self.pinning
        return any(pinning[slot] and cells[slot * row + index] for slot in self.slots())

    def holders(self, index: int) -> list[int]:
        """The ids of the processes that hold a block."""
        held = [slot for slot in self.slots() if self._cells[slot * self.row_bytes + index]]
        return [int(self.pids[slot]) for slot in held]

    def renew(self, index: int) -> int | None:
        """Begin the next generation of a block: which one it is; None if somebody holds the block after all."""
        self._generations[index] += 1
        kernel.fence()
        if self.is_held(index):
            return None
        self._marks[index] = 0
        return int(self._generations[index])

    def take_dirty(self) -> list[int]:
        """The groups in which something was released since this was asked last."""
        dirty = self._dirty.tobytes()
        groups: list[int] = []
        group = dirty.find(1)
        while group >= 0:
            groups.append(group)
            self._dirty[group] = 0
            group = dirty.find(1, group + 1)
        if groups:
            kernel.fence()
        return groups

    def unheld(self, group: int) -> list[bool]:
        """For each block of a group, whether nobody holds it."""
        begin = group * GROUP
        # Reading a row that was never written would give it pages: only those of slots.
        held = np.asarray(self._held[self.slots(), begin : begin + GROUP].any(axis=0))
        return [not each for each in held.tolist()]
