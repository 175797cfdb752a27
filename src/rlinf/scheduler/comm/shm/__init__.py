"""Shared memory: blocks that one process writes once and others read in place."""

from rlinf.scheduler.comm.shm.arena import GRAIN_BYTES, Arena, Block
from rlinf.scheduler.comm.shm.limit import default_limit_bytes
from rlinf.scheduler.comm.shm.loans import ForeignArena, Loan, OpenArenas, open_arena

__all__ = [
    "GRAIN_BYTES",
    "Arena",
    "Block",
    "ForeignArena",
    "Loan",
    "OpenArenas",
    "default_limit_bytes",
    "open_arena",
]
