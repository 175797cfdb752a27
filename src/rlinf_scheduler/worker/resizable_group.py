"""A group that grows and shrinks, in the process that launched it: whose turn it is, who joins, and who leaves."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from msgspec import structs

from rlinf_scheduler.addresses import WorkerAddress
from rlinf_scheduler.comm.directory import EPOCH, RANKS, WORLD_SIZE, Entry
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.transport.peer_session import Loss
from rlinf_scheduler.comm.waits import LAUNCH, Wait, awaited
from rlinf_scheduler.errors import CommError, LaunchError, ResizeError
from rlinf_scheduler.events import GroupResized, RankDrained
from rlinf_scheduler.host.info import group_entry, job_topology
from rlinf_scheduler.placement import ComponentPlacement
from rlinf_scheduler.planning import Placement, PlacementStrategy, Topology
from rlinf_scheduler.planning.moving import grown, joined
from rlinf_scheduler.session import Session
from rlinf_scheduler.session.membership import Death, GroupMembers
from rlinf_scheduler.wording import seconds_text
from rlinf_scheduler.worker.call import Call
from rlinf_scheduler.worker.deadline import Deadline
from rlinf_scheduler.worker.following import FollowedGroup, WantedResize
from rlinf_scheduler.worker.group_calls import TERMINATED
from rlinf_scheduler.worker.launch import GIVEN_UP, Recipe, start_ranks
from rlinf_scheduler.worker.moves import Moves
from rlinf_scheduler.worker.order import FOLLOW_S, Growth, Shrinkage
from rlinf_scheduler.worker.processes import LaunchedRank, device_names
from rlinf_scheduler.worker.resizing import Resizing
from rlinf_scheduler.worker.successors import StartSuccessors
from rlinf_scheduler.worker.supervision import KILLED_WITHIN_S

# Others are told who leaves before the leaving are; one that is stopped holds up nothing for longer.
_HEARD_S = 1.0
_log = logging.getLogger(__name__)


def _awaits(local: dict[str, Any]) -> Wait:
    group, resize = local["self"], local["resize"]
    operation = f"{resize.operation} of '{group.name}'"
    since_s = time.monotonic() - resize.began
    return Wait(LAUNCH, operation, since_s, peers=resize.peers, detail=resize.waits_for)


class ResizableGroup(FollowedGroup):
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
        # Of ranks that are being started to join: nobody is to wait for them any more.
        self._start_given_up: Promise[None] = Promise()
        self._num_anew = 0
        self._resizes: dict[WantedResize, None] = {}

    @cached_property
    def _resizing(self) -> Resizing:
        """Its resizes, made by the I/O thread when the first one is asked for."""
        return Resizing(self._recipe.members)

    # -- who wants it ----------------------------------------------------------------------------

    def grow(self, growth: Growth, given_up: Promise[None] | None = None) -> tuple[int, ...]:
        """Start further ranks, and return their numbers when they are ready."""
        resize = WantedResize(growth.operation, Deadline(growth.timeout_s), given_up or Promise())
        return self._order(resize, partial(self._grow, resize, growth))

    def shrink(
        self, shrinkage: Shrinkage, given_up: Promise[None] | None = None, until: Deadline | None = None
    ) -> tuple[int, ...]:
        """Let ranks finish what they have and end, and return their numbers when they have ended."""
        limit = until or Deadline(shrinkage.drain_s)
        resize = WantedResize(shrinkage.operation, limit, given_up or Promise(), counts_anew=until is None)
        return self._order(resize, partial(self._shrink, resize, shrinkage))

    @awaited(_awaits)
    def _order(self, resize: WantedResize, work: Callable[[], tuple[int, ...]]) -> tuple[int, ...]:
        try:
            self.session.messenger.submit(partial(self._on_asked, resize, work))
            self._check_open(resize)
            resize.over.wait()
        except BaseException:
            resize.given_up.set_result(None)
            raise
        return resize.over.result(0)

    def _check_open(self, resize: WantedResize) -> None:
        """Raise CommError where this process has left the job: what was handed over may not be looked at any more."""
        if self.session.messenger.why_closed:
            problem = f"{resize.operation} of '{self.name}': {self.session.messenger.why_closed}"
            raise CommError(problem)

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
        self._end_turn(resize)
        set_result()

    def _end_turn(self, resize: WantedResize) -> None:
        """The next one may begin, if this one was the first in the line."""
        following = self._resizing.end(resize)
        if isinstance(following, WantedResize):
            following.turn.set_result(None)

    def _begin_anew(self, number: int, reason: str) -> None:
        super()._begin_anew(number, reason)
        self._num_anew += 1
        self._start_given_up.set_result(None)

    def _on_met(self, call: Call, start: Promise[None], _: Promise[None]) -> None:
        if call.failed:  # those that start would wait for ever
            start.set_result(None)

    def _begin_start(self, numbers: Sequence[int], start: Promise[None]) -> int:
        """Ranks start that join, until `start` is done; how often all of the group began anew before."""
        self._resizing.begin_start(numbers)
        self._start_given_up = start
        return self._num_anew

    def _commit_growth(self, recipe: Recipe, ranks: Sequence[LaunchedRank], resize: WantedResize) -> None:
        """The group has further ranks.

        Raises:
            ResizeError: nobody wants them any more.
        """
        unwanted = ResizeError(self.name, f"{resize.operation}: {self._why_given_up()}")
        if self._start_given_up.done():
            raise unwanted
        self.ranks = {**self.ranks, **{rank.address.rank: rank for rank in ranks}}
        if self._deaths.stopping:  # looked at afterwards: who stops the group looks at the ranks after that
            raise unwanted
        for rank in ranks:  # first: who is told of the members calls them
            self._pending.forget(rank.address.rank)
            self._tell(rank.address.rank)
        self._recipe.hardware = recipe.hardware
        self._take_resized(recipe.members, resize)
        for rank in ranks:
            self._follow(rank)
            if self._is_lost(rank.endpoint):
                self._on_rank_lost(rank)

    def _become(self, after: GroupMembers, why: str) -> None:
        self._recipe.members = self._resizing.commit(after)
        self._take_members(after, why)
        about = {WORLD_SIZE: after.world_size, RANKS: list(after.ranks), EPOCH: after.epoch}
        entry = Entry(group_entry(self.name), self.session.messenger.endpoint, about)
        self.session.directory.register_async(entry, again=True)

    def _stay(self, before: GroupMembers, unwanted: GroupMembers, why: str) -> None:
        """Be newer than what ranks may have said already that were to join, so that nothing is kept for them."""
        if self.members == before and not self._deaths.stopping:
            self._become(structs.replace(before, epoch=unwanted.epoch + 1), why)

    def _take_resized(self, after: GroupMembers, resize: WantedResize) -> None:
        before = self.members
        self._become(after, resize.operation)
        took_s = time.monotonic() - resize.began
        event = GroupResized(self.name, before.ranks, after.ranks, after.epoch, took_s, resize.operation)
        self.session.bus.emit(event)
        self._tell(None)

    def _on_left(self, number: int) -> None:
        """A rank that leaves has ended; its calls say why, also where its end is told later, or never."""
        rank = self.ranks[number]
        if not rank.gone.done():
            rank.gone.set_result(self._with_call(rank, rank.ended_by or "its process has ended"))
            self._tell(number)
        self._resizing.on_gone(number)
        self.ranks = {each: rank for each, rank in self.ranks.items() if each != number}

    # -- other threads ---------------------------------------------------------------------------

    def _stop_resizing(self) -> None:
        self.session.messenger.submit(self._give_up_all)

    def _give_up_all(self) -> None:
        self._start_given_up.set_result(None)
        for resize in self._resizes:
            resize.given_up.set_result(None)

    def _wait_resized(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        for resize in list(self._resizes):
            resize.over.wait(max(0.0, deadline - time.monotonic()))

    # -- a resize's own thread -------------------------------------------------------------------

    def _run(self, resize: WantedResize, work: Callable[[], tuple[int, ...]]) -> None:
        try:
            self._wait_for(resize, resize.turn, "its turn, as another resize goes on")
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
        is_done = resize.until.wait(step, resize.given_up)
        if resize.given_up.done():
            raise ResizeError(self.name, f"{resize.operation}: {self._why_given_up()}")
        if not is_done:
            late = f"it waited for {what}, until its deadline, {seconds_text(resize.until.limit_s)}"
            raise ResizeError(self.name, f"{resize.operation}: {late}")

    def _grow(self, resize: WantedResize, growth: Growth) -> tuple[int, ...]:
        made = self._placed(growth)
        self._wait_for_devices(resize, made)
        moves = self.session.service(Moves)
        placements = moves.place(
            self.name,
            partial(self._places, growth, made),
            resize.given_up,
            on_free_devices=not made and self._beside()[-1].has_accelerators,
        )
        numbers = tuple(placement.rank for placement in placements)
        try:
            while not self._joined(resize, growth, placements):
                _log.warning("%s of '%s' begins again: its ranks come back", resize.operation, self.name)
        except BaseException:
            for number in numbers:
                if number not in self.members:  # else it is there, and not all have followed
                    moves.leave(self.name, number)
            raise
        return numbers

    def _joined(self, resize: WantedResize, growth: Growth, placements: Sequence[Placement]) -> bool:
        """Start ranks that join; False if all of the group began anew meanwhile, so that they start once more."""
        before, numbers = self._whole(resize), [placement.rank for placement in placements]
        ways = self._prepared(resize, self._resizing.with_ranks(numbers), resize.until.left_s)
        start = Promise[None]()
        num_anew = self._decide(partial(self._begin_start, numbers, start))
        recipe = self._recipe.joined_by(ways.after, self._topology(), resize.until.left_s, growth.ready_when)
        ranks: list[LaunchedRank] = []
        following: list[Call] = []
        resize.given_up.add_done_callback(lambda _: None if following else start.set_result(None))

        def meet(after: GroupMembers) -> None:
            if ways.meets:
                following.extend(self._call_on_resize(before.ranks, before, after))
            for call in following:
                call.settled.add_done_callback(partial(self._on_met, call, start))

        resize.waits_for, resize.peers = "ranks that start", tuple(f"{self.name}:{each}" for each in numbers)
        try:
            try:
                ranks += start_ranks(self.session, placements, recipe, start, on_assigned=meet)
            except LaunchError as error:
                if error.problem == GIVEN_UP and any(call.failed for call in following):
                    self._wait_followed(resize, following, ways.after)  # which says why
                raise
            self._wait_followed(resize, following, ways.after)
            self._decide(partial(self._commit_growth, recipe, ranks, resize))
        except BaseException as error:
            self._end_unwanted(ranks)
            self._hear_of_deaths(resize, following)
            if (
                self._decide(lambda: self._num_anew) > num_anew
                and resize.until.left_s
                and not resize.given_up.done()
            ):
                return False
            if not following:
                self._decide(partial(self._stay, before, ways.after, resize.operation))
                self.session.members.tell(self.members).wait(_HEARD_S)
                raise
            raise self._given_up(resize, following, self._begun(following), error) from error
        self.session.members.tell(self.members).wait(_HEARD_S)
        if ways.follows and not ways.meets:
            calls = self._call_on_resize(before.ranks, before, self.members)
            self._wait_followed(resize, calls, self.members)
        return True

    def _whole(self, resize: WantedResize) -> GroupMembers:
        """The members; of a group that comes back together once it has.

        Raises:
            WorkerDied: the group has ended.
            ResizeError: as of `_wait_for`.
        """
        while away := self._decide(self._away_together):
            self._wait_for(resize, away, "its ranks, which come back")
        return self.members

    def _away_together(self) -> Promise[None] | None:
        refusal = self._deaths.refusal((), TERMINATED)
        if refusal is not None:
            raise refusal
        return self._successors.all_awaited()

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

    def _wait_for_devices(self, resize: WantedResize, made: Sequence[Placement]) -> None:
        """Wait for those who leave, and have devices still on which ranks are to start; raises as `_wait_for`."""
        nodes = job_topology(self.session).nodes
        wanted: set[tuple[str, str]] = set().union(*(device_names(each, nodes) for each in made))
        for number, rank in self.ranks.items():
            if number not in self.members and wanted & device_names(rank.placement, nodes):
                resize.peers = self._names([number])
                self._wait_for(resize, rank.gone, "its devices, which a rank that leaves has still")

    def _places(
        self,
        growth: Growth,
        made: Sequence[Placement],
        gone: Collection[int],
        used: Collection[tuple[int, int]],
    ) -> list[Placement]:
        beside = self._beside()
        found = made or grown(beside, growth.num_workers or 0, self._topology(), gone, used)
        numbers = self._decide(partial(self._resizing.numbers, len(found), reuse=growth.reuse))
        return joined(found, numbers, beside)

    def _end_unwanted(self, ranks: Sequence[LaunchedRank]) -> None:
        for rank in ranks:
            if rank.endpoint is not None:
                death = Death(rank.endpoint.process_id, str(rank.address), "nobody wants it any more")
                self.session.deaths.declare(death)
            self._kill(rank)

    def _shrink(self, resize: WantedResize, shrinkage: Shrinkage) -> tuple[int, ...]:
        resize.begin_anew()
        while (shrunk := self._shrunk(resize, shrinkage)) is None:
            _log.warning("%s of '%s' begins again: its ranks come back", resize.operation, self.name)
        leaving, following, problem = shrunk
        resize.begin_anew()  # they are told only now, and others may have taken long to meet
        numbers, began = tuple(rank.address.rank for rank in leaving), resize.began
        for rank in leaving:
            name, why = str(rank.address), self.left[rank.address.rank]
            self.session.directory.give_up_async(name, why)
            self.drain(rank, why, resize.until)
        resize.waits_for, resize.peers = "what they have", self._names(numbers)
        ends = self._decide(partial(self._begin_drain, resize, leaving))
        for rank, end in zip(leaving, ends, strict=True):
            if not resize.until.wait(end):
                self._force(rank, resize)
        for rank, end in zip(leaving, ends, strict=True):
            if not end.wait(KILLED_WITHIN_S):  # it is out of reach, and another may have its number
                self._end_unwanted([rank])
            self._kill(rank)  # it has ended its part; Ray keeps the process
            self._end_by_force(rank)
            self._release(rank)
            took_s = time.monotonic() - began
            forced = bool(rank.ended_by) or not self._left_in_order(rank)
            self.session.bus.emit(RankDrained(self.name, rank.address.rank, took_s, forced))
        if problem is not None:
            raise problem
        self._wait_followed(resize, following, self.members, FOLLOW_S)
        return numbers

    def _shrunk(
        self, resize: WantedResize, shrinkage: Shrinkage
    ) -> tuple[list[LaunchedRank], list[Call], ResizeError | None] | None:
        """The ranks that leave, who follows still, and what meeting failed with; None if all came back meanwhile."""
        before, num_anew = self._whole(resize), self._num_anew
        numbers = self._decide(partial(self._resizing.leavers, shrinkage.num_workers, shrinkage.ranks))
        ways = self._prepared(resize, self._resizing.without_ranks(numbers))
        problem: ResizeError | None = None
        calls: list[Call] = []
        begun: list[WorkerAddress] = []
        if ways.meets:  # first: as long as none has begun it, nothing has changed
            calls, problem = self._met_by_few(resize, numbers, before, ways.after)
            self._hear_of_deaths(resize, calls)
            begun = self._begun(calls) if problem is not None else []
            if problem is not None and not begun and self._num_anew == num_anew:
                raise self._given_up(resize, calls, begun, problem)
        leaving = self._decide(partial(self._commit_shrinkage, ways.after, numbers, resize, num_anew))
        if not leaving:
            if problem is not None and not resize.until.left_s:
                raise problem
            return None
        if problem is not None:
            problem = self._given_up(resize, calls, begun, problem)
        self.session.members.tell(self.members).wait(_HEARD_S)
        follows_later = ways.follows and not ways.meets  # after whatever they are at: it holds up nobody
        following = self._call_few(numbers, before, self.members) if follows_later else []
        return leaving, following, problem

    def _commit_shrinkage(
        self, after: GroupMembers, numbers: Sequence[int], resize: WantedResize, num_anew: int
    ) -> list[LaunchedRank]:
        """The group has fewer ranks; those that leave, none where all of them come back together, or have."""
        if self._away_together() is not None or self._num_anew > num_anew:
            return []
        leaving = [self.ranks[number] for number in numbers]
        self._take_resized(after, resize)
        return leaving

    def _call_few(self, numbers: Sequence[int], before: GroupMembers, after: GroupMembers) -> list[Call]:
        """Have those that stay follow, and those that leave."""
        return [
            call
            for ranks in (after.ranks, numbers)  # the end of one that leaves means nothing to others
            for call in self._call_on_resize(ranks, before, after)
        ]

    def _met_by_few(
        self, resize: WantedResize, numbers: Sequence[int], before: GroupMembers, after: GroupMembers
    ) -> tuple[list[Call], ResizeError | None]:
        """Have those that stay meet without those that leave; what that failed with."""
        calls = self._call_few(numbers, before, after)
        try:
            self._wait_followed(resize, calls, after, FOLLOW_S)
        except ResizeError as error:
            return calls, error
        return calls, None

    def _left_in_order(self, rank: LaunchedRank) -> bool:
        """Whether a rank that is gone had finished; Ray may not say so of one whose node ends with its last rank."""
        process_id = "" if rank.endpoint is None else rank.endpoint.process_id
        lost = self.session.messenger.peers.lost.get(process_id)
        return rank.came_to_its_end or (lost is not None and lost.loss is Loss.LEFT)

    def _begin_drain(self, resize: WantedResize, leaving: Sequence[LaunchedRank]) -> list[Promise[Any]]:
        """End the turn, and return promises that are done when each of these ranks has ended; on the I/O thread."""
        self._end_turn(resize)
        return [self._successors.give_up(rank.address.rank) or rank.gone for rank in leaving]

    def _force(self, rank: LaunchedRank, resize: WantedResize) -> None:
        rank.ended_by = f"{resize.operation} ended it after {seconds_text(resize.until.limit_s)}"
        _log.warning("%s: '%s' had not finished, and is ended by force", resize.operation, rank.address)
        self._kill(rank)

    def _release(self, rank: LaunchedRank) -> None:
        """Others may have what a rank had that has left."""
        number, nodes = rank.address.rank, job_topology(self.session).nodes
        self.session.service(Moves).leave(self.name, number)  # first: another may have its number after that
        self._decide(partial(self._on_left, number))
        if self.give_back is not None:
            theirs = [device_names(each.placement, nodes) for each in self.ranks.values()]
            self.give_back(device_names(rank.placement, nodes).difference(*theirs))
