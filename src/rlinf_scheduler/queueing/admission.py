"""How old items may be when they are taken: which may be begun now, which may be taken, and when the version moves on.

A *version* of the policy takes so many items (`batch_items`), and then makes way for the next one. An item is begun
with a *slot*, which names the version that its maker begins it with, and the *latest* that may take it. A slot lives as
long as somebody holds it: who asked for it, a process that was sent a copy, or a copy that is in a queue, on lease, or
on its way. An item is *open* from its slot until it is taken for good. One rule keeps every promise:

    the items open that version D may be the latest to take are at most as many as the versions up to D still take,

for every D. It is looked at when a slot is wanted, when an item is to be taken, and when the version is to move on. So
what is begun is always taken in time, though nothing is thrown away; and what takes long is waited for before others
have used up the places that it needs. Items come in the order of their latest versions.

What was given out and may come back is open. As long as the version stays, it holds the place that it has taken; when
the version moves on it needs a place again, and where there would be none, the version waits until it is settled.
"""

from __future__ import annotations

import itertools
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable

from rlinf_scheduler.queueing.instructions import Accept, Deliver, Instruction, OnSlot, Reason, Refuse
from rlinf_scheduler.queueing.item import Item
from rlinf_scheduler.queueing.lanes import LanedFifo
from rlinf_scheduler.queueing.records import AdmissionRecord, Asked, Move, SlotRecord
from rlinf_scheduler.wording import counted

# When an item was given out: not at all (any more), to a version before a restart, or for good.
NOT_GIVEN, BEFORE, SETTLED = -1, -2, -3
Ticket = tuple[str, int]


class GrantedSlot:
    """Leave to make one item.

    Attributes:
        number: no other slot of the channel has it.
        owner: the client that asked for it, and the ticket of its operation; None if it has gone, or given it back.
        copies: by whom copies are held, and under which key; by "" those in a queue, on lease, or on their way.
        gone: the keys of such copies that are no more, perhaps before it was heard that they are.
        version: the one with which the item is made, or an earlier one than that.
        latest: the last version that may take the item.
        since: when it was given, on the clock of the state's shell.
        is_used: a put with it is under way.
    """

    __slots__ = ("copies", "gone", "is_used", "latest", "number", "owner", "since", "version")

    def __init__(self, number: int, owner: Ticket, version: int, latest: int, since: float) -> None:
        self.number = number
        self.owner: Ticket | None = owner
        self.version = version
        self.latest = latest
        self.since = since
        self.is_used = False
        self.copies: dict[Ticket, None] = {}
        self.gone: set[int] = set()

    def end_sent(self, key: int) -> None:
        """A copy that was sent is no more, whether it was heard of or not."""
        self.gone.add(key)
        self.copies.pop(("", key), None)


