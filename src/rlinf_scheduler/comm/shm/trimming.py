"""Decides when an arena's free blocks go back to the system: when nobody uses them, or somebody else needs them."""

from __future__ import annotations

from rlinf_scheduler.comm.shm.arena import Arena
from rlinf_scheduler.comm.shm.io_thread import IoThread

# Pages of free blocks go back when so long nothing was allocated; a slice in each turn of the I/O thread.
TRIM_AFTER_S = 30.0
# As long as there are any, one number in memory is looked at so often: whether another process was refused some.
LOOK_AFTER_S = 0.25


class Trimmer:
    """Gives up what an arena merely keeps warm. On the I/O thread.

    Attributes:
        on_duty: it looks by itself until the arena is empty.
    """

    def __init__(self, io_thread: IoThread, arena: Arena) -> None:
        self.on_duty = False
        self._io_thread = io_thread
        self._arena = arena
        self._generation = 0
        self._used_at = 0.0
        self._gives_up = False

    def begin(self) -> None:
        """Something was allocated."""
        if not self.on_duty:
            self.on_duty = True
            self._used_at = self._io_thread.now()
            self._io_thread.call_later(LOOK_AFTER_S, self._look)

    def _look(self) -> None:
        arena, now = self._arena, self._io_thread.now()
        if arena.generation != self._generation:
            self._generation, self._used_at = arena.generation, now
        idle = now - self._used_at >= TRIM_AFTER_S
        self._gives_up = arena.is_short() or idle or self._gives_up
        if self._gives_up:
            self._gives_up = arena.trim()
            if idle and not self._gives_up and arena.unused() and not arena.keeps_pinned:
                self.on_duty = False
                return
        # Others may still have blocks, which nobody says when they are released.
        self._io_thread.call_later(0.0 if self._gives_up else LOOK_AFTER_S, self._look)
