"""The state machines under test; a test puts broken ones in their places to see that they are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rlinf.scheduler.comm.replication.publication import Publication
from rlinf.scheduler.comm.transport.session import Session
from rlinf.scheduler.queueing import ChannelState, DirectOperations
from rlinf.scheduler.queueing.client import ClientState


def _bounded_in_bytes(max_bytes: int) -> ChannelState:
    return ChannelState(max_bytes=max_bytes)


def _replicated(machine_id: str) -> Publication:
    return Publication(machine_id, replicated=True)


@dataclass(frozen=True, slots=True)
class Machines:
    """What makes each machine.

    Attributes:
        server: a channel's server, from its `maxsize`.
        direct: what the server knows of one client's shortcuts.
        client: a process's side of a channel, from its credit in bytes.
        receiver: the queues of a mailbox, from their bound in bytes.
        publication: who gets an object from where, from the name of its machine.
        session: half of a session, from the own name, the other's, an id, and the time in seconds.
    """

    server: Callable[[int], ChannelState] = ChannelState
    direct: Callable[[], DirectOperations[Any, Any]] = DirectOperations
    client: Callable[[int], ClientState] = ClientState
    receiver: Callable[[int], ChannelState] = _bounded_in_bytes
    publication: Callable[[str], Publication] = _replicated
    session: Callable[[str, str, int, float], Session[Any]] = Session
