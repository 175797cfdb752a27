"""One queue's steps and parts as they must be: the same number for every rank, and each item in one of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rlinf_scheduler.queueing.balance import balanced
from rlinf_scheduler.queueing.members import GroupRanks
from rlinf_scheduler.queueing.messages import Reason
from rlinf_scheduler.queueing.shard_plan import ShardPlan
from rlinf_scheduler.queueing.sharding import Part
from rlinf_scheduler.queueing.wanted import Limits
from simulator.queue_oracle import Asked, Known, QueueOracle, Ticket
from simulator.world import Violation

# A shard that lags has so many steps to do at most.
MAX_AHEAD = 8


class ShardOracle:
    """The ranks of one queue, by what the server has heard and said.

    Args:
        plan: how it is divided.
        ranks: who divides it in the beginning.
        queue: what it holds.
    """

    def __init__(self, plan: ShardPlan, ranks: Sequence[int], queue: QueueOracle) -> None:
        self._waiting = queue.waiting_shards
        self._plan = plan
        self._queue = queue
        self._wanted = _wanted(plan)
        self._steps: list[list[Known]] = []
        self._complete: list[bool] = []
        self._parts: dict[tuple[int, int], list[int]] = {}  # by shard and step
        self._imbalance: dict[int, float] = {}
        self._done: dict[int, int] = {}
        self._ranks = list(ranks)  # that the next step is for
        self._ranks_of: list[list[int]] = []  # that each step was cut for
        self._version: tuple[int, int] | None = (
            None  # as long as nobody has asked, nobody knows who divides it
        )
        self._asker: dict[int, str] = {}  # who has asked for a shard last
        self._known: set[str] = set()  # of those, who has not gone since
        self._returned: set[tuple[int, int]] = set()  # by shard and step, what is in the queue again
        self._asks: dict[Ticket, int] = {}
        self._trained: dict[tuple[int, int], list[str]] = {}
        self._is_over = False
        self._holder: dict[int, tuple[str, int]] = {}  # who has which step of a shard in hand

    def ask(self, ticket: Ticket, index: int, done_step: int, members: GroupRanks | None = None) -> None:
        """A rank asks for what comes after a step."""
        self._known.add(ticket[0])
        if members is not None:
            self._version = self._version or (0, 0)
            self.resize(members)
        self._asker[index] = ticket[0]
        self._asks[ticket] = index
        self._holder.pop(index, None)
        self._done[index] = max(self._done.get(index, -1), done_step)
        self._waiting[index] = ticket

    def resize(self, members: GroupRanks) -> None:
        """The server is told for whom the next step is."""
        if self._version is not None and members.version > self._version:
            # Who has left and had everything is forgotten: one with its number is another one.
            has_place = {*self._ranks, *self._left}
            self._asker = {index: who for index, who in self._asker.items() if index in has_place}
            self._version, self._ranks = members.version, list(members.ranks)
            self._take_back()

    def _take_back(self) -> None:
        """What is of ranks that have left and are gone is in the queue again."""
        for index in [index for index in self._left if self._asker.get(index) not in self._known]:
            self._holder.pop(index, None)
            for step in self._owed(index):
                self._returned.add((index, step))
                by_number = {item.number: item for item in self._steps[step]}
                for number in self._part(index, step):
                    self._queue.restore(by_number[number])
                    self._is_over = False

    @property
    def _left(self) -> list[int]:
        """The shards that the next step is not for, and that have something to do."""
        known = {index for ranks in self._ranks_of for index in ranks}
        return [index for index in sorted(known) if index not in self._ranks and self._owed(index)]

    def _owed(self, index: int) -> list[int]:
        """The steps that were cut for a shard, and that it has not done with."""
        done = self._done.get(index, -1)
        owed = (step for step, ranks in enumerate(self._ranks_of) if step > done and index in ranks)
        return [step for step in owed if (index, step) not in self._returned]

    def _part(self, index: int, step: int) -> list[int]:
        """What a shard has of a step; what nobody has seen yet is taken to be what the product says."""
        if (index, step) not in self._parts:
            items, ranks = self._steps[step], self._ranks_of[step]
            places = self._places(step) or balanced(
                self._costs(items), len(ranks), equal_counts=self._plan.equal_counts
            )
            self._parts[index, step] = [items[place].number for place in places[ranks.index(index)]]
        return self._parts[index, step]

    def knows(self, ticket: Ticket) -> bool:
        """Whether this is a rank's."""
        return ticket in self._asks

    def forget(self, client: str) -> None:
        """A client has gone."""
        for index, ticket in list(self._waiting.items()):
            if ticket[0] == client:
                del self._waiting[index]
        self._known.discard(client)
        self._take_back()

    def deliver(self, ticket: Ticket, part: Part, items: list[int], *, closed: bool) -> None:
        """A rank gets its part of a step."""
        index, step = self._asks[ticket], part.step
        about = (ticket[1], *items)
        if self._waiting.get(index) != ticket:
            raise Violation(f"{ticket} gets a part of shard {index}, and another one waits for it", about)
        if step != next(iter(self._owed(index)), len(self._steps)):
            message = (
                f"shard {index} gets step {step}; it has to do {self._owed(index)} of {len(self._steps)}"
            )
            raise Violation(message, about)
        if step == len(self._steps):
            self._cut(part, closed=closed)
        del self._waiting[index]
        self._holder[index] = (ticket[0], step)
        if index not in self._ranks_of[step]:
            raise Violation(f"shard {index} gets step {step}, which is of {self._ranks_of[step]}", about)
        if self._parts.setdefault((index, step), items) != items:
            message = f"step {step} of shard {index} was {self._parts[index, step]}, and is {items} now"
            raise Violation(message, about)
        if part.complete != self._complete[step] or self._imbalance.setdefault(step, part.imbalance) != (
            part.imbalance
        ):
            raise Violation(f"shard {index} sees another step {step} than others", about)
        self._check_part(index, step, items)

    def finish(self, client: str, index: int, step: int, *, refused: bool) -> None:
        """A rank says that it has done with its part, and is told whether that was its own."""
        if refused == (self._holder.get(index) == (client, step)):
            word = "refused" if refused else "believed"
            raise Violation(f"{client} is {word} that it has done with step {step} of shard {index}")
        if not refused:
            del self._holder[index]
            self._done[index] = step

    def refuse(self, ticket: Ticket, reason: Reason, *, closed: bool) -> None:
        """A rank is told that it gets nothing."""
        index = self._asks[ticket]
        has_place = self._waiting.get(index) == ticket
        if reason is Reason.SUCCEEDED and has_place:
            raise Violation(f"{ticket} lost shard {index} to nobody", (ticket[1],))
        if reason in (Reason.ENDED, Reason.CLOSED):
            queue = self._queue
            is_over = queue.is_last(closed) and not queue.num_items and not self._owed(index)
            if not is_over or self._left:
                raise Violation(f"shard {index} is told of the end before it has come", (ticket[1],))
            self._is_over = True
        if reason is Reason.LEFT and (index in self._ranks or self._owed(index)):
            raise Violation(
                f"shard {index} is told that it has left, and has {self._owed(index)} to do", (ticket[1],)
            )
        if has_place:
            del self._waiting[index]

    def check_nobody_is_forgotten(self, *, closed: bool) -> None:
        """Check, after a step of the server, that no rank waits that need not."""
        for index, ticket in self._waiting.items():
            is_over = self._queue.is_last(closed) and not self._queue.num_items and not self._left
            has_left = index not in self._ranks
            if self._owed(index) or (self._may_cut and self._is_ready(closed)) or is_over or has_left:
                raise Violation(f"shard {index} waits, and need not", (ticket[1],))

    def trains(self, client: str, index: int, step: int, gone: set[str]) -> None:
        """A rank has its part."""
        trained = self._trained.setdefault((index, step), [])
        others = [other for other in trained if other != client and other not in gone]
        if others:
            raise Violation(f"{client} has step {step} of shard {index}; {others[0]} lives, and has it too")
        trained.append(client)

    def check_end(self) -> None:
        """Check, when all ranks have seen the end, that each has had every step."""
        for step, items in enumerate(self._steps):
            for index in self._ranks_of[step]:
                if (index, step) not in self._trained and (index, step) not in self._returned:
                    raise Violation(f"nobody has had step {step} of shard {index}")
            numbers = sorted(item.number for item in items)
            dealt = sorted(n for index in self._ranks_of[step] for n in self._parts[index, step])
            if dealt != numbers:
                raise Violation(f"step {step} has the items {numbers}; its parts have {dealt}", numbers)
            self._check_balance(step)

    def check_restart(
        self, ranks: Sequence[int], parts: Mapping[tuple[int, int], list[int]], left: list[int]
    ) -> None:
        """Check what new ranks get, by shard and step, when a job is restarted; `left` was cut for no step."""
        left = list(left)
        for step, items in enumerate(self._steps):
            dealt: list[int] = []
            for index in self._ranks_of[step]:
                is_owed = step in self._owed(index)
                if (is_owed and index in ranks) != ((index, step) in parts):
                    word = "again" if (index, step) in parts else "not again"
                    raise Violation(
                        f"step {step} comes to shard {index} {word}; it has {self._owed(index)} to do"
                    )
                known = self._part(index, step)
                part = parts.get((index, step), known)
                if part != known:
                    raise Violation(f"step {step} of shard {index} was {known}, and is {part} again", part)
                left += part if is_owed and index not in ranks else []
                dealt += part
            if sorted(dealt) != sorted(item.number for item in items):
                raise Violation(f"the parts of step {step} are {dealt} after a restart", dealt)
        later = [n for (_, step), part in parts.items() if step >= len(self._steps) for n in part]
        if sorted(later) != sorted(left):
            raise Violation(f"{later} come to the ranks after a restart; it should be {left}", later)

    def _cut(self, part: Part, *, closed: bool) -> None:
        """The next step, as its size wants it."""
        if self._is_over:
            raise Violation(f"step {part.step} comes after some were told of the end")
        if not self._may_cut:
            raise Violation(f"step {part.step} is cut, and some lag more than {MAX_AHEAD} steps behind")
        if not self._is_ready(closed):
            raise Violation(f"step {part.step} is not there yet")
        items: list[Known] = []
        while (item := self._queue.head()) is not None:
            if items and (self._wanted.is_enough(items) or self._wanted.has_to_end(items, item)):
                break
            self._queue.take()
            items.append(item)
        has_target = self._plan.batch_weight is not None or self._plan.batch_items is not None
        is_enough = self._wanted.is_enough(items) or not has_target
        if part.complete != is_enough:
            raise Violation(f"step {part.step} says complete={part.complete}")
        self._ranks_of.append(list(self._ranks))
        self._steps.append(items)
        self._complete.append(part.complete)

    def _is_ready(self, closed: bool) -> bool:
        return self._queue.may_give(("", 0), self._wanted, closed=closed, stuck=False)

    @property
    def _may_cut(self) -> bool:
        return max(len(self._owed(index)) for index in self._ranks) < MAX_AHEAD

    def _check_part(self, index: int, step: int, items: list[int]) -> None:
        """Compare a part with what its policy says; where there are several ways, `_check_balance` looks at all."""
        places = self._places(step)
        if places is None:
            return
        its_places = places[self._ranks_of[step].index(index)]
        expected = [self._steps[step][place].number for place in its_places]
        if items != expected:
            message = f"step {step} of shard {index} is {items}; it should be {expected}"
            raise Violation(message, items)

    def _places(self, step: int) -> list[list[int]] | None:
        plan, num_shards = self._plan, len(self._ranks_of[step])
        parts: list[list[int]] = [[] for _ in range(num_shards)]
        if plan.policy == "round_robin":
            first = sum(map(len, self._steps[:step]))
            for place in range(len(self._steps[step])):
                parts[(first + place) % num_shards].append(place)
            return parts
        if plan.policy == "least_loaded":
            loads = [0.0] * num_shards
            for place, cost in enumerate(self._costs(self._steps[step])):
                least = loads.index(min(loads))
                parts[least].append(place)
                loads[least] += cost
            return parts
        return None

    def _costs(self, items: Sequence[Known]) -> list[float]:
        linear, quadratic = self._plan.cost
        return [linear * item.weight + quadratic * item.weight**2 for item in items]

    def _check_balance(self, step: int) -> None:
        by_number = {item.number: item for item in self._steps[step]}
        parts = [self._parts[index, step] for index in self._ranks_of[step]]
        loads = [sum(self._costs([by_number[number] for number in part])) for part in parts]
        mean = sum(loads) / len(loads)
        imbalance = max(loads) / mean if mean else 1.0
        if not math.isclose(imbalance, self._imbalance[step]):
            raise Violation(f"step {step} has an imbalance of {imbalance}, and says {self._imbalance[step]}")
        if self._plan.policy != "balanced":
            return
        counts = [len(part) for part in parts]
        if self._plan.equal_counts and max(counts) - min(counts) > 1:
            raise Violation(f"the parts of step {step} have {counts} items")
        largest = max(self._costs(self._steps[step]))
        if not self._plan.equal_counts and max(loads) - min(loads) > largest:
            raise Violation(f"the parts of step {step} cost {loads}; its largest item costs {largest}")


def _wanted(plan: ShardPlan) -> Asked:
    if plan.batch_weight is not None:
        return Asked(is_batch=True, weight=int(plan.batch_weight))
    size = plan.batch_items or 1 << 62
    return Asked(is_batch=True, limits=Limits(size, plan.batch_items or 0))
