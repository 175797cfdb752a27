"""How the ranks of a group follow a resize: they are asked, called, waited for, and ended if they cannot meet again."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeVar

from msgspec import structs

from rlinf_scheduler.addresses import WorkerAddress
from rlinf_scheduler.comm import RequestFuture, encode
from rlinf_scheduler.comm.directory import ANSWER_TIMEOUT_S
from rlinf_scheduler.comm.loop import ending
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.errors import CommError, PeerDied, ResizeError, WorkerDied
from rlinf_scheduler.host import protocol
from rlinf_scheduler.host.info import job_topology
from rlinf_scheduler.session.membership import GroupMembers
from rlinf_scheduler.wording import seconds_text
from rlinf_scheduler.worker.call import Call
from rlinf_scheduler.worker.deadline import Deadline
from rlinf_scheduler.worker.launch import Recipe
from rlinf_scheduler.worker.order import FOLLOW_S
from rlinf_scheduler.worker.result import GroupResult
from rlinf_scheduler.worker.supervision import Supervision

R = TypeVar("R")
# A rank that does not answer for so long is stopped, and is asked nothing before its group is resized: the others
# know what it would say. Of a group none of which has answered by then, as of a machine that stood still, one is heard.
PREPARED_S = 5.0


@dataclass(eq=False, slots=True)
class WantedResize:
    """A resize that somebody wants.

    Attributes:
        operation: as its call is written.
        until: when it has to be over.
        given_up: done when nobody wants it any more.
        counts_anew: its time counts from when it is its turn, as of others it does from when it is asked for.
        began: since when its time counts, on the monotonic clock.
        turn: done when it may begin.
        over: done when it has ended, with the numbers of the ranks that came, or left.
        waits_for: what it waits for, in words.
        peers: the processes that it waits for.
    """

    operation: str
    until: Deadline
    given_up: Promise[None]
    counts_anew: bool = False
    began: float = field(default_factory=time.monotonic)
    turn: Promise[None] = field(default_factory=Promise)
    over: Promise[tuple[int, ...]] = field(default_factory=Promise)
    waits_for: str = "its turn"
    peers: tuple[str, ...] = ()

    def begin_anew(self) -> None:
        """Its time counts from now on, if it is one whose does."""
        if self.counts_anew:
            self.began, self.until = time.monotonic(), Deadline(self.until.limit_s)


class Ways(NamedTuple):
    """How the ranks of a group follow a resize.

    Attributes:
        after: the members then.
        meets: they run collectives: all of them meet again, those that join too.
        follows: their class has `on_resize`.
    """

    after: GroupMembers
    meets: bool
    follows: bool


class FollowedGroup(Supervision):
    """A group whose ranks follow a resize, in the process that launched it; a resize's own thread waits for them."""

    _recipe: Recipe  # what its processes are made from

    def _decide(self, decide: Callable[[], R]) -> R:
        """Return what a function returns, or raise what it raises, on the I/O thread.

        Raises:
            CommError: it does not look at that, as it is closed or stuck.
        """
        decided: Promise[R] = Promise()
        messenger = self.session.messenger
        messenger.submit(lambda: decided.set_from(decide))
        if not decided.wait(ANSWER_TIMEOUT_S):
            late = f"its I/O thread has not answered for {seconds_text(ANSWER_TIMEOUT_S)}"
            problem = f"a resize of '{self.name}' ends in this process: {messenger.why_closed or late}"
            raise CommError(problem)
        return decided.result(0)

    def _prepared(self, resize: WantedResize, after: GroupMembers, within_s: float = FOLLOW_S) -> Ways:
        """How its ranks follow a resize.

        Raises:
            ResizeError: they run collectives, and cannot follow.
        """
        resize.waits_for, resize.peers = "its ranks to prepare", self._names(self.members.ranks)
        asked = self._decide(partial(self._ask_prepared, after.ranks[0]))
        known = _answers(resize, asked, within_s)
        meets = self.are_one or any(each.meets for each in known.values())
        follows = any(each.follows for each in known.values())
        if meets and not follows:
            problem = (
                f"{resize.operation}: its ranks run collectives, and their class has no `on_resize(old, new)`"
            )
            hint = "it leaves the process group and meets the others in a new one; nothing has changed"
            raise ResizeError(self.name, f"{problem}: {hint}")
        address, port, first = self.members.master_address, self.members.master_port, after.ranks[0]
        if first in known and known[first].port:
            node = self.ranks[first].placement.node_rank
            address, port = job_topology(self.session).nodes[node].ip, known[first].port
        elif first not in self.members:  # it is being started, and says so itself
            address, port = "", 0
        now = self._recipe.members
        after = structs.replace(
            now, ranks=after.ranks, epoch=after.epoch, master_address=address, master_port=port
        )
        return Ways(after, meets=meets, follows=follows)

    def _ask_prepared(self, first: int) -> dict[int, RequestFuture]:
        """Ask the ranks that are there; on the I/O thread."""
        endpoints = {number: self.target(number).endpoint for number in self.members.ranks}
        return {
            number: self.session.messenger.request(
                endpoint,
                protocol.PREPARE,
                protocol.Prepare(number == first),
                timeout_s=FOLLOW_S,
                reply_type=protocol.Prepared,
            )
            for number, endpoint in endpoints.items()
            if endpoint is not None and not self.session.why_silent(endpoint.process_id)
        }

    def _names(self, numbers: Sequence[int]) -> tuple[str, ...]:
        return tuple(f"{self.name}:{number}" for number in numbers)

    def _call_on_resize(self, ranks: Sequence[int], before: GroupMembers, after: GroupMembers) -> list[Call]:
        """Have those of these ranks follow that are there: a call among their calls, if any are."""
        there = [
            target
            for target in map(self.target, ranks)
            if target.endpoint is not None and not self._is_lost(target.endpoint)
        ]
        if not there:
            return []
        call = Call(self.session.messenger, protocol.ON_RESIZE, there, encode(((before, after), {})))
        self.session.messenger.submit(ending(partial(self._start, call), call.fail))
        return [call]

    def _wait_followed(
        self, resize: WantedResize, calls: Sequence[Call], after: GroupMembers, least_s: float = 0.0
    ) -> None:
        """Wait until all ranks have followed; those that leave are waited for as long as they may take, and no longer.

        Args:
            least_s: how long those that stay may take at least, in seconds.

        Raises:
            ResizeError: one has not, at the deadline or as it raised.
        """
        at_least = Deadline(least_s)
        for call in calls:
            self._wait_for_call(resize, call, after, at_least)

    def _wait_for_call(
        self, resize: WantedResize, call: Call, after: GroupMembers, at_least: Deadline
    ) -> None:
        resize.peers = tuple(map(str, call.addresses))
        resize.waits_for = "on_resize() of its ranks"
        # Who waits for it may give it up; what they have begun goes on.
        is_over = resize.until.wait(call.settled)
        if not is_over and call.addresses[0].rank not in after:  # it leaves, and is ended by force
            return
        if not is_over and not at_least.wait(call.settled):
            late = f"not all have followed after {seconds_text(max(resize.until.limit_s, at_least.limit_s))}"
            raise ResizeError(
                self.name, f"{resize.operation}: {late}; its members are {self.members.in_words}"
            )
        failure = GroupResult(call, partial(self.reason_of_death, call)).failure()
        has_left = isinstance(failure, WorkerDied) and failure.rank not in after
        if failure is not None and not has_left:
            now = f"its members are {self.members.in_words}"
            raise ResizeError(self.name, f"{resize.operation}: {now}, and: {failure}") from failure

    def _hear_of_deaths(self, resize: WantedResize, calls: Sequence[Call]) -> None:
        """Wait until it is known that ranks are gone whose calls ended with them: all may come back together then."""
        until = time.monotonic() + (min(PREPARED_S, resize.until.left_s) if self.are_one else 0.0)
        for call in calls:
            for address, outcome in zip(call.addresses, call.outcomes, strict=True):
                gone = call.why_gone(address)
                if isinstance(outcome, PeerDied) and gone is not None:
                    gone.wait(max(0.0, until - time.monotonic()))

    def _begun(self, calls: Sequence[Call]) -> list[WorkerAddress]:
        """The ranks that have begun to follow, once the others never will."""
        asked = self._decide(partial(self._cancel, calls))
        until = time.monotonic() + (0.0 if self._deaths.stopping else PREPARED_S)
        for answer in asked.values():
            answer.wait(max(0.0, until - time.monotonic()))
        return self._decide(lambda: [address for call in calls for address in call.begun])

    def _cancel(self, calls: Sequence[Call]) -> dict[int, RequestFuture]:
        """Cancel calls; the answers come behind the words of those ranks that had not begun them."""
        for call in calls:
            call.cancel()
        return self._ask_prepared(-1)

    def _given_up(
        self,
        resize: WantedResize,
        calls: Sequence[Call],
        begun: Collection[WorkerAddress],
        error: BaseException,
    ) -> ResizeError:
        """Nobody follows any more; who has begun to meets nobody: end them all, so that `on_failure` decides."""
        said = str(error)
        for known in (f"group '{self.name}': ", f"{resize.operation}: "):
            said = said.removeprefix(known)
        if not begun:
            waits = "no rank has begun on_resize(), which waits for the calls before it"
            return ResizeError(self.name, f"{resize.operation}: nothing has changed, as {waits}: {said}")
        ends = [each for call in calls for each in zip(call.addresses, call.outcomes, strict=True)]
        late = [str(address) for address, end in ends if end is None]
        stuck = f"; in on_resize() still: {', '.join(late)}" if late else ""
        why = f"{resize.operation} failed after on_resize() had begun{stuck}"
        cause = said.partition("\n")[0].rstrip(":")
        self.session.messenger.submit(partial(self._end_members, self.members.ranks, f"{why}: {cause}"))
        return ResizeError(self.name, f"{why}; they have been ended: {said}")

    def _end_members(self, numbers: Sequence[int], why: str) -> None:
        for rank in [self.ranks[number] for number in numbers if number in self.members]:
            self._on_unsaid(rank, why)


def _answers(
    resize: WantedResize, asked: dict[int, RequestFuture], within_s: float
) -> dict[int, protocol.Prepared]:
    """Wait for what ranks say: for all a while, for one longer, unless nobody wants the resize any more."""
    for_all, for_one = Deadline(min(PREPARED_S, within_s)), Deadline(min(FOLLOW_S, within_s))
    for answer in asked.values():
        answer.wait(for_all.left_s)
    while True:
        done = {number: answer for number, answer in asked.items() if answer.done()}
        known = {number: each.result(0).head for number, each in done.items() if each.exception(0) is None}
        late = [answer for number, answer in asked.items() if number not in done]
        if known or not late or not for_one.wait(*late, resize.given_up) or resize.given_up.done():
            return known
