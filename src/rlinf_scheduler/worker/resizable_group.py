"""A group that grows and shrinks, in the process that launched it: who joins, who leaves, and when it has happened."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from msgspec import structs

from rlinf_scheduler.comm.directory import ANSWER_TIMEOUT_S, WORLD_SIZE, Entry
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.waits import LAUNCH, Wait, awaited
from rlinf_scheduler.errors import ResizeError
from rlinf_scheduler.events import GroupResized, RankDrained
from rlinf_scheduler.host import protocol
from rlinf_scheduler.host.info import group_entry, job_topology
from rlinf_scheduler.placement import ComponentPlacement
from rlinf_scheduler.planning import Placement, PlacementStrategy, Topology
from rlinf_scheduler.planning.moving import grown, joined
from rlinf_scheduler.session import Session
from rlinf_scheduler.session.membership import Death, GroupMembers
from rlinf_scheduler.wording import clock_text, seconds_text
from rlinf_scheduler.worker.group_calls import TERMINATED
from rlinf_scheduler.worker.launch import Recipe, start_ranks
from rlinf_scheduler.worker.moves import Moves
from rlinf_scheduler.worker.order import Growth, Shrinkage
from rlinf_scheduler.worker.processes import LaunchedRank, device_names
from rlinf_scheduler.worker.resizing import Resizing
from rlinf_scheduler.worker.successors import StartSuccessors
from rlinf_scheduler.worker.supervision import KILLED_WITHIN_S, Supervision

R = TypeVar("R")
# In the directory's entry of a group that was resized: its ranks, and how often it was.
RANKS, EPOCH = "ranks", "epoch"
# Others are told who leaves before the leaving are; one that is stopped holds up nothing for longer.
_HEARD_S = 1.0
_log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class WantedResize:
    """A resize that somebody wants.

    Attributes:
        operation: as its call is written.
        limit_s: how long it may take, in seconds.
        began: when it was asked for, on the monotonic clock.
        turn: done when it may begin.
        given_up: done when nobody wants it any more.
        over: done when it has ended, with the numbers of the ranks that came, or left.
        waits_for: what it waits for, in words.
        peers: the processes that it waits for.
    """

    operation: str
    limit_s: float
    began: float = field(default_factory=time.monotonic)
    turn: Promise[None] = field(default_factory=Promise)
    given_up: Promise[None] = field(default_factory=Promise)
    over: Promise[tuple[int, ...]] = field(default_factory=Promise)
    waits_for: str = "its turn"
    peers: tuple[str, ...] = ()

    def left_s(self) -> float:
        """How long it may still take, in seconds."""
        return max(0.0, self.began + self.limit_s - time.monotonic())


def _awaits(local: dict[str, Any]) -> Wait:
    group, resize = local["self"], local["resize"]
    operation = f"{resize.operation} of '{group.name}'"
    since_s = time.monotonic() - resize.began
    return Wait(LAUNCH, operation, since_s, peers=resize.peers, detail=resize.waits_for)


class ResizableGroup(Supervision):
    """A group in the process that launched it, which starts further ranks of it and lets ranks leave.

    Args:
        session: of this process.
        recipe: what its processes are made from; its `members` are those of now.
        ranks: its processes.
        start_successors: as of `Supervision`.
    """

    def __init__(
        self,
        session: Session,
        recipe: Recipe,
        ranks: Sequence[LaunchedRank],
        start_successors: StartSuccessors,
    ) -> None:
        super().__init__(session, recipe.members, ranks, recipe.options, start_successors)
        self._recipe = recipe
        self._resizing = Resizing(recipe.members)
        self._resizes: dict[WantedResize, None] = {}

    # -- who wants it ----------------------------------------------------------------------------

    def grow(self, growth: Growth) -> tuple[int, ...]:
        """Start further ranks, and return their numbers when they are ready."""
        resize = WantedResize(f"grow({growth.num_workers or growth.placement!r})", growth.timeout_s)
        return self._order(resize, partial(self._grow, resize, growth))

    def shrink(self, shrinkage: Shrinkage) -> tuple[int, ...]:
        """Let ranks finish what they have and end, and return their numbers when they have ended."""
        of = f"ranks={list(shrinkage.ranks)}" if shrinkage.ranks is not None else shrinkage.num_workers
        resize = WantedResize(shrinkage.why or f"shrink({of})", shrinkage.drain_s)
        return self._order(resize, partial(self._shrink, resize, shrinkage))

    @awaited(_awaits)
    def _order(self, resize: WantedResize, work: Callable[[], tuple[int, ...]]) -> tuple[int, ...]:
        try:
            self.session.messenger.submit(partial(self._on_asked, resize, work))
            resize.over.wait()
        except BaseException:
            resize.given_up.set_result(None)
            raise
        return resize.over.result(0)

    # -- the I/O thread --------------------------------------------------------------------------

    def _on_asked(self, resize: WantedResize, work: Callable[[], tuple[int, ...]]) -> None:
        self._resizes[resize] = None
        if self._resizing.ask(resize):
            resize.turn.set_result(None)
        if self._deaths.stopping:
            resize.given_up.set_result(None)
        self.session.messenger.run_beside(self._run, resize, work)

    def _on_over(self, resize: WantedResize, set_result: Callable[[], None]) -> None:
        del self._resizes[resize]
        following = self._resizing.end(resize)
        if isinstance(following, WantedResize):
            following.turn.set_result(None)
        set_result()

    def _begin_start(self, growth: Growth, count: int) -> tuple[GroupMembers, tuple[int, ...]]:
        refusal = self._deaths.refusal((), TERMINATED)
        if refusal is not None:
            raise refusal
        numbers = self._resizing.numbers(count, reuse=growth.reuse)
        return self._resizing.with_ranks(numbers), numbers

    def _commit_growth(
        self, after: GroupMembers, ranks: Sequence[LaunchedRank], resize: WantedResize
    ) -> bool:
        """The group has further ranks; whether they are wanted."""
        if resize.given_up.done():
            return False
        self.ranks = {**self.ranks, **{rank.address.rank: rank for rank in ranks}}
        if self._deaths.stopping:  # looked at afterwards: who stops the group looks at the ranks after that
            return False
        self._take_resized(after, resize)
        for rank in ranks:
            self._follow(rank)
            if self._is_lost(rank.endpoint):
                self._on_rank_lost(rank)
            self._tell(rank.address.rank)
        return True

    def _commit_shrinkage(self, shrinkage: Shrinkage, resize: WantedResize) -> tuple[int, ...]:
        numbers = self._resizing.leavers(shrinkage.num_workers, shrinkage.ranks)
        self._take_resized(self._resizing.without_ranks(numbers), resize)
        return numbers

    def _take_resized(self, after: GroupMembers, resize: WantedResize) -> None:
        before = self.members
        # It was launched anew meanwhile, maybe, and meets elsewhere.
        after = structs.replace(self._recipe.members, ranks=after.ranks, epoch=after.epoch)
        self._recipe.members = self._resizing.commit(after)
        self._take_members(after, f"it left at {clock_text(time.time())} ({resize.operation})")
        about = {WORLD_SIZE: after.world_size, RANKS: list(after.ranks), EPOCH: after.epoch}
        entry = Entry(group_entry(self.name), self.session.messenger.endpoint, about)
        self.session.directory.register_async(entry, again=True)
        took_s = time.monotonic() - resize.began
        event = GroupResized(self.name, before.ranks, after.ranks, after.epoch, took_s, resize.operation)
        self.session.bus.emit(event)
        self._tell(None)

    def _on_left(self, number: int) -> None:
        """A rank that leaves has ended."""
        self._resizing.on_gone(number)
        self.ranks = {each: rank for each, rank in self.ranks.items() if each != number}

    # -- other threads ---------------------------------------------------------------------------

    def _stop_resizing(self) -> None:
        self.session.messenger.submit(self._give_up_all)

    def _give_up_all(self) -> None:
        for resize in self._resizes:
            resize.given_up.set_result(None)

    def _wait_resized(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        for resize in list(self._resizes):
            resize.over.wait(max(0.0, deadline - time.monotonic()))

    # -- a resize's own thread -------------------------------------------------------------------

    def _decide(self, decide: Callable[[], R]) -> R:
        """What the I/O thread makes of it."""
        decided: Promise[R] = Promise()
        self.session.messenger.submit(lambda: decided.set_from(decide))
        decided.wait(ANSWER_TIMEOUT_S)
        return decided.result(0)

    def _run(self, resize: WantedResize, work: Callable[[], tuple[int, ...]]) -> None:
        try:
            self._wait_for(resize, resize.turn, "its turn: another resize goes on")
            numbers = work()
        except BaseException as error:  # noqa: BLE001 - it belongs to who wants it
            end = partial(resize.over.set_exception, error)
        else:
            end = partial(resize.over.set_result, numbers)
        self.session.messenger.submit(partial(self._on_over, resize, end))
        if self.session.messenger.why_closed:  # what is handed over after that may not be looked at any more
            end()

    def _wait_for(self, resize: WantedResize, step: Promise[Any], what: str) -> None:
        """Wait for a step of a resize.

        Raises:
            ResizeError: it has not come at the deadline, or nobody wants the resize any more.
        """
        resize.waits_for = what
        either: Promise[None] = Promise()
        for each in (step, resize.given_up):
            each.add_done_callback(lambda _: either.set_result(None))
        is_done = either.wait(resize.left_s())
        if resize.given_up.done():
            raise ResizeError(self.name, f"{resize.operation}: {self._why_given_up()}")
        if not is_done:
            late = f"it waited for {what} until its deadline, {seconds_text(resize.limit_s)}"
            raise ResizeError(self.name, f"{resize.operation}: {late}; nothing has changed")

    def _grow(self, resize: WantedResize, growth: Growth) -> tuple[int, ...]:
        resize.waits_for = "its new ranks"
        made = self._placed(growth)
        count = len(made) or growth.num_workers or 0
        after, numbers = self._decide(partial(self._begin_start, growth, count))
        moves = self.session.service(Moves)
        placements = moves.place(self.name, partial(self._places, growth, made, numbers), resize.given_up)
        resize.peers = tuple(f"{self.name}:{number}" for number in numbers)
        try:
            self._decide(partial(self._resizing.begin_start, numbers))
            recipe = self._recipe.joined_by(after, resize.left_s(), growth.ready_when)
            ranks = start_ranks(self.session, placements, recipe, resize.given_up)
            self._join(after, ranks, resize)
        except BaseException:
            for number in numbers:
                moves.leave(self.name, number)
            raise
        self.session.members.tell(self.members).wait(_HEARD_S)
        return numbers

    def _join(self, after: GroupMembers, ranks: Sequence[LaunchedRank], resize: WantedResize) -> None:
        """Let the group have further ranks.

        Raises:
            ResizeError: nobody wants them any more; they have been ended.
        """
        if not self._decide(partial(self._commit_growth, after, ranks, resize)):
            self._end_unwanted(ranks)
            raise ResizeError(self.name, f"{resize.operation}: {self._why_given_up()}")

    def _why_given_up(self) -> str:
        return TERMINATED if self._deaths.stopping else "nobody waits for it any more"

    def _topology(self) -> Topology:
        """What the group was placed on, with the nodes that have come since."""
        nodes = job_topology(self.session).nodes
        return replace(self._recipe.options.topology or job_topology(self.session), nodes=nodes)

    def _beside(self) -> list[Placement]:
        return [self.ranks[number].placement for number in self.members.ranks]

    def _placed(self, growth: Growth) -> list[Placement]:
        """Where the new ranks run, if that was said."""
        if growth.placement is None:
            return []
        strategy, topology = growth.placement, self._topology()
        if not isinstance(strategy, PlacementStrategy):
            config = {"cluster": {"component_placement": {self.name: strategy}}}
            return list(ComponentPlacement(config, topology).placements(self.name))
        return list(strategy.get_placement(topology, isolate_gpu=self._beside()[0].isolate_gpu))

    def _places(
        self,
        growth: Growth,
        made: Sequence[Placement],
        numbers: Sequence[int],
        gone: Collection[int],
        used: Collection[tuple[int, int]],
    ) -> list[Placement]:
        beside = self._beside()
        found = made or grown(beside, growth.num_workers or 0, self._topology(), gone, used)
        return joined(found, numbers, beside)

    def _end_unwanted(self, ranks: Sequence[LaunchedRank]) -> None:
        for rank in ranks:
            if rank.endpoint is not None:
                death = Death(rank.endpoint.process_id, str(rank.address), "nobody wants it any more")
                self.session.deaths.declare(death)
            self._kill(rank)

    def _shrink(self, resize: WantedResize, shrinkage: Shrinkage) -> tuple[int, ...]:
        numbers = self._decide(partial(self._commit_shrinkage, shrinkage, resize))
        self.session.members.tell(self.members).wait(_HEARD_S)
        began = time.monotonic()
        leaving = [self.ranks[number] for number in numbers]
        for rank in leaving:
            self._drain(rank, resize)
        resize.waits_for = "what they have"
        resize.peers = tuple(str(rank.address) for rank in leaving)
        ends = self._decide(partial(self._ends_of, leaving))
        deadline = began + shrinkage.drain_s
        for rank, end in zip(leaving, ends, strict=True):
            if not end.wait(max(0.0, deadline - time.monotonic())):
                self._force(rank, resize)
        for rank, end in zip(leaving, ends, strict=True):
            end.wait(KILLED_WITHIN_S)
            self._kill(rank)  # it has ended its part; Ray keeps the process
            self._end_by_force(rank)
            self._release(rank)
            took_s = time.monotonic() - began
            forced = not rank.came_to_its_end
            self.session.bus.emit(RankDrained(self.name, rank.address.rank, took_s, forced))
        return numbers

    def _drain(self, rank: LaunchedRank, resize: WantedResize) -> None:
        name, why = str(rank.address), self.left[rank.address.rank]
        self.session.directory.give_up_async(name, why)
        if rank.endpoint is not None:
            self.session.messenger.notify(rank.endpoint, protocol.DRAIN, protocol.Drain(why))

    def _ends_of(self, leaving: Sequence[LaunchedRank]) -> list[Promise[Any]]:
        """What is done when each of these ranks has ended; on the I/O thread."""
        return [self._successors.give_up(rank.address.rank) or rank.gone for rank in leaving]

    def _force(self, rank: LaunchedRank, resize: WantedResize) -> None:
        rank.ended_by = f"{resize.operation} ended it after {seconds_text(resize.limit_s)}"
        _log.warning("%s: '%s' had not finished, and is ended by force", resize.operation, rank.address)
        self._kill(rank)

    def _release(self, rank: LaunchedRank) -> None:
        """Others may have what a rank had that has left."""
        number, nodes = rank.address.rank, job_topology(self.session).nodes
        self._decide(partial(self._on_left, number))
        self.session.service(Moves).leave(self.name, number)
        if self.give_back is not None:
            theirs = [device_names(each.placement, nodes) for each in self.ranks.values()]
            self.give_back(device_names(rank.placement, nodes).difference(*theirs))