class Admission:
    """The slots of one queue, and its version.

    Args:
        next_number: numbers the slots.

    Attributes:
        version: the present one; None before the first was announced.
        batch_items: how many items a version takes.
        num_given: of the items of the present version, how many were given out and did not come back.
        worst_lag: how many versions the oldest item was behind when it was taken.
        num_returned: how many slots came back without an item.
        making: the slots that are out, by their numbers.
        asking: who waits for a slot, in order.
        moving: who waits for the version to move on.

    >>> admission, fifo, out = Admission(), LanedFifo(), []
    >>> admission.move("trainer:0", 1, Move(0, 2, True, 0.0), out)
    >>> for ticket in range(5):
    ...     admission.ask("maker:0", ticket, Asked(1, 0.0))
    >>> admission.serve(None, 0.0, out)
    >>> len(admission.making), len(admission.asking), admission.num_free(fifo)
    (4, 1, 0)
    """

    def __init__(self, next_number: Callable[[], int] | None = None) -> None:
        self._next_number = next_number or itertools.count(1).__next__
        self.version: int | None = None
        self.batch_items = 0
        self.num_given = 0
        self.worst_lag = 0
        self.num_returned = 0
        self.making: dict[int, GrantedSlot] = {}
        self.asking: OrderedDict[Ticket, Asked] = OrderedDict()
        self.moving: OrderedDict[Ticket, Move] = OrderedDict()
        self._owned: dict[Ticket, GrantedSlot] = {}
        # By the latest version that may take them: items that are open; and of these, what was given out and may come
        # back, to the present version and to earlier ones.
        self._open: Counter[int] = Counter()
        self._lent: Counter[int] = Counter()
        self._lent_before: Counter[int] = Counter()
        self._epoch = 0  # counts what `version` has been

    @property
    def idle(self) -> bool:
        """Nobody waits, and nothing is open."""
        return not (self.asking or self.moving or self.making or self._open)

    # -- slots -----------------------------------------------------------------------------------

    def ask(self, client: str, ticket: int, asked: Asked) -> None:
        """Stand in line for a slot; `serve` serves the line."""
        self.asking[client, ticket] = asked

    def serve(self, room: int | None, now: float, out: list[Instruction]) -> None:
        """Give slots while it can be, at most so many; let the version move on first."""
        self._move_on(out)
        while self.asking and (room is None or room > 0):
            owner, asked = next(iter(self.asking.items()))
            if self.version is None or not self._may_begin(self.version + asked.max_lag):
                return
            del self.asking[owner]
            slot = GrantedSlot(self._next_number(), owner, self.version, self.version + asked.max_lag, now)
            self.making[slot.number] = self._owned[owner] = slot
            self._open[slot.latest] += 1
            out.append(Deliver(*owner, [], slot=OnSlot(slot.number, slot.version)))
            room = None if room is None else room - 1

    def withdraw(self, client: str, ticket: int) -> str:
        """Nobody wants an operation any more, or its slot; what was waited for, empty if there is no such operation."""
        owner, state = (client, ticket), self.describe()
        if self.asking.pop(owner, None) or self.moving.pop(owner, None):
            return state
        slot = self._owned.pop(owner, None)
        if slot is None:
            return ""
        slot.owner = None
        self._drop_unwanted(slot)
        return state

    def lose(self, client: str) -> None:
        """A client is gone, and with it what it has asked for."""
        for owner in [*self.asking, *self.moving, *self._owned]:
            if owner[0] == client:
                self.withdraw(*owner)
        for slot in list(self.making.values()):
            if any(holder == client for holder, _ in slot.copies):
                slot.copies = {copy: None for copy in slot.copies if copy[0] != client}
                self._drop_unwanted(slot)

    def hold(self, number: int, client: str, key: int, source: int = 0) -> None:
        """A client holds a copy of a slot; "" for one that is in a queue, on lease, or on its way.

        With `source`, what was sent as that is this one from now on, and ends with its client.
        """
        slot = self.making.get(number)
        if slot is not None and (client or key not in slot.gone):
            slot.copies[client, key] = None
            if source:
                slot.end_sent(source)

    def let_go(self, number: int, client: str, key: int, source: int) -> None:
        """A client holds a copy no more; `source` is the one that was sent, if that is no more either, or 0."""
        slot = self.making.get(number)
        if slot is None:
            return
        slot.copies.pop((client, key), None)
        if source:
            slot.end_sent(source)
        self._drop_unwanted(slot)

    def why_over(self, number: int) -> str:
        """Why nothing can be put with a slot any more; empty if something can, and where there is none."""
        if not number or number in self.making:
            return ""
        return f"slot {number} is over: an item was put with it, or it was given back"

    def use(self, item: Item, number: int) -> None:
        """A put of an item with a slot that is not over has begun.

        Raises:
            ValueError: there is none, another put uses it, or the item was made with an earlier version.
        """
        if not number:
            message = "this queue admits: put(item, slot=channel.admit(max_lag=...))"
            raise ValueError(message)
        slot = self.making[number]
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
        item.slot = slot

    def unuse(self, slot: GrantedSlot) -> None:
        """A put with a slot has put nothing."""
        slot.is_used = False
        self._drop_unwanted(slot)

    def enter(self, item: Item) -> None:
        """An item that is put with a slot is in the queue."""
        slot: GrantedSlot = item.slot
        item.latest, item.slot = slot.latest, None
        self.making.pop(slot.number, None)
        if slot.owner is not None:
            self._owned.pop(slot.owner, None)

    def end(self, reason: Reason, state: str, out: list[Instruction]) -> None:
        """Nothing more is put: what is in the making is not waited for, but for puts that are under way."""
        for client, ticket in self.asking:
            out.append(Refuse(client, ticket, reason, state))
        self.asking.clear()
        num_returned = self.num_returned
        for slot in list(self.making.values()):
            slot.copies.clear()
            if slot.owner is None:
                self._drop_unwanted(slot)
        for owner in list(self._owned):
            self.withdraw(*owner)
        self.num_returned = num_returned  # they were not given back

    def _drop_unwanted(self, slot: GrantedSlot) -> None:
        if slot.owner is None and not slot.copies and not slot.is_used:
            del self.making[slot.number]
            _count_off(self._open, slot.latest)
            self.num_returned += 1

    # -- items -----------------------------------------------------------------------------------

    @property
    def num_left(self) -> int:
        """How many items the present version still takes."""
        return max(0, self.batch_items - self.num_given)

    def num_free(self, fifo: LanedFifo) -> int:
        """How many of the first items of the queue may be taken now."""
        left = self.num_left
        num_free = min(left, fifo.num_items)
        if not num_free or self.version is None:
            return 0
        num_open = num_here = 0
        for latest in sorted(self._open):
            num_open += self._open[latest] - self._lent.get(latest, 0)
            num_here += fifo.num_in_lane(latest)
            # Those that are not here keep their places; what is older than them may go.
            places = left + (latest - self.version) * self.batch_items - (num_open - num_here)
            num_free = min(num_free, max(num_here, places))
        return num_free

    def check_batch(self, min_items: int) -> None:
        """Raise ValueError if no version takes so many items."""
        if 0 < self.batch_items < min_items:
            message = f"a version takes {self.batch_items} items, and no batch has {min_items}"
            raise ValueError(message)

    def give(self, items: Iterable[Item]) -> None:
        """Items are taken, and may come back."""
        version = self.version or 0
        for item in items:
            self.num_given += 1
            item.given_in = self._epoch
            self._lent[item.latest] += 1
            if item.version is not None:
                self.worst_lag = max(self.worst_lag, version - item.version)

    def settle(self, items: Iterable[Item]) -> None:
        """Items were given, or lost, for good."""
        for item in items:
            if item.given_in != SETTLED:
                self._unlend(item)
                _count_off(self._open, item.latest)
                item.given_in = SETTLED

    def come_back(self, items: Iterable[Item]) -> None:
        """Items that were given are in the queue again."""
        for item in items:
            self.num_given -= self.is_lent(item)
            self._unlend(item)

    def reopen(self, item: Item) -> None:
        """An item that was settled comes to the queue once more.

        Raises:
            ValueError: it would not be taken in time.
        """
        if not self._may_begin(item.latest):
            message = (
                f"version {item.latest} is the last that may take it, and {self.version} is the present one: "
                "there is no place for it"
            )
            raise ValueError(message)
        item.given_in = NOT_GIVEN
        self._open[item.latest] += 1

    def _unlend(self, item: Item) -> None:
        if item.given_in != NOT_GIVEN:
            _count_off(self._lent if self.is_lent(item) else self._lent_before, item.latest)
            item.given_in = NOT_GIVEN

    def _may_begin(self, latest: int) -> bool:
        """Whether one more item, which this version is the latest to take, will be taken in time."""
        version, left = self.version or 0, self.num_left
        if latest < version:
            return False
        num = 1
        for each in sorted({*self._open, latest}):
            num += self._open.get(each, 0) - self._lent.get(each, 0)
            if each >= latest and num > left + (each - version) * self.batch_items:
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
        """The version is to move on, or, for a trainer that `begins`, to be this one from now on, whatever it was.

        Raises:
            ValueError: it goes back, or it is not known how many items a version takes.
        """
        if not (move.batch_items or self.batch_items):
            message = "how many items does a version take? the first set_version says so: batch_items=n"
            raise ValueError(message)
        if self.version is not None and move.version < self.version and not move.begins:
            message = (
                f"the version is {self.version}, and does not go back to {move.version}; a trainer that begins anew, "
                "from a checkpoint, says so: begins=True"
            )
            raise ValueError(message)
        self.moving[client, ticket] = move
        self._move_on(out)

    def _move_on(self, out: list[Instruction]) -> None:
        for who, move in list(self.moving.items()):
            problem = self._try(move)
            if problem is None:
                continue
            del self.moving[who]
            out.append(Refuse(*who, Reason.TOO_EARLY, problem) if problem else Accept(*who))

    def _try(self, move: Move) -> str | None:
        """Move on if that can be; None if it may be after a while, else why it cannot."""
        batch_items = move.batch_items or self.batch_items
        moves = self.version is None or move.begins or move.version > self.version
        if not moves and move.version < (self.version or 0):
            return f"it is {self.version} by now"
        if not moves and batch_items == self.batch_items:
            return ""
        # What stays at its version keeps what it has taken, and what has taken it.
        left = batch_items if moves else max(0, batch_items - self.num_given)
        needy = self._open if moves else self._open - self._lent
        if not self._has_places(needy, move.version, left, batch_items):
            certain = self._open - self._lent - self._lent_before
            if moves and self._has_places(certain, move.version, left, batch_items):
                return None
            return self._why_too_early(move.version, batch_items)
        self.batch_items = batch_items
        if moves:
            self.version = move.version
            self._epoch += 1
            self.num_given = 0
            self._lent_before.update(self._lent)
            self._lent.clear()
        return ""

    # -- for checkpoints -------------------------------------------------------------------------

    def is_lent(self, item: Item) -> bool:
        """Whether the present version was given an item, which may come back."""
        return item.given_in == self._epoch

    def contents(self) -> AdmissionRecord:
        """Return it as a record."""
        slots = [
            SlotRecord(
                slot.number,
                *(slot.owner or ("", 0)),
                slot.version,
                slot.latest,
                slot.since,
                list(slot.copies),
                sorted(slot.gone),
            )
            for slot in self.making.values()
        ]
        asking = [(*who, asked) for who, asked in self.asking.items()]
        moving = [(*who, move) for who, move in self.moving.items()]
        about = self.version, self.batch_items, self.num_given, self.worst_lag
        return AdmissionRecord(*about, slots, asking, moving, self.num_returned)

    def load(self, record: AdmissionRecord, items: Iterable[Item]) -> None:
        """Take what `contents` gave, and these items that are in the queue; it must be new."""
        self.version, self.batch_items, self.num_given, self.worst_lag, slots, asking, moving = record[:7]
        self.num_returned = record.num_returned
        for number, client, ticket, version, latest, since, copies, gone in slots:
            owner = client, ticket
            slot = self.making[number] = GrantedSlot(number, owner, version, latest, since)
            slot.copies, slot.gone = dict.fromkeys(copies), set(gone)
            if client:
                self._owned[owner] = slot
            else:
                slot.owner = None
            self._open[latest] += 1
        for client, ticket, asked in asking:
            self.asking[client, ticket] = asked
        for client, ticket, move in moving:
            self.moving[client, ticket] = move
        self._open.update(item.latest for item in items)

    def load_given(self, items: Iterable[Item]) -> None:
        """Take items that were given out, and may come back."""
        for item in items:
            self._open[item.latest] += 1
            if self.is_lent(item):
                self._lent[item.latest] += 1
            else:
                item.given_in = BEFORE
                self._lent_before[item.latest] += 1

    # -- words -----------------------------------------------------------------------------------

    def _why_too_early(self, version: int, batch_items: int) -> str:
        places = batch_items
        num_open = most = 0
        for latest, num in sorted((self._open - self._lent - self._lent_before).items()):
            num_open += num
            most = max(most, num_open - max(0, places + (latest - version) * batch_items))
        making = f", {self._makers()}" if self.making else ""
        return (
            f"it is {self.version}, which has taken {self.num_given} of its {self.batch_items} items, and has to take "
            f"{most} more: with version {version} they would be older than they may be{making}"
        )

    def describe(self) -> str:
        """How far it is, and what is waited for, in a phrase."""
        if self.version is None:
            return "no version yet: the trainer says which it is at by set_version"
        parts = [f"version {self.version} has taken {self.num_given} of {self.batch_items} items"]
        if not self.num_left:
            parts.append("the next ones wait for set_version")
        if self.making:
            parts.append(self._makers())
        if self.asking:
            parts.append(f"{counted(len(self.asking), 'admit')} waiting until items are taken")
        if self.num_returned:
            parts.append(f"{counted(self.num_returned, 'slot')} came back unused")
        for move in self.moving.values():
            unsettled = sum(self._lent.values()) + sum(self._lent_before.values())
            parts.append(f"set_version({move.version}) waits for {counted(unsettled, 'item')} to be settled")
        return ", ".join(parts)

    def _makers(self) -> str:
        oldest = min(slot.version for slot in self.making.values())
        return f"{counted(len(self.making), 'item')} in the making, the oldest of version {oldest}"


def _count_off(counts: Counter[int], latest: int) -> None:
    counts[latest] -= 1
    if not counts[latest]:
        del counts[latest]
