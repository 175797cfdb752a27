"""What a channel's server does with operations that came as a run: together, as long as that is simple."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from rlinf_scheduler.channel import wire
from rlinf_scheduler.channel.byte_bound import ByteBound
from rlinf_scheduler.channel.known_client import KnownClient
from rlinf_scheduler.channel.record_desk import RecordDesk
from rlinf_scheduler.comm.framing import Buffer
from rlinf_scheduler.comm.reports import Reporter
from rlinf_scheduler.comm.shm.parcel import Arrived
from rlinf_scheduler.queueing import Bury, ChannelState, Instruction, Item, rounded

logger = Reporter(__name__)


class RunDesk:
    """Takes the runs of one channel's clients.

    Args:
        channel: its name.
        state: what the operations are done on.
        clients: all clients that are known.
        bound: of the channel.
        records: notes who asks at which step.
        carry_out: does what follows from an event.
        run_alone: does one operation as if it had come by itself.
        refuse: says that some operations of a client failed.
    """

    def __init__(
        self,
        channel: str,
        state: ChannelState,
        clients: Mapping[str, KnownClient],
        bound: ByteBound,
        records: RecordDesk,
        carry_out: Callable[[list[Instruction]], None],
        run_alone: Callable[[str, wire.OperationMessage, Iterator[Buffer]], None],
        refuse: Callable[[str, Iterable[int], Exception], None],
    ) -> None:
        self._channel = channel
        self._state = state
        self._clients = clients
        self._bound = bound
        self._records = records
        self._carry_out = carry_out
        self._run_alone = run_alone
        self._refuse = refuse

    def puts(self, client: str, run: wire.Puts, frames: Iterator[Buffer]) -> list[Instruction]:
        """So many puts in a row."""
        who = self._clients[client].who
        puts: list[tuple[int, Item]] = []
        # The tickets first: when there are no more, no frame is taken.
        parts: Iterator[Any] = zip(run.tickets, run.weights, *[frames] * run.num_frames, strict=False)
        num_here = 0
        for ticket, weight, *part in parts:
            num_here += 1
            try:
                arrived = Arrived(part)
                item = Item(arrived, weight, arrived.size_bytes)
                item.origin = (who, ticket, None)
                puts.append((ticket, item))
            except Exception as error:
                logger.exception("channel '%s': an item cannot be received", self._channel)
                self._refuse(client, (ticket,), error)
        left = self._run_together(
            client,
            [ticket for ticket, _ in puts],
            lambda out: self._state.put_run(client, wire.as_name(run.queue), puts, out),
        )
        for ticket, item in islice(puts, len(puts) - len(left), None):
            put = wire.Put(ticket, run.queue, rounded(item.weight), True, run.num_frames)
            self._run_alone(client, put, iter(item.payload.frames()))
        if num_here < len(run.tickets):
            self._refuse(client, run.tickets[num_here:], ValueError("its bytes are missing"))
        return self._bound.note(self._state)

    def gets(self, client: str, run: wire.Gets, frames: Iterator[Buffer]) -> list[Instruction]:
        """So many gets in a row."""
        self._records.expect(client, run)
        left = self._run_together(
            client,
            run.tickets,
            lambda out: self._state.get_run(client, wire.as_name(run.queue), run.tickets, out),
        )
        for ticket in left:
            self._run_alone(client, wire.Get(ticket, run.queue, True, None), frames)
        return []

    def _run_together(
        self, client: str, tickets: Sequence[int], run: Callable[[list[Instruction]], int]
    ) -> Sequence[int]:
        """Carry out what follows from a run; those of its operations that are still to be done, one by one."""
        out: list[Instruction] = []
        try:
            left = tickets[run(out) :]
        except Exception as error:
            # It fails alone: those before it are done, and those behind it are not tried yet.
            logger.exception("channel '%s': an operation failed", self._channel)
            told = {each.ticket for each in out if not isinstance(each, Bury) and each.client == client}
            left = [each for each in tickets if each not in told and not self._state.knows(client, each)]
            self._refuse(client, left[:1], error)
            left = left[1:]
        self._carry_out(out)
        return left
