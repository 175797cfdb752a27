"""How old items may be when they are taken: which may be begun now, which may be taken, and when the version moves on.

A *version* of the policy takes so many items (`batch_items`), and then makes way for the next one. An item is begun
with a *slot*, which names the version that its maker begins it with, and the *latest* that may take it. A slot lives as
long as somebody holds it: who asked for it, a process that was sent a copy, or a copy that is in a queue, lent, or
on its way. An item is *open* from its slot until it is taken for good. One rule keeps every promise:

    the items open that version D may be the latest to take are at most as many as the versions up to D still take,

for every D. It is looked at when a slot is wanted, when an item is to be taken, and when the version is to move on. So
what is begun is always taken in time, though nothing is thrown away; and what takes long is waited for before others
have used up the places that it needs. Items come in the order of their latest versions.

What was given out and may come back is open. As long as the version stays, it holds the place that it has taken; when
the version moves on it needs a place again, and where there would be none, the version waits until it is settled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, ClassVar, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from rlinf_scheduler.queueing.gate import Gate, GatedQueue
from rlinf_scheduler.queueing.item import NOT_GIVEN, SETTLED, Item
from rlinf_scheduler.queueing.lanes import LanedFifo
from rlinf_scheduler.queueing.messages import Accept, Deliver, Instruction, Reason, Refuse
from rlinf_scheduler.queueing.queue import Queue
from rlinf_scheduler.queueing.queue_set import QueueSet
from rlinf_scheduler.queueing.saved_items import SavedItems
from rlinf_scheduler.queueing.wanted import Wanted, WantedGroup
from rlinf_scheduler.wording import counted

Ticket = tuple[str, int]


class OnSlot(NamedTuple):
    """Leave to make an item: which slot, and with which version, at least.

    It is its owner's until an item is put with it, or it is withdrawn.
    """

    number: int
    version: int

    def told(self, _items: list[Item]) -> tuple[Any, ...]:
        """Return it as its getter is told."""
        return self


class GrantedSlot(Struct, eq=False, array_like=True):
    """Leave to make one item.

    Attributes:
        owner: the client that asked for it, and the ticket of its operation; None if it has gone, or given it back.
        version: the one with which the item is made, or an earlier one than that; latest: the last that may take it.
        is_used: a put with it is under way.
        copies: by whom copies are held, and under which key; by "" those in a queue, lent, or on their way.
        gone: the keys of such copies that are no more, perhaps before it was heard that they are.
    """

    number: int
    owner: Ticket | None
    version: int
    latest: int
    since: float
    is_used: bool = False
    copies: dict[Ticket, None] = {}
    gone: set[int] = set()

    def end_sent(self, key: int) -> None:
        """Note that a copy that was sent is no more, whether it was heard of or not."""
        self.gone.add(key)
        self.copies.pop(("", key), None)


class PermitRequest(NamedTuple):
    """Somebody waits for a slot."""

    max_lag: int
    since: float


class Move(NamedTuple):
    """Somebody wants the version to move on.

    Attributes:
        batch_items: how many items a version takes; 0 for as many as before.
        begins: it begins (again) with this version, whatever the last one was.
    """

    version: int
    batch_items: int = 0
    begins: bool = False
    since: float = 0.0


class VersionState(Struct, eq=False, array_like=True):
    """The version of a queue, its slots, and those who wait for either.

    Attributes:
        version: the present one; None before the first was announced.
        num_given: of the items of the present version, how many were given out and did not come back.
        worst_lag: how many versions the oldest item was behind when it was taken.
        num_returned: how many slots came back without an item.
        epoch: counts what `version` has been.
        making: the slots that are out, by their numbers.
        asking: who waits for a slot, in order; moving: who waits for the version to move on.
    """

    version: int | None = None
    batch_items: int = 0
    num_given: int = 0
    worst_lag: int = 0
    num_returned: int = 0
    epoch: int = 0
    making: dict[int, GrantedSlot] = {}
    asking: dict[Ticket, PermitRequest] = {}
    moving: dict[Ticket, Move] = {}


class VersionGate(Gate):
    """The gate of a queue with versions.

    Attributes:
        kept: what there is to know of it.
    """

    __slots__ = ("_lanes", "_lent", "_lent_before", "_open", "_owned", "_queues", "kept", "queue")

    is_plain: ClassVar[bool] = False
    keeps_rest: ClassVar[bool] = True
    lanes_type: ClassVar[type[LanedFifo]] = LanedFifo

    def __init__(self, queue: Queue, queues: QueueSet) -> None:
        super().__init__(queue.gate.maxsize, queue.gate.max_bytes)
        self.queue = queue
        self.kept = VersionState()
        self._queues = queues
        self._owned: dict[Ticket, GrantedSlot] = {}
        # By the latest version that may take them: items that are open; and of these, what was given out and may come
        # back, to the present version and to earlier ones.
        self._open: Counter[int] = Counter()
        self._lent: Counter[int] = Counter()
        self._lent_before: Counter[int] = Counter()
        self._lanes = self.lanes_type(queue.tally.clock)
        self._lanes.num_entered, queue.fifo = queue.fifo.num_entered, self._lanes

    # -- room ------------------------------------------------------------------------------------

    def is_full_of_items(self, queue: GatedQueue) -> bool:
        """Return False: a slot has room for its item."""
        return False

    def has_room(self, queue: GatedQueue, size_bytes: int) -> bool:
        """Return whether an item of this size may enter: also if what is here waits for it."""
        if queue.awaited and self.num_free(queue) < min(queue.fifo.num_items, self.num_left):
            return True
        return super().has_room(queue, size_bytes)

    # -- slots -----------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Nobody waits, nothing is open, and no more is put."""
        kept = self.kept
        return self.queue.ended and not (kept.asking or kept.moving or kept.making or self._open)

    def serve(self, out: list[Instruction]) -> None:
        """Give slots while it can be; let the version move on first."""
        self._move_on(out)
        kept, room = self.kept, self._room()
        while kept.asking and (room is None or room > 0):
            owner, asked = next(iter(kept.asking.items()))
            if kept.version is None or not self._may_begin(kept.version + asked.max_lag):
                return
            del kept.asking[owner]
            number, now = self._queues.next_number(), self.queue.tally.clock.now
            slot = GrantedSlot(number, owner, kept.version, kept.version + asked.max_lag, now)
            kept.making[number] = self._owned[owner] = slot
            self._open[slot.latest] += 1
            out.append(Deliver(*owner, [], grant=OnSlot(number, slot.version)))
            room = None if room is None else room - 1

    def _room(self) -> int | None:
        """How many slots have room for their items; None for any number."""
        return self.maxsize - self.queue.num_here - len(self.kept.making) if self.maxsize else None

    def withdraw(self, client: str, ticket: int) -> str:
        """Forget an operation, or its slot; return what was waited for, empty if there is no such operation."""
        owner, state = (client, ticket), ", ".join(self.describe())
        if self.kept.asking.pop(owner, None) or self.kept.moving.pop(owner, None):
            return state
        slot = self._owned.pop(owner, None)
        if slot is None:
            return ""
        slot.owner = None
        self._drop_unwanted(slot)
        return state

    def lose(self, client: str) -> None:
        """Forget a client that is gone, and what it has asked for."""
        for owner in [*self.kept.asking, *self.kept.moving, *self._owned]:
            if owner[0] == client:
                self.withdraw(*owner)
        for slot in list(self.kept.making.values()):
            if any(holder == client for holder, _ in slot.copies):
                slot.copies = {copy: None for copy in slot.copies if copy[0] != client}
                self._drop_unwanted(slot)

    def hold(self, number: int, client: str, key: int, source: int = 0) -> None:
        """Note that a client holds a copy of a slot; "" for one that is in a queue, lent, or on its way.

        With `source`, what was sent as that is this one from now on, and ends with its client.
        """
        slot = self.kept.making.get(number)
        if slot is not None and (client or key not in slot.gone):
            slot.copies[client, key] = None
            if source:
                slot.end_sent(source)

    def let_go(self, number: int, client: str, key: int, source: int) -> None:
        """Note that a client holds a copy no more; `source`: the one that was sent, if that is no more either, or 0."""
        slot = self.kept.making.get(number)
        if slot is None:
            return
        slot.copies.pop((client, key), None)
        if source:
            slot.end_sent(source)
        self._drop_unwanted(slot)

    def begin_put(self, queue: GatedQueue, item: Item) -> str:
        """Let a put with a slot begin; return why that is over, if it is.

        Raises:
            ValueError: there is none, another put uses it, or the item was made with an earlier version.
        """
        number = item.slot
        if not number:
            message = "this queue admits: put(item, slot=channel.admit(max_lag=...))"
            raise ValueError(message)
        slot = self.kept.making.get(number)
        if slot is None:
            return f"slot {number} is over: an item was put with it, or it was given back"
        if slot.is_used:
            message = f"slot {number} is used by another put"
            raise ValueError(message)
        if item.version is None:
            item.version = slot.version
        elif item.version < slot.version:
            message = (
                f"version {item.version} is too old for slot {number}, which is of version {slot.version}"
            )
            raise ValueError(message)
        slot.is_used = True
        return ""

    def drop_put(self, item: Item) -> None:
        """Note that a put has put nothing, and its slot may be used by another one."""
        slot = self.kept.making[item.slot]
        slot.is_used = False
        self._drop_unwanted(slot)

    def enter(self, item: Item) -> None:
        """Note that an item is in the queue, and its slot is over."""
        slot = self.kept.making.pop(item.slot)
        item.latest, item.slot = slot.latest, 0
        if slot.owner is not None:
            self._owned.pop(slot.owner, None)

    def end(self, reason: Reason, state: str, out: list[Instruction]) -> None:
        """Note that nothing more is put: what is in the making is not waited for, but for puts that are under way."""
        for client, ticket in self.kept.asking:
            out.append(Refuse(client, ticket, reason, state))
        self.kept.asking.clear()
        num_returned = self.kept.num_returned
        for slot in list(self.kept.making.values()):
            slot.copies.clear()
            if slot.owner is None:
                self._drop_unwanted(slot)
        for owner in list(self._owned):
            self.withdraw(*owner)
        self.kept.num_returned = num_returned  # they were not given back

    def _drop_unwanted(self, slot: GrantedSlot) -> None:
        if slot.owner is None and not slot.copies and not slot.is_used:
            del self.kept.making[slot.number]
            _count_off(self._open, slot.latest)
            self.kept.num_returned += 1

    # -- items -----------------------------------------------------------------------------------

    @property
    def num_left(self) -> int:
        """How many items the present version still takes."""
        return max(0, self.kept.batch_items - self.kept.num_given)

    def num_free(self, queue: GatedQueue) -> int:
        """Return how many of the first items may be taken now."""
        left, lanes, kept = self.num_left, self._lanes, self.kept
        num_free = min(left, lanes.num_items)
        if not num_free or kept.version is None:
            return 0
        num_open = num_here = 0
        for latest in sorted(self._open):
            num_open += self._open[latest] - self._lent.get(latest, 0)
            num_here += lanes.num_in_lane(latest)
            # Those that are not here keep their places; what is older than them may go.
            places = left + (latest - kept.version) * kept.batch_items - (num_open - num_here)
            num_free = min(num_free, max(num_here, places))
        return num_free

    def ends_after(self, num_free: int) -> bool:
        """Return whether the version ends with so many items: a batch is of one version."""
        return num_free == self.num_left

    def check(self, wanted: Wanted | WantedGroup | None) -> None:
        """Raise ValueError if no version takes so many items, or a group is wanted."""
        if isinstance(wanted, WantedGroup):
            message = "it gives slots, each for one item: collect groups before, in another queue"
            raise ValueError(message)  # noqa: TRY004 - it may be wanted, of another queue
        if wanted is not None and 0 < self.kept.batch_items < wanted.limits.min_items:
            message = (
                f"a version takes {self.kept.batch_items} items, and no batch has {wanted.limits.min_items}"
            )
            raise ValueError(message)

    def give(self, items: Iterable[Item]) -> None:
        """Note that items are given out, and may come back."""
        kept = self.kept
        for item in items:
            kept.num_given += 1
            item.given_in = kept.epoch
            self._lent[item.latest] += 1
            if item.version is not None:
                kept.worst_lag = max(kept.worst_lag, (kept.version or 0) - item.version)

    def forget(self, items: Iterable[Item]) -> None:
        """Note that items are given, or lost, for good."""
        for item in items:
            if item.given_in != SETTLED:
                self._unlend(item)
                _count_off(self._open, item.latest)
                item.given_in = SETTLED

    def take_back(self, items: Iterable[Item]) -> None:
        """Note that items come back which were given out."""
        for item in items:
            self.kept.num_given -= self.is_lent(item)
            self._unlend(item)

    def reopen(self, item: Item) -> None:
        """Note that an item that was given for good comes to the queue once more.

        Raises:
            ValueError: it would not be taken in time.
        """
        if not self._may_begin(item.latest):
            message = (
                f"version {item.latest} is the last that may take it, and {self.kept.version} is the present one: "
                "there is no place for it"
            )
            raise ValueError(message)
        item.given_in = NOT_GIVEN
        self._open[item.latest] += 1

    def _unlend(self, item: Item) -> None:
        if item.given_in != NOT_GIVEN:
            _count_off(self._lent if self.is_lent(item) else self._lent_before, item.latest)
            item.given_in = NOT_GIVEN

    def is_lent(self, item: Item) -> bool:
        """Return whether the present version was given an item, which may come back."""
        return item.given_in == self.kept.epoch

    def _may_begin(self, latest: int) -> bool:
        """Whether one more item, which this version is the latest to take, will be taken in time."""
        version, left = self.kept.version or 0, self.num_left
        if latest < version:
            return False
        num = 1
        for each in sorted({*self._open, latest}):
            num += self._open.get(each, 0) - self._lent.get(each, 0)
            if each >= latest and num > left + (each - version) * self.kept.batch_items:
                return False
        return True

    @staticmethod
    def _has_places(items: Counter[int], version: int, left: int, batch_items: int) -> bool:
        """Whether items are taken in time, when the version takes so many more, and each later one `batch_items`."""
        num = 0
        for latest in sorted(items):
            num += items[latest]
            if num > left + (latest - version) * batch_items:
                return False
        return True

    # -- the version -----------------------------------------------------------------------------

    def move(self, client: str, ticket: int, move: Move, out: list[Instruction]) -> None:
        """Let the version move on, or, for a trainer that `begins`, be this one from now on, whatever it was.

        Raises:
            ValueError: it goes back, or it is not known how many items a version takes.
        """
        if not (move.batch_items or self.kept.batch_items):
            message = "how many items does a version take? the first set_version says so: batch_items=n"
            raise ValueError(message)
        if self.kept.version is not None and move.version < self.kept.version and not move.begins:
            message = (
                f"the version is {self.kept.version}, and does not go back to {move.version}; a trainer that begins "
                "anew, from a checkpoint, says so: begins=True"
            )
            raise ValueError(message)
        self.kept.moving[client, ticket] = move
        self._move_on(out)

    def _move_on(self, out: list[Instruction]) -> None:
        for who, move in list(self.kept.moving.items()):
            problem = self._try(move)
            if problem is None:
                continue
            del self.kept.moving[who]
            out.append(Refuse(*who, Reason.TOO_EARLY, problem) if problem else Accept(*who))

    def _try(self, move: Move) -> str | None:
        """Move on if that can be; None if it may be after a while, else why it cannot."""
        batch_items = move.batch_items or self.kept.batch_items
        moves = self.kept.version is None or move.begins or move.version > self.kept.version
        if not moves and move.version < (self.kept.version or 0):
            return f"it is {self.kept.version} by now"
        if not moves and batch_items == self.kept.batch_items:
            return ""
        # What stays at its version keeps what it has taken, and what has taken it.
        left = batch_items if moves else max(0, batch_items - self.kept.num_given)
        needy = self._open if moves else self._open - self._lent
        if not self._has_places(needy, move.version, left, batch_items):
            certain = self._open - self._lent - self._lent_before
            if moves and self._has_places(certain, move.version, left, batch_items):
                return None
            return self._why_too_early(move.version, batch_items)
        self.kept.batch_items = batch_items
        if moves:
            self.kept.version = move.version
            self.kept.epoch += 1
            self.kept.num_given = 0
            self._lent_before.update(self._lent)
            self._lent.clear()
        return ""

    # -- for snapshots ---------------------------------------------------------------------------

    def save(self, items: SavedItems) -> VersionState:
        """Return what is kept, as data."""
        kept = self.kept
        if items.at_rest:
            num_given = kept.num_given - sum(self.is_lent(item) for item in items.back[self.queue])
            return replace(kept, num_given=num_given, making={}, asking={}, moving={})
        making = {
            number: replace(slot, copies=dict(slot.copies), gone=set(slot.gone))
            for number, slot in kept.making.items()
        }
        return replace(kept, making=making, asking=dict(kept.asking), moving=dict(kept.moving))

    def load(self, kept: VersionState) -> None:
        """Take what was kept of another gate; this one must be new."""
        self.kept = kept
        self._owned = {slot.owner: slot for slot in kept.making.values() if slot.owner is not None}
        self._open.update(slot.latest for slot in kept.making.values())

    def load_items(self, items: Iterable[Item]) -> None:
        """Take items that are here, or were given out and may come back."""
        for item in items:
            self._open[item.latest] += 1
            if item.given_in != NOT_GIVEN:
                (self._lent if self.is_lent(item) else self._lent_before)[item.latest] += 1

    # -- words -----------------------------------------------------------------------------------

    def _why_too_early(self, version: int, batch_items: int) -> str:
        places = batch_items
        num_open = most = 0
        for latest, num in sorted((self._open - self._lent - self._lent_before).items()):
            num_open += num
            most = max(most, num_open - max(0, places + (latest - version) * batch_items))
        kept, making = self.kept, f", {self._makers()}" if self.kept.making else ""
        return (
            f"it is {kept.version}, which has taken {kept.num_given} of its {kept.batch_items} items, and has to take "
            f"{most} more: with version {version} they would be older than they may be{making}"
        )

    def describe(self) -> Iterator[str]:
        """Yield how far it is, and what is waited for, in phrases."""
        kept = self.kept
        if kept.version is None:
            yield "no version yet: the trainer says which it is at by set_version"
            return
        yield f"version {kept.version} has taken {kept.num_given} of {kept.batch_items} items"
        if not self.num_left:
            yield "the next ones wait for set_version"
        if kept.making:
            yield self._makers()
        if kept.asking:
            yield f"{counted(len(kept.asking), 'admit')} waiting until items are taken"
        if kept.num_returned:
            yield f"{counted(kept.num_returned, 'slot')} came back unused"
        for move in kept.moving.values():
            unsettled = sum(self._lent.values()) + sum(self._lent_before.values())
            yield f"set_version({move.version}) waits for {counted(unsettled, 'item')} to be settled"

    def waiting(self, most: int) -> Iterator[tuple[str, str, float]]:
        """Yield those who wait for a version or a slot: a client, for what, and since when."""
        for (client, _), move in self.kept.moving.items():
            yield client, f"set_version({move.version})", move.since
        for (client, _), wish in islice(self.kept.asking.items(), most):
            yield client, f"admit with max_lag {wish.max_lag}", wish.since

    def given(self, most: int) -> Iterator[tuple[str, str, float]]:
        """Yield the first slots that are out, which are the oldest: the client, what it has, and since when."""
        for slot in islice(self.kept.making.values(), most):
            holders = [client for client, _ in ([slot.owner] if slot.owner else list(slot.copies)) if client]
            until = f", taken up to version {slot.latest}" if slot.latest > slot.version else ""
            if not holders and slot.copies:
                until += ", of which a copy was sent, and nobody has it now"
            what = f"slot {slot.number}, for an item of version {slot.version}{until}"
            yield holders[0] if holders else "", what, slot.since

    def _makers(self) -> str:
        oldest = min(slot.version for slot in self.kept.making.values())
        return f"{counted(len(self.kept.making), 'item')} in the making, the oldest of version {oldest}"


def _count_off(counts: Counter[int], latest: int) -> None:
    counts[latest] -= 1
    if not counts[latest]:
        del counts[latest]
