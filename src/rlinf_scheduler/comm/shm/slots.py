"""Slots of an arena's holder table: each is a process's as long as that has a lock on it, and no longer."""

from __future__ import annotations

import errno
import os

import numpy as np

from rlinf_scheduler.comm.shm import kernel
from rlinf_scheduler.comm.shm.header import HEADER_BYTES
from rlinf_scheduler.comm.shm.holders import HolderTable


def claim_slot(fd: int, table: HolderTable) -> int:
    """Take a slot for this process; it lasts as long as the open file description of `fd`.

    Raises:
        OSError: all have processes.
    """
    pids = table.pids
    for slot in np.flatnonzero(pids == 0).tolist():
        if kernel.try_lock(fd, slot):
            if pids[slot] == 0:
                pids[slot] = os.getpid()
                return int(slot)
            kernel.unlock(fd, slot)
    for slot in table.slots():
        if kernel.try_lock(fd, slot):
            _clear(fd, table, slot)
            pids[slot] = os.getpid()
            return int(slot)
    raise OSError(errno.EUSERS, "as many processes read it as can")


def clear_dead_slots(fd: int, table: HolderTable) -> bool:
    """Release what ended processes held; whether there was one. By the arena's owner, who has `fd`."""
    found = False
    for slot in table.slots():
        if kernel.try_lock(fd, slot):
            _clear(fd, table, slot)
            table.pids[slot] = 0
            kernel.unlock(fd, slot)
            found = True
    return found


def _clear(fd: int, table: HolderTable, slot: int) -> None:
    for row_at in table.rows_at(slot):
        kernel.punch(fd, HEADER_BYTES + row_at, table.row_bytes)
    table.pinning[slot] = 0
    table.dirty[:] = 1
