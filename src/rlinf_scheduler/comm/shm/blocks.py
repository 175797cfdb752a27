"""The blocks of an arena, from its owner's side: which are free, in use here, or held by readers.

Everything here but `free` and `dropped` belongs to the I/O thread. Other threads take a block out of `free`, in one
step, and drop it when they have done with it: the interpreter itself notes that in `dropped`, so nothing is lost
wherever a thread is interrupted.
"""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rlinf_scheduler.comm.framing import Bytes
from rlinf_scheduler.comm.promise import Wake
from rlinf_scheduler.comm.shm.holders import GROUP, HolderTable
from rlinf_scheduler.comm.shm.kernel import PAGE_BYTES, array_interface
from rlinf_scheduler.comm.shm.layout import Layout

# So many blocks are looked at in one turn of the I/O thread, and so much memory is given back in one.
MAX_BLOCKS_A_TURN = 500
MAX_TRIMMED_BYTES_A_TURN = 32 << 20
# Up to so many blocks are looked at one by one: numpy takes ten microseconds for any number.
_FEW = 16


class Block:
    """A part of an arena that this process writes; it goes back to the arena when nobody refers to it any more.

    Attributes:
        index: its number in the arena.
        generation: which one of those that lie there one after the other.
        room_bytes: how much may be written to it.
    """

    __slots__ = ("__weakref__", "_address", "_region", "_wake", "generation", "index", "room_bytes")

    def __init__(
        self, index: int, generation: int, room_bytes: int, region: Bytes, address: int, wake: Wake
    ) -> None:
        self.index = index
        self.generation = generation
        self.room_bytes = room_bytes
        self._region = region
        self._address = address
        self._wake = wake

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return array_interface(self._address, self.room_bytes)

    @property
    def memory(self) -> Bytes:
        """Where its data goes, uint8 of shape (room_bytes,); it keeps the block."""
        return np.asarray(self)


class BlockRef(weakref.ref[Block]):
    """Stands for a block that is in use here; `dropped` gets it when the block is dropped."""

    __slots__ = ("index",)
    index: int


