"""The job server's side of the groups of a job that outlives its drivers: launched for others, told of, ended."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rlinf_scheduler.comm import Buffer, Endpoint, Request
from rlinf_scheduler.comm.directory import WORLD_SIZE
from rlinf_scheduler.comm.loop import ending
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.threads import run_beside_in_time
from rlinf_scheduler.errors import ClusterError, CommError, WorkerDied
from rlinf_scheduler.host.info import group_entry
from rlinf_scheduler.session import Session
from rlinf_scheduler.worker.deaths import Verdict
from rlinf_scheduler.worker.detached_groups import no_such_group
from rlinf_scheduler.worker.group_launch import claim_name
from rlinf_scheduler.worker.group_wire import (
    CLAIM,
    DISCLAIM,
    END,
    FOLLOW,
    LAUNCH,
    NEWS,
    RESTART,
    ClaimName,
    EndGroup,
    FollowGroup,
    GroupRecord,
    GroupUpdate,
    LaunchGroup,
    RankUpdate,
    RestartRank,
)
from rlinf_scheduler.worker.launch import Recipe, launch_ranks, launch_successors
from rlinf_scheduler.worker.moves import Moves
from rlinf_scheduler.worker.supervision import Supervision, stop_groups


@dataclass(slots=True, eq=False)
class ServedGroup:
    """A group of the job server's.

    Attributes:
        number: no other one has it.
        supervision: its processes.
        on_failure: what the death of a rank means.
        stall_after_s: as it was launched.
        class_frames: the worker's class, encoded.
        give_back: gives its devices back.
        owner: the process with which it ends; "" for none.
        owner_name: how that is called.
        followers: the processes that are told of it.
    """

    number: int
    supervision: Supervision
    on_failure: Verdict
    stall_after_s: float
    class_frames: list[Buffer]
    give_back: Callable[[], None] | None = None
    owner: str = ""
    owner_name: str = ""
    followers: set[str] = field(default_factory=set)

    def record(self) -> GroupRecord:
        """It, for those that call it; on the I/O thread."""
        group = self.supervision
        ranks = [self.update_of(number) for number in range(len(group.ranks))]
        return GroupRecord(self.number, group.name, self.on_failure, self.stall_after_s, ranks)

    def update_of(self, number: int) -> RankUpdate:
        """How a rank is; on the I/O thread."""
        rank = self.supervision.ranks[number]
        state, reason = self.supervision.state_of(number)
        gone = rank.gone.result(0) if rank.gone.done() else ""
        placement = pickle.dumps(rank.placement)
        return RankUpdate(number, state, reason, gone, rank.endpoint, rank.pid, rank.num_restarts, placement)


class GroupServer:
    """Launches and ends groups for the processes of a detached job; a service of the job server. On the I/O thread.

    Args:
        session: of the job server.

    Attributes:
        groups: those that have not ended, by number.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._messenger = session.messenger
        self._moves = session.service(Moves)
        self.groups: dict[int, ServedGroup] = {}
        self._next_number = itertools.count(1).__next__
        # By name: the process that has claimed it, and has not launched it.
        self._claims: dict[str, str] = {}
        # By name: who is told of what it prints while it is launched.
        self._launching: dict[str, str] = {}
        self._messenger.serve(CLAIM, self._on_claim, ClaimName)
        self._messenger.serve(DISCLAIM, self._on_disclaim, str)
        self._messenger.serve(LAUNCH, self._on_launch, LaunchGroup)
        self._messenger.serve(FOLLOW, self._on_follow, FollowGroup)
        self._messenger.serve(END, self._on_end, EndGroup)
        self._messenger.serve(RESTART, self._on_restart, RestartRank)
        self._messenger.on_peer_lost(self._on_peer_lost)

    def listeners(self, name: str) -> set[str]:
        """The processes that are told what a group prints; from any thread."""
        found = {self._launching[name]} if name in self._launching else set()
        for group in list(self.groups.values()):
            if group.supervision.name == name:
                found.update(group.followers)
        return found

    def end_groups_of(self, process_id: str) -> None:
        """End the groups that stay only as long as a process does; a thread's own work, waits until they have ended."""
        groups = [group for group in list(self.groups.values()) if group.owner == process_id]
        stop_groups([group.supervision for group in groups], "the end of its driver")

    # -- the I/O thread --------------------------------------------------------------------------

    def _on_claim(self, request: Request) -> None:
        self._beside(self._claim, request, request.peer_name)

    def _on_launch(self, request: Request) -> None:
        wanted: LaunchGroup = request.head
        if self._claims.pop(wanted.name, None) != request.peer_id:
            raise ClusterError(f"group '{wanted.name}' is to be launched by who has not claimed its name")
        given_up: Promise[None] = Promise()
        request.on_cancel(lambda: given_up.set_result(None))
        self._launching[wanted.name] = request.peer_id
        self._beside(self._launch, request, given_up)

    def add(
        self, group: Supervision, on_failure: Verdict, stall_after_s: float, class_frames: list[Buffer]
    ) -> ServedGroup:
        """Keep a group that was launched here; it stays until somebody ends it."""
        served = ServedGroup(self._next_number(), group, on_failure, stall_after_s, class_frames)
        self.groups[served.number] = served
        group.on_change.append(partial(self._on_change, served))
        return served

    def _on_launched(self, request: Request, group: Supervision, recipe: Recipe) -> None:
        wanted: LaunchGroup = request.head
        self._launching.pop(wanted.name, None)
        class_frames = request.frames[1 : 1 + wanted.num_class_frames]
        served = self.add(group, wanted.on_failure, recipe.options.stall_after_s, class_frames)
        served.give_back = recipe.give_back
        if not wanted.detached:
            served.owner, served.owner_name = request.peer_id, request.peer_name
        served.followers.add(request.peer_id)
        if not request.reply(
            served.record(), on_confirmed=partial(self._on_confirmed, served, request.peer_id)
        ):
            group.stop_beside()  # its launch was given up

    def _on_confirmed(self, served: ServedGroup, launcher: str, taken: bool) -> None:
        # Who is lost may have had it: what has an owner ends with that, what has none stays.
        if not taken and launcher not in self._messenger.peers.lost:
            served.supervision.stop_beside()

    def _on_failed(self, name: str) -> None:
        self._launching.pop(name, None)

    def _on_change(self, served: ServedGroup, rank: int | None) -> None:
        group = served.supervision
        has_ended = group.ended.done()
        if rank is not None:
            news = GroupUpdate(served.number, served.update_of(rank))
        elif group.stopping:
            news = GroupUpdate(served.number, None, has_ended)
        else:
            return
        for process_id in served.followers:
            self._messenger.notify(_known(process_id), NEWS, news)
        if has_ended and self.groups.pop(served.number, None) is not None:
            self._beside(self._give_back, served)

    def _on_follow(self, request: Request) -> None:
        wanted: FollowGroup = request.head
        there = {
            served.supervision.name: served
            for served in self.groups.values()
            if not served.supervision.stopping
        }
        if wanted.name in self._launching:
            raise ClusterError(
                f"group '{wanted.name}' is being launched: it can be attached to when that is done"
            )
        if wanted.name not in there:
            raise no_such_group(wanted.name, sorted(there))
        served = there[wanted.name]
        served.followers.add(request.peer_id)
        request.reply(served.record(), served.class_frames)

    def _on_end(self, request: Request) -> None:
        wanted: EndGroup = request.head
        served = self.groups.get(wanted.number)
        if served is None:  # it has ended
            request.reply(None)
        elif wanted.finishes:
            self._answer_beside(request, partial(served.supervision.shutdown, wanted.timeout_s))
        else:
            self._answer_beside(request, served.supervision.stop)

    def _on_restart(self, request: Request) -> None:
        wanted: RestartRank = request.head
        served = self.groups.get(wanted.number)
        if served is None:
            raise WorkerDied(f"group {wanted.number}", wanted.rank, "", "the group was terminated")
        self._answer_beside(request, partial(served.supervision.restart, wanted.rank, wanted.timeout_s))

    def _on_peer_lost(self, process_id: str) -> None:
        for served in self.groups.values():
            served.followers.discard(process_id)
        for name in list(self._claims):
            self._free(name, process_id)
        if any(served.owner == process_id for served in self.groups.values()):
            self._beside(self.end_groups_of, process_id)

    def _on_disclaim(self, notice: Request) -> None:
        self._free(notice.head, notice.peer_id)

    def _free(self, name: str, claimant: str) -> None:
        """A process does not launch what it has claimed a name for."""
        if self._claims.get(name) == claimant:
            del self._claims[name]
            self._session.directory.unregister_async(group_entry(name))

    def _answer_beside(self, request: Request, work: Callable[[], None]) -> None:
        self._beside(_answer, request, work)

    def _beside(self, function: Callable[..., object], *args: Any) -> None:
        run_beside_in_time(self._messenger.call_later, function, *args)

    # -- threads of their own --------------------------------------------------------------------

    def _claim(self, request: Request, claimant: str) -> None:
        wanted: ClaimName = request.head
        about = {WORLD_SIZE: wanted.world_size}
        try:
            name = claim_name(self._session, wanted.wanted, wanted.class_name, about, claimant)
        except BaseException as error:  # noqa: BLE001 - it belongs to the caller
            request.fail(error)
        else:
            self._messenger.submit(ending(partial(self._on_claimed, request, name), request.fail))

    def _on_claimed(self, request: Request, name: str) -> None:
        self._claims[name] = request.peer_id

        def on_confirmed(taken: bool) -> None:
            if not taken:
                self._free(name, request.peer_id)

        if not request.reply(name, on_confirmed=on_confirmed):
            on_confirmed(False)

    def _launch(self, request: Request, given_up: Promise[None]) -> None:
        wanted: LaunchGroup = request.head
        try:
            placements, options, limit = pickle.loads(request.frames[0])
            factory = tuple(request.frames[1 + wanted.num_class_frames :])
            recipe = Recipe(self._session, wanted.name, factory, options, len(placements))
            ranks = launch_ranks(self._session, placements, recipe, given_up)
        except BaseException as error:  # noqa: BLE001 - it belongs to the caller
            self._messenger.submit(partial(self._on_failed, wanted.name))
            with suppress(CommError):  # without a job no name is taken
                self._session.directory.unregister(group_entry(wanted.name))
            request.fail(error)
            return
        start_successors = partial(launch_successors, self._session, recipe)
        stall_after_s = options.stall_after_s
        group = Supervision(
            self._session, wanted.name, ranks, wanted.on_failure, start_successors, limit, stall_after_s
        )
        self._messenger.submit(ending(partial(self._on_launched, request, group, recipe), request.fail))

    def _give_back(self, served: ServedGroup) -> None:
        """The job may go on for long without this group: others are to have its devices."""
        self._moves.forget(served.supervision.name)
        if served.give_back is not None:
            served.give_back()


def _answer(request: Request, work: Callable[[], None]) -> None:
    try:
        work()
    except BaseException as error:  # noqa: BLE001 - it belongs to the caller
        request.fail(error)
    else:
        request.reply(None)


def _known(process_id: str) -> Endpoint:
    """A process that is connected."""
    return Endpoint(process_id, "", "", "")
