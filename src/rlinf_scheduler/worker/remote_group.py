"""A group that the job server of the job supervises, as a process sees it that calls it."""

from __future__ import annotations

import pickle
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from typing import Any

from rlinf_scheduler.addresses import WorkerAddress
from rlinf_scheduler.comm import Endpoint, Request
from rlinf_scheduler.comm.directory import ANSWER_TIMEOUT_S
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.waits import awaited
from rlinf_scheduler.errors import LaunchTimeout
from rlinf_scheduler.planning import Placement
from rlinf_scheduler.session import Session
from rlinf_scheduler.wording import seconds_text
from rlinf_scheduler.worker.group_calls import GroupCalls, awaits_end, awaits_restart
from rlinf_scheduler.worker.group_wire import (
    END,
    NEWS,
    RESTART,
    EndGroup,
    GroupRecord,
    GroupUpdate,
    RankUpdate,
    RestartRank,
)

# Beyond what its calls are given: processes that do not end in order are killed meanwhile.
END_WITHIN_S = 30.0


@dataclass(eq=False)
class RemoteRank:
    """One rank's process; see `LaunchedRank`."""

    address: WorkerAddress
    placement: Placement
    endpoint: Endpoint | None
    pid: int
    num_restarts: int
    gone: Promise[str] = field(default_factory=Promise)
    ended_by: str = ""


class RemoteGroup(GroupCalls[RemoteRank]):
    """The group of a record. The job server's news come on the I/O thread, in order.

    Args:
        record: how the group was when it was asked about.
    """

    def __init__(self, session: Session, record: GroupRecord) -> None:
        ranks = [_rank_of(record.name, news) for news in record.ranks]
        super().__init__(session, record.name, ranks, record.on_failure, record.stall_after_s)
        self.number = record.number
        for news in record.ranks:
            self._take(news)

    # -- the I/O thread --------------------------------------------------------------------------

    def on_update(self, news: GroupUpdate) -> None:
        """Something has become of it."""
        if news.rank is not None:
            self._take(news.rank)
            return
        self._deaths.stopping = True
        if news.ended:
            self._refuse_waiting()

    def on_left(self) -> None:
        """This process has to leave the job: callers that wait are told why."""
        self._deaths.stopping = True
        for rank in self.ranks:
            rank.gone.set_result(self.session.failure)
        self._end_all_calls()

    def _take(self, news: RankUpdate) -> None:
        number, rank = news.rank, self.ranks[news.rank]
        if _process_of(news.endpoint) != _process_of(rank.endpoint):
            self.ranks[number] = rank = _rank_of(self.name, news)
            self._pending.forget(number)
        if news.gone:
            rank.gone.set_result(news.gone)
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


class RemoteGroups:
    """The groups of the job server that this process calls; a service of its session. On the I/O thread."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._groups: dict[int, RemoteGroup] = {}
        session.messenger.serve(NEWS, self._on_update, GroupUpdate)
        session.on_close(self._close)

    def __contains__(self, name: object) -> bool:
        """Whether a group of that name is among them; from any thread."""
        return any(group.name == name for group in list(self._groups.values()))

    def take(self, record: GroupRecord) -> RemoteGroup:
        """The group of a record that the job server has just sent."""
        if record.number not in self._groups:
            self._groups[record.number] = RemoteGroup(self._session, record)
        return self._groups[record.number]

    def _on_update(self, notice: Request) -> None:
        news: GroupUpdate = notice.head
        group = self._groups.get(news.number)
        if group is not None and notice.peer_id == self._session.home.process_id:
            group.on_update(news)
            if news.ended:
                del self._groups[news.number]

    def _close(self) -> None:
        """Tell those who wait why this process leaves, before the messenger ends what they wait for."""
        messenger = self._session.messenger
        if not self._session.failure or messenger.why_closed:
            return
        told: Promise[None] = Promise()
        messenger.submit(lambda: self._on_left(told))
        if not messenger.on_io_thread():
            told.wait(ANSWER_TIMEOUT_S)

    def _on_left(self, told: Promise[None]) -> None:
        for group in self._groups.values():
            group.on_left()
        told.set_result(None)


def _rank_of(group: str, news: RankUpdate) -> RemoteRank:
    placement: Placement = pickle.loads(news.placement)
    return RemoteRank(WorkerAddress(group, news.rank), placement, news.endpoint, news.pid, news.num_restarts)


def _process_of(endpoint: Endpoint | None) -> str:
    return "" if endpoint is None else endpoint.process_id
