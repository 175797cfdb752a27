"""What the job's home hears of the others' heartbeats: it says who is silent, and gives that up at last."""

from __future__ import annotations

import time
from dataclasses import dataclass

from rlinf_scheduler.addresses import worker_address
from rlinf_scheduler.comm import Messenger, Request
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.events import WorkerResponsive, WorkerUnresponsive
from rlinf_scheduler.session.bus import EventBus
from rlinf_scheduler.session.membership import BEAT, Beat, Death, DeathNotices

_log = Reporter(__name__)
# When two heartbeats in a row do not come, what leads there is tried: that takes a moment, and then it is known what
# to say.
DOUBT_S = 4.0
# Three in a row that do not come are worth a word.
SILENT_S = 6.0
SWEEP_S = 1.0


class HeartbeatMonitor:
    """What the job's home hears; everything is on the I/O thread."""

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


@dataclass(slots=True)
class _Heard:
    at: float
    give_up_after_s: float | None
    doubted: bool = False
    told: bool = False


@dataclass(frozen=True, slots=True)
class Silence:
    """A process is silent, or was.

    Attributes:
        silent_s: for how long nothing came.
        early: it is not worth a word yet; but it may be the link's, which can be tried.
        too_long: it is given up.
    """

    process_id: str
    silent_s: float
    early: bool = False
    over: bool = False
    too_long: bool = False


class SilenceDetector:
    """When each process was heard of last. Times are in seconds, of one clock.

    >>> silences = SilenceDetector(0.0)
    >>> silences.hear("a", 0.5, give_up_after_s=60.0)
    >>> [s for second in range(1, 7) for s in silences.sweep(float(second))]
    [Silence(process_id='a', silent_s=4.5, early=True, over=False, too_long=False)]
    >>> silences.sweep(7.0)
    [Silence(process_id='a', silent_s=6.5, early=False, over=False, too_long=False)]
    """

    def __init__(self, now: float) -> None:
        self._heard: dict[str, _Heard] = {}
        self._swept_at = now

    def hear(self, process_id: str, now: float, *, give_up_after_s: float | None) -> Silence | None:
        """A process says that it runs; whether that ends a silence that was told."""
        if not self._heard:  # before the first one nobody looked
            self._swept_at = now
        before = self._heard.get(process_id)
        self._heard[process_id] = _Heard(now, give_up_after_s)
        return Silence(process_id, now - before.at, over=True) if before is not None and before.told else None

    def told_silent_s(self, process_id: str, now: float) -> float | None:
        """For how long a process is silent, in seconds; None if that was not told, or is over."""
        heard = self._heard.get(process_id)
        return now - heard.at if heard is not None and heard.told else None

    def silent_s(self, process_id: str, now: float) -> float:
        """For how long nothing was heard of a process, in seconds, told or not; 0 of one that is not known."""
        heard = self._heard.get(process_id)
        return now - heard.at if heard is not None else 0.0

    def forget(self, process_id: str) -> None:
        """A process is gone."""
        self._heard.pop(process_id, None)

    def sweep(self, now: float) -> list[Silence]:
        """The processes that are silent since the last look, or too long; to be asked every `SWEEP_S` seconds.

        Who looks late was silent itself, and may not have read what came: that time counts against nobody. A silence
        that a late look found is doubted by the next look before it is told, for what leads there has not been tried.
        """
        late_s = now - self._swept_at - 2 * SWEEP_S
        self._swept_at = now
        found: list[Silence] = []
        for process_id, heard in list(self._heard.items()):
            if late_s > 0:
                heard.at = min(now, heard.at + late_s)
            silent_s = now - heard.at
            limit_s = heard.give_up_after_s
            if limit_s is not None and silent_s >= max(limit_s, SILENT_S):
                self.forget(process_id)
                found.append(Silence(process_id, silent_s, too_long=True))
            elif silent_s >= DOUBT_S and not heard.doubted:
                if late_s <= 0:
                    heard.doubted = True
                    found.append(Silence(process_id, silent_s, early=True))
            elif silent_s >= SILENT_S and not heard.told:
                heard.told = True
                found.append(Silence(process_id, silent_s))
        return found
