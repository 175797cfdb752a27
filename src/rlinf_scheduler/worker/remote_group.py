"""Groups that another process supervises, as a process sees them that calls them: by record and updates, or as sent."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Never

from rlinf_scheduler.addresses import WorkerAddress
from rlinf_scheduler.comm import Endpoint, encode
from rlinf_scheduler.comm.directory import (
    ANSWER_TIMEOUT_S,
    DEFAULT_TIMEOUT_S,
    EPOCH,
    GROUPS,
    Entry,
    ranks_of,
)
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.threads import ASK_AGAIN_S
from rlinf_scheduler.comm.transport.peer_session import Loss
from rlinf_scheduler.comm.waits import LAUNCH, Wait, awaited
from rlinf_scheduler.errors import ClusterError, CommError, LaunchTimeout, PlacementError, WorkerDied
from rlinf_scheduler.planning import Placement
from rlinf_scheduler.session import Session, current_session
from rlinf_scheduler.session.membership import GroupMembers
from rlinf_scheduler.wording import seconds_text
from rlinf_scheduler.worker.call import Call, Target
from rlinf_scheduler.worker.deadline import Deadline
from rlinf_scheduler.worker.group_calls import GroupCalls, awaits_end, awaits_restart
from rlinf_scheduler.worker.home_wire import (
    END,
    RESIZE,
    RESTART,
    EndGroup,
    GroupRecord,
    GroupUpdate,
    RankUpdate,
    ResizeGroup,
    RestartRank,
)
from rlinf_scheduler.worker.order import FOLLOW_S, Growth, Shrinkage

# Beyond what its calls are given: processes that do not end in order are killed meanwhile.
END_WITHIN_S = 30.0


@dataclass(eq=False)
class RemoteRank:
    """One rank's process; see `LaunchedRank`."""

    address: WorkerAddress
    placement: Placement
    endpoint: Endpoint | None
    pid: int = 0
    num_restarts: int = 0
    gone: Promise[str] = field(default_factory=Promise)
    ended_by: str = ""


