"""Shared memory: blocks that one process writes once and others read in place."""

from rlinf.scheduler.comm.shm.arena import Arena
from rlinf.scheduler.comm.shm.blocks import Block
from rlinf.scheduler.comm.shm.foreign import ForeignArena, open_arena
from rlinf.scheduler.comm.shm.holders import HolderTable
from rlinf.scheduler.comm.shm.io_thread import IoThread
from rlinf.scheduler.comm.shm.lease import BlockLease
from rlinf.scheduler.comm.shm.ledger import Ledger
from rlinf.scheduler.comm.shm.limit import default_limit_bytes
from rlinf.scheduler.comm.shm.readers import OpenArenas

__all__ = [
    "Arena",
    "Block",
    "BlockLease",
    "ForeignArena",
    "HolderTable",
    "IoThread",
    "Ledger",
    "OpenArenas",
    "default_limit_bytes",
    "open_arena",
]
