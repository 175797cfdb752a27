"""Processes of one machine that cannot share memory: the job's home tells which, and why."""

from __future__ import annotations

from rlinf_scheduler.comm import Endpoint, Request
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.events import TransportFellBack
from rlinf_scheduler.host import protocol
from rlinf_scheduler.session.session import Session

_log = Reporter(__name__)


class Fallbacks:
    """Processes that send to others of their machine by a slower way; a service of the home, on its I/O thread."""

    def __init__(self, session: Session) -> None:
        self._session = session
        # By address: the first process there, and its machine as it sees it.
        self._first_at: dict[str, tuple[str, Endpoint]] = {}
        self._split: set[str] = set()
        session.messenger.serve(protocol.FELL_BACK, self._on_fell_back, protocol.FellBack)

    def note(self, ip: str, name: str, endpoint: Endpoint) -> None:
        """Compare a process with the first one at its address: they may be in different containers."""
        other, first = self._first_at.setdefault(ip, (name, endpoint))
        if endpoint.machine_id != first.machine_id and ip not in self._split:
            self._split.add(ip)
            self._tell(
                name,
                f"'{name}' and '{other}' run at {ip} and share neither files, network nor user: they are in "
                "different containers; what they send each other goes through the network, not through shared memory",
            )

    def _on_fell_back(self, notice: Request) -> None:
        fell: protocol.FellBack = notice.head
        self._tell(notice.peer_name, f"'{notice.peer_name}' does without shared memory: {fell.reason}")

    def _tell(self, process: str, reason: str) -> None:
        _log.warning("%s", reason)
        self._session.bus.emit(TransportFellBack(process, reason))