class RemoteGroup(GroupCalls[RemoteRank]):
    """The group of a record. The job server's news come on the I/O thread, in order.

    Args:
        record: how the group was when it was asked about.
    """

    def __init__(self, session: Session, record: GroupRecord) -> None:
        ranks = [_rank_of_update(record.members.group, news) for news in record.ranks]
        super().__init__(session, record.members, ranks, record.on_failure, record.stall_after_s)
        self.number = record.number
        for news in record.ranks:
            self._take(news)

    # -- the I/O thread --------------------------------------------------------------------------

    def on_update(self, news: GroupUpdate) -> None:
        """Something has become of it."""
        if news.rank is not None:
            self._take(news.rank)
            return
        if news.members is not None:
            self._take_members(news.members, news.why)
            return
        self._deaths.stopping = True
        if news.ended:
            self._refuse_waiting()

    def next_target(self, address: WorkerAddress) -> Target | None:
        """As `GroupCalls.next_target`; of a rank that said goodbye the call waits until it is known whether it left."""
        target = super().next_target(address)
        if target is not None or self._deaths.stopping or address.rank in self.left:
            return target
        rank, lost = self.ranks.get(address.rank), self.session.messenger.peers.lost
        gone = None if rank is None else lost.get(_process_of(rank.endpoint))
        if gone is None or gone.loss is not Loss.LEFT:
            return None
        why = gone.reason
        # The home's answer is behind its news.
        asked = self.session.directory.lookup_async(f"{GROUPS}{self.name}", 0.0)
        asked.add_done_callback(lambda _: self._refuse_parts(address.rank, why))
        return Target(address, None)

    def on_left(self) -> None:
        """This process has to leave the job: callers that wait are told why."""
        self._deaths.stopping = True
        for rank in self.ranks.values():
            rank.gone.set_result(self.session.failure)
        self._end_all_calls()

    def _take(self, news: RankUpdate) -> None:
        number, rank = news.rank, self.ranks.get(news.rank)
        if rank is None or _process_of(news.endpoint) != _process_of(rank.endpoint):
            rank = _rank_of_update(self.name, news)
            self.ranks = {**self.ranks, number: rank}
            self._pending.forget(number)
        if news.gone:
            rank.gone.set_result(news.gone)
        if number in self.left:
            if news.gone:
                self.ranks = {each: other for each, other in self.ranks.items() if each != number}
            return
        is_new = news.state == "away" and number not in self._deaths.away
        ends_calls = self._deaths.told(number, news.state, news.reason)
        if news.state == "away":
            if is_new and self.are_one:  # the others are told of next
                self._begin_anew(number, news.reason)
            return
        for call in self._pending:
            if news.state == "there":
                call.go_on(self.target(number))
                continue
            call.refuse(self._death_in(call, number, news.reason))
            if ends_calls:
                self._end_with_the_dead(call)

    # -- other threads ---------------------------------------------------------------------------

    @awaited(awaits_restart)
    def restart(self, number: int, timeout_s: float) -> None:
        """Have another process take a rank's place, and wait until it has."""
        try:
            self._ask(RESTART, RestartRank(self.number, number, timeout_s), timeout_s + ANSWER_TIMEOUT_S)
        except FutureTimeout:
            problem = f"rank {number} is not back after {seconds_text(timeout_s)}"
            raise LaunchTimeout(self.name, problem, ["the job server does not say why"]) from None

    def grow(self, growth: Growth, given_up: Promise[None] | None = None) -> tuple[int, ...]:
        """Start further ranks, and return their numbers when they are ready."""
        return self._resize(growth, growth.timeout_s + ANSWER_TIMEOUT_S)

    def shrink(
        self, shrinkage: Shrinkage, given_up: Promise[None] | None = None, until: Deadline | None = None
    ) -> tuple[int, ...]:
        """Let ranks finish what they have and end, and return their numbers when they have ended."""
        # They wait for their turn first, and for those that stay to follow.
        limit_s = 2 * shrinkage.drain_s + max(shrinkage.drain_s, FOLLOW_S)
        return self._resize(shrinkage, limit_s + ANSWER_TIMEOUT_S)

    @awaited(lambda local: Wait(LAUNCH, f"{local['wanted'].operation} of '{local['self'].name}'"))
    def _resize(self, wanted: Growth | Shrinkage, limit_s: float) -> tuple[int, ...]:
        asked = self.session.messenger.request(
            self.session.home,
            RESIZE,
            ResizeGroup(self.number),
            encode(wanted).snapshot(),
            timeout_s=limit_s,
            reply_type=tuple[int, ...],
        )
        try:
            numbers: tuple[int, ...] = asked.result().head
        except BaseException:
            asked.cancel()
            raise
        return numbers

    def stop(self) -> None:
        """End every process: after the call that it runs now, or after a grace period by force."""
        self._end(finishes=False, timeout_s=None)

    def shutdown(self, timeout_s: float | None) -> None:
        """End every process once it has answered the calls that it has got; what is left at the deadline is killed."""
        self._end(finishes=True, timeout_s=timeout_s)

    @awaited(awaits_end)
    def _end(self, *, finishes: bool, timeout_s: float | None) -> None:
        ended = Promise[None]()
        has_no_limit = finishes and timeout_s is None
        limit_s = None if has_no_limit else (timeout_s or 0.0) + END_WITHIN_S
        self._ask(END, EndGroup(self.number, finishes, timeout_s), limit_s)
        # The job server's news came before its answer.
        self.session.messenger.submit(lambda: ended.set_result(None))
        ended.wait(ANSWER_TIMEOUT_S)

    def _ask(self, service: str, head: Any, timeout_s: float | None) -> None:
        asked = self.session.messenger.request(
            self.session.home, service, head, timeout_s=timeout_s, reply_type=None
        )
        asked.result()


