"""Moves objects between processes: sockets, codec, names, send and recv. Knows nothing of Ray."""

from rlinf_scheduler.comm.codec import Encoded, decode, encode
from rlinf_scheduler.comm.directory import DirectoryClient, DirectoryServer, Entry
from rlinf_scheduler.comm.endpoint import Endpoint, local_machine_id
from rlinf_scheduler.comm.forking import on_fork_in_child
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.handle import AsyncHandle
from rlinf_scheduler.comm.messenger import Messenger
from rlinf_scheduler.comm.peer import Reply, Request
from rlinf_scheduler.comm.requests import RequestFuture
from rlinf_scheduler.comm.secret import ClusterSecret
from rlinf_scheduler.comm.shm.payloads import WAIT_S

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
