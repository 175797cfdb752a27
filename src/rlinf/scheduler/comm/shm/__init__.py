"""Shared memory: blocks that one process writes once and others read in place."""

from rlinf.scheduler.comm.shm.arena import Arena
from rlinf.scheduler.comm.shm.blocks import Block
from rlinf.scheduler.comm.shm.foreign import ForeignArena, open_arena
from rlinf.scheduler.comm.shm.holders import HolderTable
from rlinf.scheduler.comm.shm.home import Home
from rlinf.scheduler.comm.shm.lease import Lease
from rlinf.scheduler.comm.shm.ledger import Ledger
from rlinf.scheduler.comm.shm.limit import default_limit_bytes
from rlinf.scheduler.comm.shm.readers import OpenArenas

__all__ = [
    "Arena",
    "Block",
    "ForeignArena",
    "HolderTable",
    "Home",
    "Lease",
    "Ledger",
    "OpenArenas",
    "default_limit_bytes",
    "open_arena",
]
