"""A channel's state machine that tells the books of each event before it, and what followed after it.

The order of events is that of the server, whatever carries them there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rlinf_scheduler.channel.remote_items import RemoteItem
from rlinf_scheduler.queueing import messages
from rlinf_scheduler.queueing.dead_letters import DeadLetters, MoveDead
from rlinf_scheduler.queueing.item import Item, QueueName, SubscriptionName, as_name
from rlinf_scheduler.queueing.leases import Extend, Lapse, Settle, StartClock, StopClock
from rlinf_scheduler.queueing.members import GroupRanks, Resize
from rlinf_scheduler.queueing.messages import Bury, Deliver, Instruction
from rlinf_scheduler.queueing.policy import OperationOver
from rlinf_scheduler.queueing.producers import GroupProducers, Producers
from rlinf_scheduler.queueing.sharding import DonePart, WantedPart
from rlinf_scheduler.queueing.snapshot import Snapshot
from rlinf_scheduler.queueing.state import ChannelState
from rlinf_scheduler.queueing.taps import GiveUpTap, Subscribe, TapTerms, Unsubscribe, Vacate
from rlinf_scheduler.queueing.wanted import NO_LIMITS
from simulator.ledger import Ledger
from simulator.producer_oracle import GroupProducerOracle, ProducerOracle
from simulator.queue_oracle import Asked
from simulator.script import TAP
from simulator.world import World


class ChecksLost(Protocol):
    """What is known of items that are elsewhere: `Holders`."""

    def check_lost(self, server: str, items: Iterable[RemoteItem]) -> None:
        """Check that items of which the server says so are lost."""


@dataclass(slots=True)
class Names:
    """How the books call what the product knows by ids and tickets.

    Attributes:
        processes: the names of processes, by their ids.
        calls: the numbers of calls, by the name of the process and the ticket.
        direct: what threads have sent by themselves, by the same.
    """

    processes: dict[str, str] = field(default_factory=dict)
    calls: dict[tuple[str, int], int] = field(default_factory=dict)
    direct: set[tuple[str, int]] = field(default_factory=set)

    def of(self, process_id: str, ticket: int) -> tuple[str, int]:
        """Return the name of a process, and the number of its call."""
        name = self.processes.get(process_id, "")
        return name, self.calls.get((name, ticket), ticket)

    def number_of(self, item: Item) -> int:
        """Return the number of the call that has put an item."""
        (_, process_id), ticket = item.origin
        return self.of(process_id, ticket)[1]


class Told:
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

    Attributes:
        title: how the history calls it.
    """

    title = "channel"

    def __init__(
        self,
        world: World,
        ledger: Ledger,
        places: ProducerOracle,
        names: Names,
        holders: ChecksLost | None,
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

    def apply(self, operation: Any, client: str = "", item: Any = None) -> list[Instruction]:
        """Do what is asked for; the books hear of it before, and of what followed after it."""
        if self._is_inside:
            return super().apply(operation, client, item)
        self._before(operation, client)
        if isinstance(operation, messages.Put):
            self._puts(operation, client, item)
        refusal: OperationOver | None = None
        out: list[Instruction] = []
        try:
            out = self._inside(super().apply, operation, client, item)
        except OperationOver as error:
            refusal = error
        self._after(operation, client, refused=refusal is not None)
        if isinstance(operation, messages.Resend):
            self._delivers_again(out, client, operation.ticket)
        if refusal is not None:
            raise refusal
        return self._follow_up(out)

    def put_run(
        self, client: str, queue_name: QueueName, puts: Sequence[tuple[int, Item]], out: list[Instruction]
    ) -> int:
        num_before = len(out)
        count = super().put_run(client, queue_name, puts, out)
        if not self._is_inside and count:
            for ticket, _ in puts[:count]:
                self._put_arrives(*self._names.of(client, ticket))
                self._ledger.bytes_arrive(*self._names.of(client, ticket))
            self._follow_up(out[num_before:])
        return count

    def get_run(
        self, client: str, queue_name: QueueName, tickets: Sequence[int], out: list[Instruction]
    ) -> int:
        num_before = len(out)
        count = super().get_run(client, queue_name, tickets, out)
        if not self._is_inside and count:
            for ticket in tickets:
                self._asks(messages.Get(ticket, queue_name), *self._names.of(client, ticket))
            self._follow_up(out[num_before:])
        return count

    def confirm(self, client: str, tickets: Iterable[int]) -> list[Instruction]:
        tickets = list(tickets)
        if self._is_inside:
            return super().confirm(client, tickets)
        for ticket in tickets:
            self._hear("confirm", *self._names.of(client, ticket))
            self._ledger.confirmed(*self._names.of(client, ticket))
        return self._follow_up(self._inside(super().confirm, client, tickets))

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

    def snapshot(self, *, at_rest: bool = False, done: Collection[int] = ()) -> Snapshot:
        if at_rest:
            self._ledger.is_saved(done)
        return super().snapshot(at_rest=at_rest, done=done)

    def set_clock(self, now: float) -> None:
        self._ledger.ticks(round(now * 1e6))
        super().set_clock(now)

    def _before(self, operation: Any, client: str) -> None:
        """Tell the books what is about to happen."""
        if hasattr(operation, "ticket"):
            self._before_operation(operation, client)
            return
        ledger, now_us, name = self._ledger, self._world.now_us, self._names.processes.get(client, "")
        match operation:
            case messages.Lose(taken):
                self._hear("loss", name)
                for ticket in taken:
                    ledger.confirmed(*self._names.of(client, ticket))
                ledger.loses(name, now_us + self._successor_us)
            case messages.EndQueue() | messages.EndAll() | messages.Flush() | messages.Close() | Resize():
                self._before_end(operation)
            case Extend(generation):
                ledger.leases.hear(name, generation, now_us)
            case Lapse(generation):
                self._hear("lapse", generation)
                ledger.leases.lapse(generation, self._world.latest_us)
            case MoveDead(number, again):
                self._moves(number, ledger.leases.put_back if again else ledger.leases.discard)
            case Subscribe(number):
                self._hear("subscribe", name, number)
            case Unsubscribe(number, _, failed):
                self._hear("unsubscribe", name, number, failed)
                ledger.unsubscribes(name, number, now_us + (self._successor_us if failed else 0))

    def _before_end(self, operation: Any) -> None:
        match operation:
            case messages.EndQueue(queue):
                self._hear("end", queue)
                self._ledger.ends(queue)
            case messages.EndAll():
                self._places.ends(self._world.now_us)
                self._ledger.ends_all()
            case messages.Flush(queue):
                self._hear("flush", queue)
                self._ledger.flushes(queue)
            case messages.Close():
                self._hear("close")
                self._ledger.closes()
            case Resize(members):
                self._hear("resize", "", *members.ranks)
                self._ledger.resizes(members)

    def _before_operation(self, operation: Any, client: str) -> None:
        name, number = self._names.of(client, operation.ticket)
        match operation:
            case messages.Get():
                self._asks(operation, name, number)
            case messages.Fill():
                self._hear("fill", name, number)
            case messages.Resend():
                self._hear("ask again", name, number)
            case messages.Withdraw():
                self._hear("withdraw", name, number)
            case messages.Arrive():
                self._ledger.arrived(name, number)
            case messages.Linger():
                self._ledger.waited(name, number)

    def _after(self, operation: Any, client: str, *, refused: bool) -> None:
        """Tell the books what a consumer has said, which may be refused."""
        ledger, name = self._ledger, self._names.processes.get(client, "")
        match operation:
            case Settle(generation, places, True):
                self._hear("acknowledge", name, generation, *(places or ()))
                ledger.leases.acknowledge(name, generation, places, refused=refused)
            case Settle(generation, places, _, delay_s):
                self._hear("give back", name, generation, *(places or ()))
                ledger.leases.give_back(name, generation, places, refused=refused, delayed=delay_s > 0)
            case DonePart(queue, index, step):
                self._hear("finish part", name, index, step)
                ledger.part_is_done(name, queue, index, step, refused=refused)
            case Subscribe(number, _, queue, maxsize, max_bytes):
                ledger.subscribes(name, number, TapTerms(queue, maxsize, max_bytes or 0))
            case GiveUpTap() if not refused:
                ledger.subscription_ends(self._world.latest_us)

    def _puts(self, put: messages.Put, client: str, item: Item) -> None:
        payload = item.payload
        name, number = self._names.of(client, put.ticket)
        self._put_arrives(name, number)
        if isinstance(payload, RemoteItem):
            self._remote[payload.at.holder.process_id, payload.at.number] = number
        # Of those that threads send by themselves each has one at most.
        is_direct = (name, put.ticket) in self._names.direct
        if put.size_bytes is None and not self._lies_elsewhere(payload) and not is_direct:
            self._ledger.bytes_arrive(name, number)

    def _lies_elsewhere(self, payload: Any) -> bool:
        """Whether what is put is not with the server: on a node, or in shared memory."""
        return isinstance(payload, RemoteItem) or getattr(payload, "block", None) is not None

    def _put_arrives(self, name: str, number: int) -> None:
        self._hear("put", name, number)
        self._ledger.put_arrives(name, number)

    def _delivers_again(self, out: list[Instruction], client: str, ticket: int) -> None:
        for each in out:
            if isinstance(each, Deliver) and each[:2] == (client, ticket):
                numbers = [self._names.number_of(item) for item in each.items]
                self._ledger.delivers_again(*self._names.of(client, ticket), numbers)

    def _asks(self, get: messages.Get[Any], name: str, number: int) -> None:
        queue_name = as_name(get.queue)
        if isinstance(get.grant, WantedPart):
            about = get.grant.index, get.grant.done_step, *get.grant.plan.numbers
            self._hear("get part", name, number, *about)
            self._ledger.part_arrives(name, number, queue_name, get.grant)
            return
        asked = Asked(
            get.limits is not None or get.batch_weight is not None,
            None if get.batch_weight is None else int(get.batch_weight),
            NO_LIMITS if get.limits is None else get.limits,
            get.wait,
            0 if get.grant is None else round(get.grant.ttl_s * 1e6),
            get.group_size,
        )
        self._hear("get", name, number)
        self._ledger.get_arrives(
            name, number, TAP if isinstance(queue_name, SubscriptionName) else queue_name, asked
        )

    def _moves(self, number: int, tell: Callable[..., None]) -> None:
        letter = self.policy(DeadLetters).letters.get(number)
        if letter is not None:
            item, queue_name = self._names.number_of(letter.item), letter.queue.name
            self._hear("move", item)
            tell(item, TAP if isinstance(queue_name, SubscriptionName) else queue_name)

    # -- inside --------------------------------------------------------------------------------------

    def _inside(self, act: Callable[..., Any], *args: Any, **options: Any) -> Any:
        was_inside, self._is_inside = self._is_inside, True
        try:
            return act(*args, **options)
        finally:
            self._is_inside = was_inside

    def _hear(self, what: str, who: object = "", *about: object) -> None:
        self._world.note(self.title, "hears", who, what, *about)

    def _follow_up(self, out: list[Instruction]) -> list[Instruction]:
        told = [self._in_words(each) for each in out if not isinstance(each, Bury | StopClock | Vacate)]
        for each in told:
            self._world.note(self.title, "says", *_short(each))
        self._ledger.follow(told, self, self._world.now_us)
        return out

    def _in_words(self, instruction: Any) -> Any:
        if isinstance(instruction, StartClock) and not instruction.client:
            return instruction
        name, number = self._names.of(instruction.client, instruction.ticket)
        told = instruction._replace(client=name, ticket=number)
        if isinstance(instruction, Deliver):
            return told._replace(items=[Told(self._names.number_of(item)) for item in instruction.items])
        return told


class _Watching:
    """What tells an oracle of each event of producers."""

    def __init__(
        self,
        world: World,
        places: ProducerOracle | GroupProducerOracle,
        names: Names,
        producers: int | str,
    ) -> None:
        super().__init__(producers)  # type: ignore[call-arg]  # those of a channel stand behind it
        self._world = world
        self._places = places
        self._who = names.processes

    def join(self, client: str, number: int, name: str, members: GroupRanks | None = None) -> bool:
        admitted: bool = super().join(client, number, name, members)  # type: ignore[misc]
        self._places.join(self._who[client], number, name, self._world.now_us, admitted=admitted)
        return admitted

    def leave(self, client: str, number: int, *, failed: bool) -> int | None:
        self._places.leave(self._who[client], number, self._world.now_us, failed=failed)
        vacancy: int | None = super().leave(client, number, failed=failed)  # type: ignore[misc]
        return vacancy

    def lose(self, client: str) -> list[int]:
        self._places.lose(self._who[client], self._world.now_us)
        vacancies: list[int] = super().lose(client)  # type: ignore[misc]
        return vacancies

    def give_up(self, vacancy: int) -> str | None:
        name: str | None = super().give_up(vacancy)  # type: ignore[misc]
        self._places.given_up(self._world.latest_us)
        return name

    def resize(self, members: GroupRanks) -> list[int]:
        self._places.resize(members)
        vacancies: list[int] = super().resize(members)  # type: ignore[misc]
        return vacancies


class WatchedProducers(_Watching, Producers):
    """The producers of a channel that counts them."""


class WatchedGroupProducers(_Watching, GroupProducers):
    """The producers of a channel that are the ranks of a group."""


def _short(instruction: Any) -> tuple[Any, ...]:
    words = (type(instruction).__name__, instruction.client, instruction.ticket)
    if isinstance(instruction, Deliver):
        return *words, *(item.payload for item in instruction.items)
    reason = getattr(instruction, "reason", None)
    return words if reason is None else (*words, reason.value)
