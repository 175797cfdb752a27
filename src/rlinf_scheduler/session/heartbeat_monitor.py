"""What the job's home hears of the others' heartbeats: it says who is silent, and gives that up at last."""

from __future__ import annotations

import time

from rlinf_scheduler.addresses import worker_address
from rlinf_scheduler.comm import Messenger, Request
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.events import WorkerResponsive, WorkerUnresponsive
from rlinf_scheduler.session.bus import EventBus
from rlinf_scheduler.session.death_notices import DeathNotices
from rlinf_scheduler.session.death_register import Death
from rlinf_scheduler.session.heartbeats import BEAT, Beat
from rlinf_scheduler.session.silence_detector import SWEEP_S, Silence, SilenceDetector

_log = Reporter(__name__)


class HeartbeatMonitor:
    """What the job's home hears; everything is on the I/O thread.

    Args:
        messenger: the home's messenger.
        bus: where silences are told.
        deaths: where those that last too long are.
    """

    def __init__(self, messenger: Messenger, bus: EventBus, deaths: DeathNotices) -> None:
        self._messenger = messenger
        self._bus = bus
        self._deaths = deaths
        self._silences = SilenceDetector(messenger.now())
        self._is_sweeping = False
        # Silent for too long, and cut off: how long that may last is the connection's to say.
        self._overdue: dict[str, Silence] = {}
        messenger.serve(BEAT, self._on_beat, Beat)
        messenger.on_peer_lost(self._forget)

    def why_silent(self, process_id: str) -> str:
        """Why a process whose silence was told is silent, although its link works; "" of others; from any thread."""
        silent_s = self._silences.told_silent_s(process_id, self._messenger.now())
        return "" if silent_s is None else _stuck(silent_s)

    def silent_s(self, process_id: str) -> float:
        """For how long nothing was heard of a process, in seconds; from any thread."""
        return self._silences.silent_s(process_id, self._messenger.now())

    def _forget(self, process_id: str) -> None:
        self._silences.forget(process_id)
        self._overdue.pop(process_id, None)

    def _on_beat(self, notice: Request) -> None:
        beat: Beat = notice.head
        self._overdue.pop(notice.peer_id, None)
        over = self._silences.hear(
            notice.peer_id, self._messenger.now(), give_up_after_s=beat.give_up_after_s
        )
        if over is not None:
            name = self._messenger.peer_name(notice.peer_id)
            _log.warning("'%s' answers again, after %.0f s", name, over.silent_s)
            address = worker_address(name)
            if address is not None and address.parent is None:
                self._bus.emit(WorkerResponsive(address.group, address.rank, over.silent_s))
        if not self._is_sweeping:
            self._is_sweeping = True
            self._messenger.call_later(SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        if self._messenger.why_closed:
            return
        for silence in (*self._overdue.values(), *self._silences.sweep(self._messenger.now())):
            if silence.early:
                self._messenger.peers.doubt(silence.process_id, silence.silent_s)
            else:
                self._tell(silence)
        self._messenger.call_later(SWEEP_S, self._sweep)

    def _tell(self, silence: Silence) -> None:
        name = self._messenger.peer_name(silence.process_id)
        cut_off = self._messenger.peers.cut_off(silence.process_id)
        stuck = _stuck(silence.silent_s)
        if silence.too_long and cut_off:
            self._overdue[silence.process_id] = silence
            return
        if silence.too_long:
            self._overdue.pop(silence.process_id, None)
            at = time.strftime("%H:%M:%S")
            self._deaths.declare(Death(silence.process_id, name, f"{stuck}; given up at {at}"))
            return
        address = worker_address(name)
        if address is not None:
            _log.warning("'%s': %s", name, cut_off or stuck)
            if address.parent is None:
                why = cut_off or stuck
                self._bus.emit(WorkerUnresponsive(address.group, address.rank, why, silence.silent_s))


def _stuck(silent_s: float) -> str:
    return f"nothing heard for {silent_s:.0f} s: it is stopped, or something holds its interpreter"
