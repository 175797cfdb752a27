"""What the job's home tells of workers below ranks: that they joined, left or died."""

from __future__ import annotations

import pickle

from rlinf_scheduler.comm import Messenger
from rlinf_scheduler.comm.directory import PARENT, PID, Entry
from rlinf_scheduler.comm.transport.peer_session import Loss
from rlinf_scheduler.events import ChildJoined, ChildLeft, ChildLost
from rlinf_scheduler.session.bus import EventBus

# What ends with its rank is lost a little before it, or after.
_RANK_ENDS_WITHIN_S = 1.0


class ChildEvents:
    """Tells of each worker below a rank. On the I/O thread.

    Args:
        bus: hears of them.
    """

    def __init__(self, messenger: Messenger, bus: EventBus) -> None:
        self._messenger = messenger
        self._bus = bus
        # The names, and the processes of the workers above, by process.
        self._children: dict[str, tuple[str, str]] = {}
        messenger.on_peer_lost(self._on_peer_lost)

    def joined(self, entry: Entry) -> None:
        """Tell of one that the directory has entered."""
        self._children[entry.endpoint.process_id] = entry.name, entry.info[PARENT]
        placement = pickle.loads(entry.info["placement"])
        self._bus.emit(ChildJoined(entry.name, entry.info[PID], placement.node_rank))

    def _on_peer_lost(self, process_id: str) -> None:
        name, parent = self._children.pop(process_id, ("", ""))
        if name:
            self._messenger.call_later(_RANK_ENDS_WITHIN_S, lambda: self._tell(process_id, name, parent))

    def _tell(self, process_id: str, name: str, parent: str) -> None:
        lost = self._messenger.peers.lost
        if parent not in lost:
            has_left = process_id in lost and lost[process_id].loss is Loss.LEFT
            why = self._messenger.peers.why_lost(process_id)
            self._bus.emit(ChildLeft(name) if has_left else ChildLost(name, why))
