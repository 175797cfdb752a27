"""Moves objects between processes: sockets, codec, names, send and recv. Knows nothing of Ray."""

from rlinf.scheduler.comm.codec import Encoded, decode, encode
from rlinf.scheduler.comm.directory import DirectoryClient, DirectoryServer, Entry
from rlinf.scheduler.comm.endpoint import Endpoint, local_machine_id
from rlinf.scheduler.comm.forking import on_fork_in_child
from rlinf.scheduler.comm.framing import Buffer
from rlinf.scheduler.comm.handle import AsyncHandle
from rlinf.scheduler.comm.messenger import Messenger
from rlinf.scheduler.comm.peer import Reply, Request, RequestFuture
from rlinf.scheduler.comm.secret import ClusterSecret
from rlinf.scheduler.comm.shm.parcels import WAIT_S

__all__ = [
    "WAIT_S",
    "AsyncHandle",
    "Buffer",
    "ClusterSecret",
    "DirectoryClient",
    "DirectoryServer",
    "Encoded",
    "Endpoint",
    "Entry",
    "Messenger",
    "Reply",
    "Request",
    "RequestFuture",
    "decode",
    "encode",
    "local_machine_id",
    "on_fork_in_child",
]