class BlockStore:
    """Decides which block is taken, and when one is free again.

    Args:
        layout: the places of blocks.
        table: who holds them.
        make_block: a block to write to, of (index, generation, room).
        punch: gives the pages of a block back to the system, of (index, room).
        charge: takes so many bytes more, or gives them back if it is negative; False if they are too many.

    Attributes:
        free: for each size the free blocks; the last is the warmest.
        touched_bytes: what the blocks take that were written since their pages were last given back.
        num_lent: blocks that only readers use.
        pins_in_the_way: pages that were to be given back last are pinned.
        on_free: what is called, once, when the block of a number is free again.
    """

    def __init__(
        self,
        layout: Layout,
        table: HolderTable,
        *,
        make_block: Callable[[int, int, int], Block],
        punch: Callable[[int, int], None],
        charge: Callable[[int], bool],
    ) -> None:
        self._layout = layout
        self._table = table
        self._make_block = make_block
        self._punch = punch
        self._charge = charge
        num_classes = len(layout.block_bytes)
        self.free: list[deque[Block]] = [deque() for _ in range(num_classes)]
        self.touched_bytes = 0
        self._dropped: deque[BlockRef] = deque()
        self._refs: dict[int, BlockRef] = {}
        # Without pages, given back: those that were never used follow.
        self._cold: list[list[int]] = [[] for _ in range(num_classes)]
        self._unused: list[Iterator[int]] = [iter(layout.blocks(number)) for number in range(num_classes)]
        self._rooms: dict[int, int] = {}
        # Not in use here, but held by readers; by the table's groups.
        self._lent: dict[int, set[int]] = {}
        self.num_lent = 0
        self.pins_in_the_way = False
        self.on_free: dict[int, Callable[[], None]] = {}
        self._groups: deque[int] = deque()
        self._made = 0
        self._births: dict[int, int] = {}
        self._next_birth = itertools.count().__next__

    # -- what there is ---------------------------------------------------------------------------

    @property
    def num_free(self) -> int:
        """Blocks that can be taken at once."""
        return sum(map(len, self.free))

    @property
    def num_in_use(self) -> int:
        """Blocks that this process refers to."""
        return len(self._refs) - self.num_free

    @property
    def num_taken(self) -> int:
        """How often a block was taken."""
        return self._made - self.num_free

    def close(self) -> None:
        """Refer to no memory any more; the last call."""
        for free in self.free:
            free.clear()
        self._refs.clear()
        del self._table

    # -- taking ----------------------------------------------------------------------------------

    def take(self, size_bytes: int) -> Block | None:
        """A block for so many bytes, warm if possible; None if there is no room now."""
        size_class = self._layout.size_class(size_bytes)
        room = -(-max(size_bytes, 1) // PAGE_BYTES) * PAGE_BYTES
        return self._take_warm(size_class, room) or self._take_cold(size_class, room)

    def _take_warm(self, size_class: int, room: int) -> Block | None:
        block = _popped(self.free[size_class].pop)
        if block is None or block.room_bytes >= room:
            return block
        more = room - block.room_bytes
        if not self._make_room(more):
            if self._table.is_pinned(block.index):
                self._put_back([block])
            else:
                self._dissolve(block)
            return None
        self.touched_bytes += more
        self._rooms[block.index] = block.room_bytes = room
        return block

    def _take_cold(self, size_class: int, room: int) -> Block | None:
        cold = self._cold[size_class]
        index = cold.pop() if cold else next(self._unused[size_class], None)
        if index is None:
            return None
        if not self._make_room(room):
            cold.append(index)
            return None
        self.touched_bytes += room
        self._rooms[index] = room
        return self._begin(index)

    def _begin(self, index: int) -> Block | None:
        """The block anew; None if a reader who came too late is just looking at it."""
        generation = self._table.renew(index)
        if generation is None:
            self._lend(index)
            return None
        block = self._make_block(index, generation, self._rooms[index])
        ref = self._refs[index] = BlockRef(block, self._dropped.append)
        ref.index = index
        self._births[index] = self._next_birth()
        self._made += 1
        return block

    def _lend(self, index: int) -> None:
        self._lent.setdefault(index // GROUP, set()).add(index)
        self.num_lent += 1

    # -- what comes back -------------------------------------------------------------------------

    def look(self) -> bool:
        """Find the blocks that are free now; True if the next turn has to go on with it."""
        left = MAX_BLOCKS_A_TURN
        while self._dropped and left:
            ref = self._dropped.popleft()
            left -= 1
            # It may have been dissolved.
            if self._refs.get(ref.index) is ref:
                del self._refs[ref.index]
                self._settle(ref.index)
        if self.num_lent:
            self._groups.extend(self._table.take_dirty())
        while self._groups and left > 0:
            left -= 1 + self._look_at(self._groups.popleft())
        return bool(self._dropped or self._groups)

    def _settle(self, index: int) -> None:
        if self._table.is_held(index):
            self._lend(index)
        else:
            self._free(index)

    def _look_at(self, group: int) -> int:
        lent = self._lent.get(group)
        if not lent:
            return 0
        if len(lent) <= _FEW:
            found = [index for index in lent if not self._table.is_held(index)]
        else:
            unheld = self._table.unheld(group)
            found = [index for index in lent if unheld[index - group * GROUP]]
        lent.difference_update(found)
        self.num_lent -= len(found)
        for index in found:
            self._free(index)
        return len(found)

    def _free(self, index: int) -> None:
        block = self._begin(index)
        if block is not None:
            # Before somebody takes it, and says what is to be called then.
            tell = self.on_free.pop(index, None)
            self.free[self._layout.class_of(index)].append(block)
            if tell is not None:
                tell()

    # -- giving pages back -----------------------------------------------------------------------

    def trim(self) -> bool:
        """Give the pages of free blocks back to the system, the longest unused first; True if more are left.

        Those that are pinned stay.
        """
        self._dissolve_until(lambda: False)
        return any(not self._table.is_pinned(block.index) for free in self.free for block in list(free))

    def _make_room(self, size_bytes: int) -> bool:
        """Whether so many bytes more may be used; what free blocks have is given up for it, a turn's worth."""
        return self._charge(size_bytes) or self._dissolve_until(lambda: self._charge(size_bytes))

    def _dissolve_until(self, enough: Callable[[], bool]) -> bool:
        left_bytes, left_blocks = MAX_TRIMMED_BYTES_A_TURN, MAX_BLOCKS_A_TURN
        pinned: list[Block] = []
        is_enough = False
        while left_bytes > 0 and left_blocks and not is_enough:
            block = self._oldest()
            if block is None:
                break
            if self._table.is_pinned(block.index):
                pinned.append(block)
                continue
            left_bytes -= block.room_bytes
            left_blocks -= 1
            self._dissolve(block)
            is_enough = enough()
        self._put_back(pinned)
        self.pins_in_the_way = bool(pinned) and not is_enough
        return is_enough

    def _put_back(self, blocks: list[Block]) -> None:
        """Let those that were free for longest be it again; a device goes on with the pages that they have."""
        for block in reversed(blocks):
            self.free[self._layout.class_of(block.index)].appendleft(block)

    def _oldest(self) -> Block | None:
        """The block that is free for longest, which is not free any more."""
        oldest: deque[Block] | None = None
        birth = self._next_birth()
        for free in filter(None, self.free):
            try:
                this = self._births[free[0].index]
            except IndexError:
                continue
            if this < birth:
                oldest, birth = free, this
        return None if oldest is None else _popped(oldest.popleft)

    def _dissolve(self, block: Block) -> None:
        index, room = block.index, block.room_bytes
        del self._refs[index], self._rooms[index], self._births[index]
        self._made -= 1
        self._punch(index, room)
        self.touched_bytes -= room
        self._charge(-room)
        self._cold[self._layout.class_of(index)].append(index)


def _popped(pop: Callable[[], Block]) -> Block | None:
    # Another thread may take the last one between a question and a step.
    try:
        return pop()
    except IndexError:
        return None
