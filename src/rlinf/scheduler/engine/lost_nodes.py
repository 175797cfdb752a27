"""Which nodes are gone, as Ray says or as their raylets show: Ray itself takes ten seconds and more to notice."""

from __future__ import annotations

import contextlib
import errno
import random
import select
import socket
from collections.abc import Collection, Mapping
from typing import Any

import ray

# So many raylets are looked at each time, and this long.
_MAX_LOOKS = 64
_LOOK_MS = 500
# Its own: what users draw after a seed does not depend on it.
_dice = random.Random()  # noqa: S311 - not for secrets


def why_lost(node_ids: Collection[str]) -> dict[str, str]:
    """Why some of these nodes are gone, by Ray's ids. It may take a moment; raises what Ray does."""
    records = {record["NodeID"]: record for record in ray.nodes()}
    gone = {node_id: _cause(records.get(node_id)) for node_id in node_ids if not _is_alive(records, node_id)}
    others = [node_id for node_id in node_ids if node_id not in gone]
    for node_id in _silent(
        {each: records[each] for each in _dice.sample(others, min(len(others), _MAX_LOOKS))}
    ):
        gone[node_id] = "its raylet ended"
    return gone


def num_lost_nodes() -> int:
    """How many nodes Ray has had that are gone."""
    return sum(not record["Alive"] for record in ray.nodes())


def _is_alive(records: Mapping[str, Mapping[str, Any]], node_id: str) -> bool:
    return node_id in records and bool(records[node_id]["Alive"])


def _cause(record: Mapping[str, Any] | None) -> str:
    if record is None:
        return "Ray does not know it any more"
    said = str(record.get("DeathReasonMessage") or "").strip().splitlines()
    if not said or "health check" in said[0]:
        return "its raylet stopped answering"
    return f"its raylet ended ({said[0]})"


def _silent(records: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Those of the nodes whose raylets refuse connections; one that does not answer may be slow to."""
    refused = []
    with contextlib.ExitStack() as stack:
        waiting, poll = {}, select.poll()
        for node_id, record in records.items():
            address = record["NodeManagerAddress"], record["NodeManagerPort"]
            family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
            connection = stack.enter_context(socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
            code = connection.connect_ex(address)
            if code == errno.ECONNREFUSED:
                refused.append(node_id)
            elif code == errno.EINPROGRESS:
                waiting[connection.fileno()] = node_id, connection
                poll.register(connection, select.POLLOUT)
        while waiting and (ready := poll.poll(_LOOK_MS)):
            for descriptor, _ in ready:
                node_id, connection = waiting.pop(descriptor)
                poll.unregister(connection)
                if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED:
                    refused.append(node_id)
    return refused
