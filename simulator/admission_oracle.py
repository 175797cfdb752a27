"""A queue that admits as it must be: who has slots, what is open, what may be begun, taken and announced."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from rlinf_scheduler.queueing.messages import Accept, Deliver, Instruction, Reason, Refuse
from rlinf_scheduler.queueing.version_gate import OnSlot
from simulator.world import Violation

Ticket = tuple[str, int]


@dataclass(slots=True)
class _Item:
    latest: int
    given_to: Ticket | None = None
    given_in: int = -1


@dataclass(slots=True)
class AdmissionOracle:
    """Follows every slot and every item, by the rule as it is written: no counts are kept, all is counted anew.

    Attributes:
        version: the present one; -1 before the first.
        open: items that are not taken for good.
        num_accepted: items put; num_taken: items taken for good.
    """

    version: int = -1
    batch_items: int = 0
    open: dict[int, _Item] = field(default_factory=dict)
    num_accepted: int = 0
    num_taken: int = 0
    _epoch: int = 0
    _num_settled: int = 0  # of the present version
    _ended: bool = False
    _slots: dict[int, tuple[set[Ticket], int]] = field(
        default_factory=dict
    )  # who holds each, and its last version
    _gone: set[tuple[int, int]] = field(default_factory=set)  # copies that were sent, by slot and key
    _asking: OrderedDict[Ticket, int] = field(default_factory=OrderedDict)
    _taking: OrderedDict[Ticket, int] = field(default_factory=OrderedDict)
    _moving: OrderedDict[Ticket, tuple[int, int, bool]] = field(default_factory=OrderedDict)
    _puts: dict[Ticket, tuple[int, int]] = field(default_factory=dict)

    # -- what the server hears -------------------------------------------------------------------

    def asks(self, who: Ticket, max_lag: int) -> None:
        """Somebody wants a slot."""
        self._asking[who] = max_lag

    def puts(self, who: Ticket, item: int, slot: int) -> None:
        """Somebody puts an item with a slot."""
        self._puts[who] = item, slot

    def takes(self, who: Ticket, num_items: int) -> None:
        """Somebody wants so many items."""
        self._taking[who] = num_items

    def moves(self, who: Ticket, version: int, batch_items: int, *, begins: bool) -> None:
        """Somebody says a version."""
        self._moving[who] = version, batch_items, begins

    def settles(self, who: Ticket) -> None:
        """What was given to somebody is taken for good."""
        for number, item in list(self.open.items()):
            if item.given_to == who:
                del self.open[number]
                self.num_taken += 1
                self._num_settled += item.given_in == self._epoch

    def comes_back(self, who: Ticket) -> None:
        """What was given to somebody, or what it waits for, it wants no more."""
        for item in self.open.values():
            if item.given_to == who:
                item.given_to = None
        for waiting in (self._asking, self._taking, self._moving):
            waiting.pop(who, None)
        self._drop_holders(lambda holder: holder == who)

    def holds(self, number: int, holder: Ticket) -> None:
        """A copy of a slot is held."""
        if number in self._slots and (holder[0] or (number, holder[1]) not in self._gone):
            self._slots[number][0].add(holder)

    def lets_go(self, number: int, holder: Ticket, source: int) -> None:
        """A copy is held no more, nor that which it was made of."""
        self._gone.add((number, source))
        if number in self._slots:
            self._slots[number][0].difference_update((holder, ("", source)))
        self._drop_holders(lambda _holder: False)

    def _drop_holders(self, is_gone: Callable[[Ticket], bool]) -> None:
        held = {
            number: ({each for each in holders if not is_gone(each)}, latest)
            for number, (holders, latest) in self._slots.items()
        }
        self._slots = {number: slot for number, slot in held.items() if slot[0]}

    def loses(self, client: str) -> None:
        """A client is gone."""
        owners = [holder for holders, _ in self._slots.values() for holder in holders]
        given = [item.given_to for item in self.open.values() if item.given_to is not None]
        for who in [*self._asking, *self._taking, *self._moving, *owners, *given]:
            if who[0] == client:
                self.comes_back(who)

    def ends(self) -> None:
        """Nothing more is put."""
        self._slots.clear()
        self._ended = True

    # -- what the server says --------------------------------------------------------------------

    def follow(self, instructions: Iterable[Instruction]) -> None:
        """Check what the server says after an event, and that it has forgotten nobody."""
        for each in instructions:
            who = each.client, each.ticket
            if isinstance(each, Deliver) and isinstance(each.grant, OnSlot):
                self._give_slot(who, *each.grant)
            elif isinstance(each, Deliver):
                self._give(who, [item.payload for item in each.items])
            elif isinstance(each, Accept) and who in self._moving:
                self._move(who)
            elif isinstance(each, Accept):
                self._accept(who)
            elif isinstance(each, Refuse):
                self._refuse(who, each.reason)
        self._check_nobody_is_forgotten()

    def _give_slot(self, who: Ticket, number: int, version: int) -> None:
        max_lag = self._asking.pop(who)
        latest = version + max_lag
        if version != self.version or not self._fits([*self._latest(), latest]):
            raise Violation(
                f"slot {number} is given with version {version}, too many are open", (who[0], number)
            )
        self._slots[number] = {who}, latest

    def _accept(self, who: Ticket) -> None:
        item, slot = self._puts.pop(who)
        if slot not in self._slots:
            raise Violation(f"item {item} is put with slot {slot}, which is over", (item,))
        self.open[item] = _Item(self._slots.pop(slot)[1])
        self.num_accepted += 1

    def _give(self, who: Ticket, items: Sequence[int]) -> None:
        self._taking.pop(who)
        for number in items:
            item = self.open.get(number)
            if item is None or item.given_to is not None:
                raise Violation(f"item {number} is given to {who}, and another has it", (number,))
            if item.latest < self.version:
                raise Violation(
                    f"item {number} is taken by {self.version}, later than {item.latest}", (number,)
                )
            item.given_to, item.given_in = who, self._epoch
            if not self._fits(self._latest()):
                raise Violation(f"item {number} is given in the place of an older one", (number,))
        if self._num_given > self.batch_items:
            raise Violation(f"version {self.version} is given {self._num_given} items", items)

    def _move(self, who: Ticket) -> None:
        version, batch_items, begins = self._moving.pop(who)
        if version != self.version or begins:
            late = [number for number, item in self.open.items() if item.latest < version]
            if late:
                raise Violation(f"version {version} comes before items {late} are taken", late)
            self.version, self._num_settled = version, 0
            self._epoch += 1
        self.batch_items = batch_items or self.batch_items

    def _refuse(self, who: Ticket, reason: Reason) -> None:
        move = self._moving.pop(who, None)
        if move is not None and reason is Reason.TOO_EARLY and move[0] > self.version:
            certain = [item.latest for item in self.open.values() if item.given_to is None]
            certain += [latest for _, latest in self._slots.values()]
            if self._fits(certain, move[0], move[1] or self.batch_items):
                raise Violation(f"version {move[0]} is refused, and nothing would be too old", (who[0],))
        self._asking.pop(who, None)
        self._taking.pop(who, None)
        self._puts.pop(who, None)

    # -- the rule --------------------------------------------------------------------------------

    @property
    def _num_given(self) -> int:
        given = (item for item in self.open.values() if item.given_to is not None)
        return self._num_settled + sum(item.given_in == self._epoch for item in given)

    def _latest(self) -> list[int]:
        """Of all that needs a place: not what the present version has been given."""
        items = [
            item.latest
            for item in self.open.values()
            if item.given_to is None or item.given_in != self._epoch
        ]
        return items + [latest for _, latest in self._slots.values()]

    def _fits(self, latest: Sequence[int], version: int | None = None, left: int | None = None) -> bool:
        """Whether items with these last versions are taken in time."""
        version = self.version if version is None else version
        left = max(0, self.batch_items - self._num_given) if left is None else left
        return all(
            sum(each <= last for each in latest) <= left + (last - version) * self.batch_items
            and last >= version
            for last in set(latest)
        )

    def _num_free(self) -> int:
        """How many items may be taken, one after the other."""
        here = sorted(item.latest for item in self.open.values() if item.given_to is None)
        needy, left = self._latest(), max(0, self.batch_items - self._num_given)
        num_free = 0
        for latest in here:
            needy.remove(latest)
            if num_free == left or not self._fits(needy, None, left - num_free - 1):
                break
            num_free += 1
        return num_free

    def _check_nobody_is_forgotten(self) -> None:
        if self.version < 0:
            return
        for who, max_lag in list(self._asking.items())[:1]:
            if self._fits([*self._latest(), self.version + max_lag]):
                raise Violation(f"{who} might have a slot, and waits", who)
        num_free, left = self._num_free(), self.batch_items - self._num_given
        for who, num_items in list(self._taking.items())[:1]:
            if num_free >= num_items or 0 < num_free == left or (self._ended and num_free):
                raise Violation(f"{who} might have {num_free} items, and waits", who)
        for who, (version, batch_items, _) in self._moving.items():
            needy = [item.latest for item in self.open.values()] + [each for _, each in self._slots.values()]
            if self._fits(needy, version, batch_items or self.batch_items):
                raise Violation(f"{who} might say version {version}, and waits", who)

    def check_rest(self) -> None:
        """Check that no slot is out when all makers are done or dead."""
        for number, (holders, _) in self._slots.items():
            raise Violation(f"slot {number}, held by {sorted(holders)}, never comes back", (number,))
