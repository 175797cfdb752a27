"""Ending a node that was started here: its own processes and what these have started, and nobody else's."""

from __future__ import annotations

import signal
from collections.abc import Collection

from rlinf_scheduler.errors import ClusterTimeout
from rlinf_scheduler.proc import (
    KILLED_S,
    ProcessId,
    held,
    living,
    marked,
    send,
    wait_for_ends,
    with_descendants,
)
from rlinf_scheduler.ray_backend.authentication import host_and_port
from rlinf_scheduler.ray_backend.gcs_question import GcsAnswer, ask_gcs
from rlinf_scheduler.ray_backend.node.records import MARK_VARIABLE, NodeRecord, forget_record

GRACE_S = 10.0
# The head's own service keeps nothing on a disk, and while other nodes ask it something it does not end when asked.
_SERVICE, _SERVICE_GRACE_S = "gcs_server", 1.0
_ASKED_S = 1.0


def processes_of(record: NodeRecord) -> list[ProcessId]:
    """What lives of a node: its first processes, what carries its mark, and what all of these have started."""
    marks = marked(MARK_VARIABLE, record.mark)
    return with_descendants({*record.processes, *marks}, living())


def stop_node(record: NodeRecord, grace_s: float = GRACE_S) -> int:
    """End a node; how many processes it had.

    Its own processes are asked first, and take their workers along; after `grace_s` seconds what is left is killed.
    A node whose head is gone is killed at once: it would look for the head, to say that it leaves.

    Raises:
        ClusterTimeout: some cannot be killed; the text names them. The node is remembered.
    """
    if ask_gcs(*host_and_port(record.address), None, _ASKED_S) is GcsAnswer.NOBODY:
        grace_s = 0.0
    ended: set[ProcessId] = set()
    # What is started while the others end is found the second time.
    for patience_s in (grace_s, 0.0):
        found = processes_of(record)
        ended.update(found)
        _end(found, record, patience_s)
    forget_record(record)
    return len(ended)


def _end(found: Collection[ProcessId], record: NodeRecord, grace_s: float) -> None:
    with held(found) as descriptors:
        if grace_s > 0:
            service = {d for process, d in descriptors.items() if process.name == _SERVICE}
            own = {d for process, d in descriptors.items() if process in record.processes}
            send(own - service, signal.SIGTERM)
            wait_for_ends(set(descriptors.values()) - service, grace_s)
            send(service, signal.SIGTERM)
            wait_for_ends(service, min(grace_s, _SERVICE_GRACE_S))
        send(descriptors.values(), signal.SIGKILL)
        stuck = wait_for_ends(descriptors.values(), KILLED_S)
        if stuck:
            names = ", ".join(f"{p.pid} ({p.name})" for p, d in descriptors.items() if d in stuck)
            raise ClusterTimeout(f"processes of {record} do not end: {names}")
