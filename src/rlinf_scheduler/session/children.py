"""What the job's home tells of workers below ranks: that they joined, left or died."""

from __future__ import annotations

import pickle
from functools import partial

from rlinf_scheduler.comm import Messenger
from rlinf_scheduler.comm.directory import PARENT, PID, Entry
from rlinf_scheduler.comm.transport.peer_session import Loss
from rlinf_scheduler.events import ChildJoined, ChildLeft, ChildLost
from rlinf_scheduler.session.bus import EventBus

# What ends with its rank is lost a little before it, or after.
_RANK_ENDS_WITHIN_S = 1.0


class ChildEvents:
    """Tells of each worker below a rank. On the I/O thread."""

    def __init__(self, messenger: Messenger, bus: EventBus) -> None:
        self._messenger = messenger
        self._bus = bus
        # The names, and the processes of the workers above, by process: of those that are there, and of those that
        # have ended and are not told of.
        self._children: dict[str, tuple[str, str]] = {}
        self._ended: dict[str, tuple[str, str]] = {}
        messenger.on_peer_lost(self._on_peer_lost)

    def joined(self, entry: Entry) -> None:
        """Tell of one that the directory has entered."""
        self._children[entry.endpoint.process_id] = entry.name, entry.info[PARENT]
        # Behind the end of the one before it, which the directory may have just found.
        self._messenger.submit(partial(self._tell_joined, entry))

    def _tell_joined(self, entry: Entry) -> None:
        for process_id in [each for each, (name, _) in self._ended.items() if name == entry.name]:
            if process_id != entry.endpoint.process_id:
                self._tell_ended(process_id)
        placement = pickle.loads(entry.info["placement"])
        self._bus.emit(ChildJoined(entry.name, entry.info[PID], placement.node_rank))

    def _on_peer_lost(self, process_id: str) -> None:
        if process_id in self._children:
            self._ended[process_id] = self._children.pop(process_id)
            self._messenger.call_later(_RANK_ENDS_WITHIN_S, partial(self._tell_ended, process_id))

    def _tell_ended(self, process_id: str) -> None:
        name, parent = self._ended.pop(process_id, ("", ""))
        lost = self._messenger.peers.lost
        if name and parent not in lost:
            has_left = process_id in lost and lost[process_id].loss is Loss.LEFT
            why = self._messenger.peers.why_lost(process_id)
            self._bus.emit(ChildLeft(name) if has_left else ChildLost(name, why))
