"""What `rlinf node start` started on this machine, kept in this user's private directory until it is stopped."""

from __future__ import annotations

import contextlib
import os

import msgspec

from rlinf_scheduler.proc import ProcessId, living, variable_of
from rlinf_scheduler.ray_backend.node.folders import own_directory

# Every process of a node is started with it, and with the node's mark as its value.
MARK_VARIABLE = "RLINF_NODE_MARK"
_FOLDER = "nodes"
# Each node has one of the second, and a head one of the first; no program of a user's is called so.
_NODE_PROGRAMS = ("gcs_server", "raylet")


class NodeRecord(msgspec.Struct, frozen=True):
    """A node of a Ray, as it was started here.

    Attributes:
        mark: what its processes are told by.
        address: of that Ray, HOST:PORT.
        ip: of the node.
        is_head: whether it is that Ray's first one.
        node_rank: which node it is to be; None: whichever is free.
        authentication: "token" or "disabled".
        folder: where Ray keeps its sockets and its log.
        processes: those that ran when it had been started.
    """

    mark: str
    address: str
    ip: str
    is_head: bool
    node_rank: int | None
    authentication: str
    folder: str
    processes: tuple[ProcessId, ...]

    def __str__(self) -> str:
        rank = "" if self.node_rank is None else f"{self.node_rank} "
        return f"node {rank}({self.ip}) of the Ray at {self.address}"


def keep_record(record: NodeRecord) -> None:
    """Note a node that was started."""
    folder = own_directory() / _FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / record.mark
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(record))


def forget_record(record: NodeRecord) -> None:
    """The node is stopped."""
    (own_directory() / _FOLDER / record.mark).unlink(missing_ok=True)


def folders_elsewhere() -> set[str]:
    """The folders for temporary files of nodes that run here, were started with another one, and are not known here."""
    known = {record.mark for record in read_records()}
    return {
        variable_of(process, "TMPDIR") or "/tmp"  # noqa: S108 - the machine's own, named to the user
        for process in living()
        if process.name in _NODE_PROGRAMS and variable_of(process, MARK_VARIABLE) not in (None, *known)
    }


def read_records() -> list[NodeRecord]:
    """The nodes that were started here and not stopped, the oldest first; some may have ended by themselves."""
    folder = own_directory() / _FOLDER
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            found.append((path.stat().st_mtime_ns, msgspec.json.decode(path.read_bytes(), type=NodeRecord)))
    return [record for _, record in sorted(found, key=lambda entry: entry[0])]