class SentGroup(GroupCalls[RemoteRank]):
    """The processes of a group that another process launched, and supervises.

    A rank that dies ends the calls that it has begun; those that it never began, and the next ones, find its successor,
    if it has one. Of resizes it knows what this process has heard by then, or has asked as a rank was gone.

    Raises:
        WorkerDied: a rank is gone, or the group is.
    """

    def __init__(self, session: Session, name: str) -> None:
        self._heard = session.members.known.get(name)
        members, ranks = _look_up(session, name)
        super().__init__(session, members, ranks, "ignore", 0.0)

    @property
    def members(self) -> GroupMembers:
        """The ranks that it has now, as far as this process has heard."""
        self._hear()
        return self._members

    @members.setter
    def members(self, members: GroupMembers) -> None:
        self._members = members

    def _hear(self) -> None:
        """Take what was told of the group's ranks."""
        heard = self.session.members.known.get(self.name)
        if heard is not None and heard is not self._heard:
            self._change(partial(self._take, heard))

    def _change(self, change: Callable[[], None]) -> None:
        """Have the I/O thread change what is known of the group, which it alone does."""
        messenger = self.session.messenger
        if messenger.on_io_thread():
            change()
            return
        changed: Promise[None] = Promise()
        messenger.submit(lambda: changed.set_from(change))
        if not messenger.why_closed:
            changed.wait(ANSWER_TIMEOUT_S)

    def _take(self, heard: GroupMembers) -> None:
        # The directory may have said the same before; it does not say of which launch.
        is_later = self._heard is not None and heard.launched_ns > self._heard.launched_ns
        if is_later or heard.epoch > self._members.epoch:
            self._become(heard)
        self._heard = heard

    def _note(self, members: GroupMembers) -> None:
        """Take what the directory says of the group's ranks, where this process has not heard that yet."""
        if members.epoch > self._members.epoch:
            self._become(members)

    def _become(self, members: GroupMembers) -> None:
        gone = [rank for rank in self._members.ranks if rank not in members]
        left = {**self.left, **dict.fromkeys(gone, "it has left, as its group was resized")}
        self.left = {rank: why for rank, why in left.items() if rank not in members}
        # After more than one resize a number may be another process's.
        is_next = members.epoch == self._members.epoch + 1
        self.ranks = {each: rank for each, rank in self.ranks.items() if each in members} if is_next else {}
        self._members = members

    # -- the I/O thread: where a rank is whose process is gone ------------------------------------

    def next_target(self, address: WorkerAddress) -> Target | None:
        """Where a call is sent again whose rank is gone: what it waits for, as the directory is asked for both."""
        if self.why_left(address) is not None:
            return None
        self._ask_again(address)
        return Target(address, None)

    def _ask_again(self, address: WorkerAddress) -> None:
        """Ask whether a rank is a member, for it may have left, and where it is then."""
        asked = self.session.directory.lookup_async(f"{GROUPS}{self.name}", 0.0)
        asked.add_done_callback(partial(self._on_group, address))

    def _on_group(self, address: WorkerAddress, asked: Promise[Entry]) -> None:
        if asked.exception() is not None:
            self._refuse_parts(address.rank, str(asked.exception()))
            return
        members = _members_of(self.name, asked.result())
        self._note(members)
        if address.rank in members:
            found = self.session.directory.lookup_async(str(address))
            found.add_done_callback(partial(self._on_rank, address))
        else:
            self._refuse_parts(address.rank, self.left.get(address.rank, "it left"))

    def _on_rank(self, address: WorkerAddress, found: Promise[Entry]) -> None:
        if found.exception() is not None:
            self._refuse_parts(address.rank, str(found.exception()))
            return
        rank = _rank_of(address, found.result())
        lost = self.session.messenger.peers.lost.get(_process_of(rank.endpoint))
        if lost is not None and lost.loss is Loss.BROKEN:  # it may well live: nobody will say that it is gone
            self._refuse_parts(address.rank, lost.reason)
            return
        if lost is not None:  # the directory has not heard of that yet
            self.session.messenger.call_later(ASK_AGAIN_S, partial(self._ask_again, address))
            return
        self.ranks = {**self.ranks, address.rank: rank}
        for call in self._pending:
            call.go_on(self.target(address.rank))

    # -- any thread --------------------------------------------------------------------------------

    def _start(self, call: Call) -> None:
        self._hear()
        super()._start(call)

    def why_left(self, address: WorkerAddress) -> PlacementError | None:
        """As `GroupCalls.why_left`."""
        self._hear()
        return super().why_left(address)

    def target(self, number: int) -> Target:
        """Where a call to a rank goes now; it may wait for a successor.

        Raises:
            WorkerDied: the rank is gone.
        """
        rank = self.rank(number)
        return Target(rank.address, rank.endpoint)

    def rank(self, number: int) -> RemoteRank:
        """A rank's process now.

        Raises:
            WorkerDied: the rank is gone.
            PlacementError: it has left the group, as is known now.
        """
        rank = self.ranks.get(number)
        if rank is None or self._is_lost(rank.endpoint):
            address = WorkerAddress(self.name, number)
            try:
                rank = _rank_of(address, _find(self.session, str(address), address))
            except WorkerDied:
                if self._is_member(number):
                    raise
                raise self._not_there(number) from None
            self._change(partial(self._take_rank, number, rank))
        return rank

    def _take_rank(self, number: int, rank: RemoteRank) -> None:
        self.ranks = {**self.ranks, number: rank}

    def _is_member(self, number: int) -> bool:
        """Whether a rank is a member as far as can be known now, for this process may not have heard that it left."""
        with suppress(WorkerDied):  # else all of the group is gone
            self._change(partial(self._note, _members_now(self.session, self.name, 0.0)))
        return number in self._members

    def restart(self, number: int, timeout_s: float) -> Never:
        """Refuse to: see `GroupCalls`."""
        self._refuse("restart")

    def stop(self) -> Never:
        """Refuse to: see `GroupCalls`."""
        self._refuse("end")

    def shutdown(self, timeout_s: float | None) -> Never:
        """Refuse to: see `GroupCalls`."""
        self._refuse("end")

    def _refuse(self, what: str) -> Never:
        raise ClusterError(
            f"group '{self.name}' was sent here: only the process that launched it can {what} it"
        )


