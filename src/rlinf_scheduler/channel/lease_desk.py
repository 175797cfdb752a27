"""Where a channel's server keeps the time of leases, and hears what became of their items. On the I/O thread only."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from rlinf_scheduler.channel import control_wire, wire
from rlinf_scheduler.comm.loop import Timer
from rlinf_scheduler.comm.peer import Request
from rlinf_scheduler.comm.runtime import Runtime
from rlinf_scheduler.queueing import ChannelState, Instruction, Item, StartClock, StopClock

# A clock that rings so much later than it should says more about this process than about a consumer.
LATE_S = 0.05
# So long it then reads what consumers have said meanwhile; and if it was stopped again, what lies there after that.
# Then the time is over, however busy this process is.
DEFERRALS_S = (0.5, 0.0)


class _Clock(NamedTuple):
    due: float
    num_deferred: int
    timer: Timer


class LeaseDesk:
    """Keeps the time that `queueing.Leases` does not know, by this machine's monotonic clock.

    Args:
        messenger: this process's messenger.
        state: the channel's queues.
        carry_out: does what follows from an event.
        bring: fetches items that other nodes hold, and goes on.
    """

    def __init__(
        self,
        messenger: Runtime,
        state: ChannelState,
        carry_out: Callable[[list[Instruction]], None],
        bring: Callable[[list[Item], Callable[[], None]], None],
    ) -> None:
        self._messenger = messenger
        self._state = state
        self._carry_out = carry_out
        self._bring = bring
        self._clocks: dict[int, _Clock] = {}

    def keep_time(self, instruction: StartClock | StopClock) -> None:
        """Start a clock, or stop it."""
        generation = instruction.generation
        clock = self._clocks.get(generation)
        if isinstance(instruction, StartClock):
            if clock is not None and self._messenger.now() + instruction.after_s <= clock.due:
                return
            self._start(generation, instruction.after_s)
        else:
            self._clocks.pop(generation, None)
        if clock is not None:
            clock.timer.cancel()

    def _start(self, generation: int, after_s: float, num_deferred: int = 0) -> None:
        due = self._messenger.now() + after_s
        timer = self._messenger.call_later(after_s, partial(self._lapse, generation))
        self._clocks[generation] = _Clock(due, num_deferred, timer)

    def _lapse(self, generation: int) -> None:
        due, num_deferred, _ = self._clocks.pop(generation)
        if self._messenger.now() - due > LATE_S and num_deferred < len(DEFERRALS_S):
            # It was this process that was stopped: what consumers have said meanwhile is still to be read.
            self._start(generation, DEFERRALS_S[num_deferred], num_deferred + 1)
        else:
            self._carry_out(self._state.lapse(generation))

    @property
    def dues(self) -> dict[int, tuple[float, int]]:
        """When the time of each lease and delay is over, by the clock of `messenger`; how often that was put off."""
        return {generation: (clock.due, clock.num_deferred) for generation, clock in self._clocks.items()}

    def resume(self, dues: dict[int, tuple[float, int]]) -> None:
        """Keep the time of leases that another desk has begun."""
        for generation, (due, num_deferred) in dues.items():
            left_s = max(0.0, due - self._messenger.now())
            timer = self._messenger.call_later(left_s, partial(self._lapse, generation))
            self._clocks[generation] = _Clock(due, num_deferred, timer)

    def answer(self, request: Request) -> None:
        """Hear what a client says of a lease or of a dead letter."""
        client = request.peer_id
        match request.head:
            case control_wire.Settle(generation):
                request.reply(self._after(generation, self._settle(client, request.head)))
            case control_wire.Extend(generation, for_s):
                request.reply(self._after(generation, self._state.extend(client, generation, for_s)))
            case control_wire.DonePart(queue, index, step):
                out = self._state.finish_part(client, wire.as_name(queue), index, step)
                request.reply(self._done(out, NO_PART))
            case control_wire.ListDead(queue):
                request.reply(self._list_dead(queue))
            case control_wire.ReadDead(number):
                letter = self._state.leases.dead.get(number)
                items = [] if letter is None else [letter.item]
                self._bring(items, lambda: self._read_dead(request, items))
            case control_wire.MoveDead(number, again):
                move = self._state.put_back if again else self._state.discard
                try:
                    request.reply(self._done(move(number), NO_LETTER))
                except ValueError as error:
                    request.reply(control_wire.Done(str(error)))

    def _read_dead(self, request: Request, items: list[Item]) -> None:
        problem = items[0].lost and f"the item {items[0].lost}" if items else NO_LETTER
        request.reply(control_wire.Done(problem), [] if problem else items[0].payload.frames())

    def _settle(self, client: str, settle: control_wire.Settle) -> list[Instruction] | None:
        if settle.done:
            return self._state.acknowledge(client, settle.generation, settle.places)
        return self._state.give_back(
            client, settle.generation, settle.places, delay_s=settle.delay_s, reason=settle.reason
        )

    def _after(self, generation: int, out: list[Instruction] | None) -> control_wire.Done:
        return self._done(out, self._state.leases.why_over(generation) if out is None else "")

    def _done(self, out: list[Instruction] | None, problem: str) -> control_wire.Done:
        if out is None:
            return control_wire.Done(problem)
        self._carry_out(out)
        return control_wire.Done("")

    def _list_dead(self, queue: Any) -> control_wire.DeadNotes:
        name = None if queue is None else wire.as_name(queue)
        letters = self._state.leases.dead_letters(name)
        return control_wire.DeadNotes(
            [
                control_wire.DeadNote(
                    e.number, e.queue.name, e.item.size_bytes, e.attempts, e.reason, e.consumer
                )
                for e in letters
            ]
        )

    def close(self) -> None:
        """Stop every clock."""
        for clock in self._clocks.values():
            clock.timer.cancel()
        self._clocks.clear()


NO_PART = "it was acknowledged before, or another one asks for this shard now"
NO_LETTER = "it is not there any more: it was put back, or discarded"
