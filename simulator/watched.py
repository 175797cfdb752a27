"""A channel's state machine that tells the books of each event before it, and what followed after it.

The order of events is that of the server, whatever carries them there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rlinf_scheduler.channel.remote_items import RemoteItem
from rlinf_scheduler.queueing import (
    NO_LIMITS,
    Bury,
    ChannelState,
    Deliver,
    Instruction,
    Item,
    LeaseTerms,
    Limits,
    Producers,
    QueueName,
    ShardPlan,
    StartClock,
    StopClock,
    Tapped,
    TapTerms,
)
from simulator.ledger import Ledger
from simulator.producer_oracle import ProducerOracle
from simulator.queue_oracle import Asked
from simulator.script import TAP
from simulator.world import World

if TYPE_CHECKING:
    from simulator.holders import Holders


@dataclass(slots=True)
class Names:
    """How the books call what the product knows by ids and tickets.

    Attributes:
        processes: the names of processes, by their ids.
        calls: the numbers of calls, by the name of the process and the ticket.
        direct: what threads have sent by themselves, by the same.
        leaving: how members leave the subscription, as they have said it, by their names and numbers.
    """

    processes: dict[str, str] = field(default_factory=dict)
    calls: dict[tuple[str, int], int] = field(default_factory=dict)
    direct: set[tuple[str, int]] = field(default_factory=set)
    leaving: dict[tuple[str, int], deque[bool]] = field(default_factory=dict)

    def of(self, process_id: str, ticket: int) -> tuple[str, int]:
        """Return the name of a process, and the number of its call."""
        name = self.processes.get(process_id, "")
        return name, self.calls.get((name, ticket), ticket)

    def number_of(self, item: Item) -> int:
        """Return the number of the call that has put an item."""
        (_, process_id), ticket, _ = item.origin
        return self.of(process_id, ticket)[1]


class _Told:
    """An item as the books know it."""

    __slots__ = ("payload",)

    def __init__(self, number: int) -> None:
        self.payload = number


class WatchedState(ChannelState):
    """The state of a channel's server.

    Args:
        world: where it is.
        ledger: hears of everything.
        places: hears of producers.
        names: how they call that.
        holders: of items that are elsewhere.
        successor_us: how long who has failed may be succeeded.
        bounds: of the channel, as of `ChannelState`.
    """

    def __init__(
        self,
        world: World,
        ledger: Ledger,
        places: ProducerOracle,
        names: Names,
        holders: Holders | None,
        successor_us: int,
        *args: Any,
        **bounds: Any,
    ) -> None:
        super().__init__(*args, **bounds)
        self._world = world
        self._ledger = ledger
        self._places = places
        self._names = names
        self._holders = holders
        self._remote: dict[tuple[str, int], int] = {}  # calls that have put what is elsewhere
        self._successor_us = successor_us
        # What a machine does to itself is no event.
        self._is_inside = False

    # -- puts and gets -------------------------------------------------------------------------------

    def put(
        self, client: str, ticket: int, queue_name: QueueName, payload: Any, *args: Any, **options: Any
    ) -> list[Instruction]:
        name, number = self._names.of(client, ticket)
        self._hear("put", name, number)
        self._ledger.put_arrives(name, number)
        if isinstance(payload, RemoteItem):
            self._remote[payload.at.holder.process_id, payload.at.number] = number
        lies_elsewhere = isinstance(payload, RemoteItem) or getattr(payload, "block", None) is not None
        # Of those that threads send by themselves each has one at most.
        is_direct = (name, ticket) in self._names.direct
        if options.get("complete", True) and not lies_elsewhere and not is_direct:
            self._ledger.bytes_arrive(name, number)
        return self._do(super().put, client, ticket, queue_name, payload, *args, **options)

    def put_run(
        self, client: str, queue_name: QueueName, puts: Sequence[tuple[int, Item]], out: list[Instruction]
    ) -> int:
        num_before = len(out)
        count = super().put_run(client, queue_name, puts, out)
        if not self._is_inside and count:
            for ticket, _ in puts[:count]:
                name, number = self._names.of(client, ticket)
                self._hear("put", name, number)
                self._ledger.put_arrives(name, number)
                self._ledger.bytes_arrive(name, number)
            self._follow_up(out[num_before:])
        return count

    def fill(self, client: str, ticket: int, *args: Any) -> list[Instruction]:
        self._hear("fill", *self._names.of(client, ticket))
        return self._do(super().fill, client, ticket, *args)

    def get(self, client: str, ticket: int, queue_name: QueueName, *, wait: bool = True) -> list[Instruction]:
        self._asks(client, ticket, queue_name, Asked(wait=wait))
        return self._do(super().get, client, ticket, queue_name, wait=wait)

    def get_run(
        self, client: str, queue_name: QueueName, tickets: Sequence[int], out: list[Instruction]
    ) -> int:
        num_before = len(out)
        count = super().get_run(client, queue_name, tickets, out)
        if not self._is_inside and count:
            for ticket in tickets:
                self._asks(client, ticket, queue_name, Asked())
            self._follow_up(out[num_before:])
        return count

    def get_batch(
        self,
        client: str,
        ticket: int,
        queue_name: QueueName,
        batch_weight: float | None,
        limits: Limits = NO_LIMITS,
        *,
        wait: bool = True,
    ) -> list[Instruction]:
        self._asks(client, ticket, queue_name, Asked(True, _whole(batch_weight), limits, wait))
        return self._do(super().get_batch, client, ticket, queue_name, batch_weight, limits, wait=wait)

    def get_group(
        self,
        client: str,
        ticket: int,
        queue_name: QueueName,
        size: int,
        *,
        wait: bool = True,
        terms: LeaseTerms | None = None,
    ) -> list[Instruction]:
        self._asks(client, ticket, queue_name, Asked(wait=wait, group_size=size))
        return self._do(super().get_group, client, ticket, queue_name, size, wait=wait, terms=terms)

    def lease(
        self,
        client: str,
        ticket: int,
        queue_name: QueueName,
        terms: LeaseTerms,
        batch_weight: float | None = None,
        limits: Limits | None = None,
        **options: Any,
    ) -> list[Instruction]:
        asked = Asked(
            limits is not None or batch_weight is not None,
            _whole(batch_weight),
            NO_LIMITS if limits is None else limits,
            options.get("wait", True),
            ttl_us=round(terms.ttl_s * 1e6),
        )
        self._asks(client, ticket, queue_name, asked)
        return self._do(super().lease, client, ticket, queue_name, terms, batch_weight, limits, **options)

    def withdraw(self, client: str, ticket: int) -> list[Instruction]:
        self._hear("withdraw", *self._names.of(client, ticket))
        return self._do(super().withdraw, client, ticket)

    def lose_items(self, why: Callable[[Any], str]) -> list[Instruction]:
        gone: list[RemoteItem] = []

        def why_lost(payload: Any) -> str:
            reason = why(payload)
            if reason:
                gone.append(payload)
            return reason

        out: list[Instruction] = self._inside(super().lose_items, why_lost)
        numbers = {self._remote[each.at.holder.process_id, each.at.number] for each in gone}
        self._hear("losses", "", *sorted(numbers))
        if self._holders is not None:
            self._holders.check_lost("server", gone)
        self._ledger.loses_items(numbers)
        return self._follow_up(out)

    def deliver_again(self, client: str, ticket: int) -> list[Instruction]:
        name, number = self._names.of(client, ticket)
        self._hear("ask again", name, number)
        out: list[Instruction] = self._inside(super().deliver_again, client, ticket)
        for each in out:
            if isinstance(each, Deliver) and each[:2] == (client, ticket):
                self._ledger.delivers_again(
                    name, number, [self._names.number_of(item) for item in each.items]
                )
        return self._follow_up(out)

    def arrive(self, client: str, ticket: int) -> list[Instruction]:
        if not self._is_inside:
            self._ledger.arrived(*self._names.of(client, ticket))
        return self._do(super().arrive, client, ticket)

    def confirm_run(self, client: str, tickets: Iterable[int]) -> list[Instruction]:
        tickets = list(tickets)
        for ticket in () if self._is_inside else tickets:
            self._hear("confirm", *self._names.of(client, ticket))
            self._ledger.confirmed(*self._names.of(client, ticket))
        return self._do(super().confirm_run, client, tickets)

    def ripen(self, client: str, ticket: int) -> list[Instruction]:
        self._ledger.waited(*self._names.of(client, ticket))
        return self._do(super().ripen, client, ticket)

    # -- leases --------------------------------------------------------------------------------------

    def acknowledge(
        self, client: str, generation: int, places: Collection[int] | None = None
    ) -> list[Instruction] | None:
        out = self._inside(super().acknowledge, client, generation, places)
        name = self._names.processes[client]
        self._hear("acknowledge", name, generation, *(places or ()))
        self._ledger.leases.acknowledge(name, generation, places, refused=out is None)
        return None if out is None else self._follow_up(out)

    def give_back(
        self,
        client: str,
        generation: int,
        places: Collection[int] | None = None,
        *,
        delay_s: float = 0,
        reason: str = "",
    ) -> list[Instruction] | None:
        out = self._inside(super().give_back, client, generation, places, delay_s=delay_s, reason=reason)
        name = self._names.processes[client]
        self._hear("give back", name, generation, *(places or ()))
        self._ledger.leases.give_back(name, generation, places, refused=out is None, delayed=delay_s > 0)
        return None if out is None else self._follow_up(out)

    def extend(self, client: str, generation: int, for_s: float | None = None) -> list[Instruction] | None:
        self._ledger.leases.hear(self._names.processes[client], generation, self._world.now_us)
        out = self._inside(super().extend, client, generation, for_s)
        return None if out is None else self._follow_up(out)

    def lapse(self, generation: int) -> list[Instruction]:
        self._hear("lapse", generation)
        self._ledger.leases.lapse(generation, self._world.now_us)
        return self._do(super().lapse, generation)

    def put_back(self, number: int) -> list[Instruction] | None:
        return self._move(number, self._ledger.leases.put_back, super().put_back)

    def discard(self, number: int) -> list[Instruction] | None:
        return self._move(number, self._ledger.leases.discard, super().discard)

    def _move(
        self, number: int, tell: Callable[..., None], act: Callable[[int], list[Instruction] | None]
    ) -> list[Instruction] | None:
        letter = self.leases.dead.get(number)
        if letter is not None:
            self._hear("move", self._names.number_of(letter.item))
            tell(self._names.number_of(letter.item), _queue_of(letter.queue.name))
        out: list[Instruction] | None = self._inside(act, number)
        return None if out is None else self._follow_up(out)

    # -- shards and subscriptions --------------------------------------------------------------------

    def get_part(
        self,
        client: str,
        ticket: int,
        queue_name: QueueName,
        plan: ShardPlan,
        index: int,
        done_step: int = -1,
        *,
        wait: bool = True,
    ) -> list[Instruction]:
        name, number = self._names.of(client, ticket)
        self._hear("get part", name, number, index, done_step)
        self._ledger.part_arrives(name, number, queue_name, index, done_step)
        return self._do(super().get_part, client, ticket, queue_name, plan, index, done_step, wait=wait)

    def finish_part(
        self, client: str, queue_name: QueueName, index: int, step: int
    ) -> list[Instruction] | None:
        out = self._inside(super().finish_part, client, queue_name, index, step)
        name = self._names.processes[client]
        self._hear("finish part", name, index, step)
        self._ledger.part_is_done(name, queue_name, index, step, refused=out is None)
        return None if out is None else self._follow_up(out)

    def subscribe(self, client: str, number: int, name: str, terms: TapTerms) -> str:
        self._hear("subscribe", self._names.processes[client], number)
        problem = super().subscribe(client, number, name, terms)
        if not problem:
            self._ledger.subscribes(self._names.processes[client], number, terms)
        return problem

    def leave_subscription(self, client: str, number: int, name: str) -> int | None:
        member = self._names.processes[client], number
        said = self._names.leaving.get(member)
        if not self._is_inside:
            failed = said.popleft() if said else True
            self._hear("unsubscribe", *member, failed)
            until_us = self._world.now_us + (self._successor_us if failed else 0)
            self._ledger.unsubscribes(*member, until_us)
        return super().leave_subscription(client, number, name)

    def lose_member(self, client: str) -> list[tuple[str, int]]:
        lost: list[tuple[str, int]] = self._inside(super().lose_member, client)
        return lost

    def give_up_subscription(self, name: str, vacancy: int) -> list[Instruction] | None:
        out = self._inside(super().give_up_subscription, name, vacancy)
        if out is None:
            return None
        self._ledger.subscription_ends(self._world.now_us)
        return self._follow_up(out)

    # -- ends ----------------------------------------------------------------------------------------

    def set_clock(self, now: float) -> None:
        self._ledger.ticks(round(now * 1e6))
        super().set_clock(now)

    def lose(self, client: str, taken: Collection[int] = ()) -> list[Instruction]:
        name = self._names.processes[client]
        self._hear("loss", name)
        for ticket in taken:
            self._ledger.confirmed(*self._names.of(client, ticket))
        self._ledger.loses(name, self._world.now_us + self._successor_us)
        return self._do(super().lose, client, taken)

    def end(self, queue_name: QueueName) -> list[Instruction]:
        self._hear("end", queue_name)
        self._ledger.ends(queue_name)
        return self._do(super().end, queue_name)

    def end_all(self) -> list[Instruction]:
        self._places.ends(self._world.now_us)
        self._ledger.ends_all()
        return self._do(super().end_all)

    def flush(self, queue_name: QueueName) -> list[Instruction]:
        self._hear("flush", queue_name)
        self._ledger.flushes(queue_name)
        return self._do(super().flush, queue_name)

    def close(self) -> list[Instruction]:
        self._hear("close")
        self._ledger.closes()
        return self._do(super().close)

    # -- inside --------------------------------------------------------------------------------------

    def _inside(self, act: Callable[..., Any], *args: Any, **options: Any) -> Any:
        was_inside, self._is_inside = self._is_inside, True
        try:
            return act(*args, **options)
        finally:
            self._is_inside = was_inside

    def _do(self, act: Callable[..., Any], *args: Any, **options: Any) -> list[Instruction]:
        out: list[Instruction] = self._inside(act, *args, **options)
        return out if self._is_inside else self._follow_up(out)

    def _asks(self, client: str, ticket: int, queue_name: QueueName, asked: Asked) -> None:
        name, number = self._names.of(client, ticket)
        self._hear("get", name, number)
        self._ledger.get_arrives(name, number, _queue_of(queue_name), asked)

    def _hear(self, what: str, who: object = "", *about: object) -> None:
        self._world.note("channel", "hears", who, what, *about)

    def _follow_up(self, out: list[Instruction]) -> list[Instruction]:
        told = [self._in_words(each) for each in out if not isinstance(each, Bury | StopClock)]
        for each in told:
            self._world.note("channel", "says", *_short(each))
        self._ledger.follow(told, self, self._world.now_us)
        return out

    def _in_words(self, instruction: Any) -> Any:
        if isinstance(instruction, StartClock) and not instruction.client:
            return instruction
        name, number = self._names.of(instruction.client, instruction.ticket)
        told = instruction._replace(client=name, ticket=number)
        if isinstance(instruction, Deliver):
            return told._replace(items=[_Told(self._names.number_of(item)) for item in instruction.items])
        return told


class WatchedProducers(Producers):
    """The producers of a channel."""

    def __init__(self, world: World, places: ProducerOracle, names: Names, num_places: int) -> None:
        super().__init__(num_places)
        self._world = world
        self._places = places
        self._who = names.processes

    def join(self, client: str, number: int, name: str) -> bool:
        admitted = super().join(client, number, name)
        self._places.join(self._who[client], number, name, self._world.now_us, admitted=admitted)
        return admitted

    def leave(self, client: str, number: int, *, failed: bool) -> int | None:
        self._places.leave(self._who[client], number, self._world.now_us, failed=failed)
        return super().leave(client, number, failed=failed)

    def lose(self, client: str) -> list[int]:
        self._places.lose(self._who[client], self._world.now_us)
        return super().lose(client)

    def give_up(self, vacancy: int) -> None:
        super().give_up(vacancy)
        self._places.given_up(self._world.now_us)


def _queue_of(name: QueueName) -> QueueName:
    """What the books call a queue."""
    return TAP if isinstance(name, Tapped) else name


def _whole(weight: float | None) -> int | None:
    return None if weight is None else int(weight)


def _short(instruction: Any) -> tuple[Any, ...]:
    words = (type(instruction).__name__, instruction.client, instruction.ticket)
    if isinstance(instruction, Deliver):
        return *words, *(item.payload for item in instruction.items)
    reason = getattr(instruction, "reason", None)
    return words if reason is None else (*words, reason.value)
