"""Leases, their time, and dead letters, of which askers hear. Without them what was delivered is its consumer's."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from rlinf_scheduler.channel import control_wire, wire
from rlinf_scheduler.channel.held import FETCH_TIMEOUT_S
from rlinf_scheduler.channel.question import ANSWER, Unanswerable
from rlinf_scheduler.channel.server import ChannelServer
from rlinf_scheduler.comm.failure import sendable
from rlinf_scheduler.comm.loop import Timer
from rlinf_scheduler.comm.peer import Request
from rlinf_scheduler.comm.runtime import timer
from rlinf_scheduler.queueing.dead_letters import NO_LETTER, DeadLetters
from rlinf_scheduler.queueing.item import Item
from rlinf_scheduler.queueing.leases import Lapse, StartClock, StopClock
from rlinf_scheduler.queueing.messages import Bury

# A clock that rings so much later than it should says more about this process than about a consumer.
LATE_S = 0.05
# So long it then reads what consumers have said meanwhile; and if it was stopped again, what lies there after that.
# Then the time is over, however busy this process is.
DEFERRALS_S = (0.5, 0.0)


class _Clock(NamedTuple):
    due: float
    num_deferred: int
    timer: Timer


class LeasesFeature:
    """The handlers of leases at one server, and the time that `queueing.Leases` does not know."""

    def __init__(self, server: ChannelServer) -> None:
        self._runtime = server.runtime
        self._state = server.state
        self._dead = server.state.policy(DeadLetters)
        self._carry_out = server.carry_out
        self._bring = server.bring
        self._clocks: dict[int, _Clock] = {}
        server.handlers |= {
            control_wire.ListDead: self._list_dead,
            control_wire.ReadDead: self._read_dead,
            StartClock: self.keep_time,
            StopClock: self.keep_time,
        }
        server.on_stop.append(self.close)

    def keep_time(self, instruction: StartClock | StopClock) -> None:
        """Start a clock, or stop it."""
        generation = instruction.generation
        clock = self._clocks.get(generation)
        if isinstance(instruction, StartClock):
            if clock is not None and self._runtime.now() + instruction.after_s <= clock.due:
                return
            self._start(generation, instruction.after_s)
        else:
            self._clocks.pop(generation, None)
        if clock is not None:
            clock.timer.cancel()

    def _start(self, generation: int, after_s: float, num_deferred: int = 0) -> None:
        due = self._runtime.now() + after_s
        timer = self._runtime.call_later(after_s, partial(self._lapse, generation))
        self._clocks[generation] = _Clock(due, num_deferred, timer)

    @timer("lease")
    def _lapse(self, generation: int) -> None:
        due, num_deferred, _ = self._clocks.pop(generation)
        if self._runtime.now() - due > LATE_S and num_deferred < len(DEFERRALS_S):
            # It was this process that was stopped: what consumers have said meanwhile is still to be read.
            self._start(generation, DEFERRALS_S[num_deferred], num_deferred + 1)
        else:
            self._carry_out(self._state.apply(Lapse(generation)))

    @property
    def dues(self) -> dict[int, tuple[float, int]]:
        """When the time of each lease and delay is over, by the clock of `runtime`; how often that was put off."""
        return {generation: (clock.due, clock.num_deferred) for generation, clock in self._clocks.items()}

    def resume(self, dues: dict[int, tuple[float, int]]) -> None:
        """Keep the time of leases that another server has begun."""
        for generation, (due, num_deferred) in dues.items():
            left_s = max(0.0, due - self._runtime.now())
            timer = self._runtime.call_later(left_s, partial(self._lapse, generation))
            self._clocks[generation] = _Clock(due, num_deferred, timer)

    # -- dead letters ------------------------------------------------------------------------------

    def _list_dead(self, request: Request) -> None:
        queue = request.head.queue
        name = None if queue is None else wire.as_name(queue)
        notes = [
            control_wire.DeadNote(e.number, e.queue.name, e.item.size_bytes, e.attempts, e.reason, e.consumer)
            for e in self._dead.of(name)
        ]
        request.reply(control_wire.DeadNotes(notes))

    def _read_dead(self, request: Request) -> None:
        letter = self._dead.letters.get(request.head.number)
        items = [] if letter is None else [letter.item]
        self._bring(items, partial(self._reply_item, request, items), FETCH_TIMEOUT_S)

    def _reply_item(self, request: Request, items: list[Item], late: str) -> None:
        problem = late or (items[0].lost and f"the item {items[0].lost}") if items else NO_LETTER
        request.reply(control_wire.Done(problem), [] if problem else items[0].payload.frames())

    def close(self) -> None:
        """Stop every clock."""
        for clock in self._clocks.values():
            clock.timer.cancel()
        self._clocks.clear()


class QuestionsFeature:
    """The handlers of questions at one server."""

    def __init__(self, server: ChannelServer) -> None:
        self._server = server
        server.handlers[Bury] = self._tell_asker

    def _tell_asker(self, buried: Bury) -> None:
        """Nobody will answer a question."""
        known = self._server.clients.get(buried.client)
        if known is not None:
            reason = sendable(buried.reason)
            notice = Unanswerable(buried.ticket, buried.attempts, buried.consumer, reason)
            self._server.runtime.notify(known.endpoint, ANSWER, notice)