def sent_group(group_class: Any, name: str, worker_class: Any, state: dict[str, Any]) -> Any:
    """The group, or view of one, that was sent to this process.

    Raises:
        ClusterError: this process is no part of the job.
        WorkerDied: a rank is gone.
    """
    launched: Promise[GroupCalls[Any]] = Promise()
    shared = SentGroup(current_session(), name)
    launched.set_result(shared)
    group = group_class(name, worker_class, shared.members.world_size, launched)
    vars(group).update(state)
    return group


def _look_up(session: Session, name: str) -> tuple[GroupMembers, list[RemoteRank]]:
    """The members of a group and their processes, as they are together.

    Raises:
        WorkerDied: as of `SentGroup`.
    """
    while True:
        members = _members_now(session, name, DEFAULT_TIMEOUT_S)
        there = {each.name: each for each in session.directory.list(f"{name}:")}
        addresses = [WorkerAddress(name, rank) for rank in members.ranks]
        try:
            ranks = [
                _rank_of(address, there.get(str(address)) or _find(session, str(address), address))
                for address in addresses
            ]
        except WorkerDied:
            if members == _members_now(session, name, 0.0):  # else it has left meanwhile
                raise
        else:
            return members, ranks


def _members_now(session: Session, name: str, timeout_s: float) -> GroupMembers:
    return _members_of(name, _find(session, f"{GROUPS}{name}", WorkerAddress(name, 0), timeout_s))


def _members_of(group: str, entry: Entry) -> GroupMembers:
    return GroupMembers(group, tuple(ranks_of(entry)), entry.info.get(EPOCH, 0))


def _find(session: Session, name: str, address: WorkerAddress, timeout_s: float = DEFAULT_TIMEOUT_S) -> Entry:
    try:
        return session.directory.lookup(name, timeout_s)
    except CommError as error:
        raise WorkerDied(address.group, address.rank, "", str(error)) from error


def _rank_of(address: WorkerAddress, entry: Entry) -> RemoteRank:
    return RemoteRank(address, pickle.loads(entry.info["placement"]), entry.endpoint)


def _rank_of_update(group: str, news: RankUpdate) -> RemoteRank:
    placement: Placement = pickle.loads(news.placement)
    return RemoteRank(WorkerAddress(group, news.rank), placement, news.endpoint, news.pid, news.num_restarts)


def _process_of(endpoint: Endpoint | None) -> str:
    return "" if endpoint is None else endpoint.process_id
