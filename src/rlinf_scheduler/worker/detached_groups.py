"""Groups of a job that outlives its drivers: its job server launches them, and any process of the job may call them."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from rlinf_scheduler.comm import Buffer, RequestFuture, decode, encode
from rlinf_scheduler.comm.directory import ANSWER_TIMEOUT_S
from rlinf_scheduler.comm.loop import ending
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.errors import ClusterError, CodecError, ConfigError, LaunchTimeout
from rlinf_scheduler.host.log_lines import level_to_forward
from rlinf_scheduler.host.protocol import WorkerFactory
from rlinf_scheduler.planning import Placement
from rlinf_scheduler.session import Session
from rlinf_scheduler.wording import did_you_mean, list_names, seconds_text
from rlinf_scheduler.worker.deaths import Policy
from rlinf_scheduler.worker.group_wire import (
    CLAIM,
    DISCLAIM,
    FOLLOW,
    LAUNCH,
    ClaimName,
    FollowGroup,
    GroupRecord,
    LaunchGroup,
)
from rlinf_scheduler.worker.launch import LaunchOptions
from rlinf_scheduler.worker.remote_group import RemoteGroup, RemoteGroups
from rlinf_scheduler.worker.signatures import encoded_factory
from rlinf_scheduler.worker.successors import RestartLimit

T = TypeVar("T")


def prepare_detached_launch(
    session: Session,
    factory: WorkerFactory,
    placements: Sequence[Placement],
    name: str | None,
    options: LaunchOptions,
    on_failure: Policy,
    limit: RestartLimit,
    *,
    detached: bool,
) -> tuple[str, Callable[[], RemoteGroup]]:
    """As `prepare_launch`, by the job server.

    Args:
        session: of this process.
        factory: the worker's class and its arguments.
        placements: of the ranks.
        name: the group's; None for the class's.
        options: how it is launched.
        on_failure: what the death of a rank means; no function, for that would end with this process.
        limit: how often a rank comes back.
        detached: whether the group stays when this process has left.

    Raises:
        GroupExists: the name is taken.
        ConfigError: `on_failure` is a function.
        CodecError: an argument of the worker's cannot be sent; the text names it.
        CommError: the job server does not answer.
    """
    if callable(on_failure) or on_failure == "end":
        problem = (
            "on_failure is a function of this program, and the groups of this job belong to its job server"
        )
        raise ConfigError(problem, hint="one of 'fail', 'restart', 'ignore'")
    options = replace(options, sys_path=tuple(sys.path), log_level=level_to_forward())
    plan = pickle.dumps((tuple(placements), options, limit))
    of_class, of_factory = encode(factory.worker_class).snapshot(), encoded_factory(factory).snapshot()
    claimed = _claim(session, ClaimName(name, factory.worker_class.__name__, len(placements)))
    head = LaunchGroup(claimed, on_failure, detached, len(of_class))
    # The job server has the deadline, and says who is missing; its word may take a moment.
    limit_s = options.timeout_s + options.wait_s + ANSWER_TIMEOUT_S

    def launch() -> RemoteGroup:
        asked = _RecordAsked(session, LAUNCH, head, [plan, *of_class, *of_factory])
        try:
            if asked.answer.wait(limit_s):
                return asked.answer.result(0)[0]
        except BaseException:
            asked.give_up()
            raise
        asked.give_up()
        raise LaunchTimeout(
            claimed, f"the job server has not answered for {seconds_text(limit_s)}", ["all ranks"]
        )

    return claimed, launch


def remote_group_of(session: Session, name: str, worker_class: type[T] | None) -> tuple[RemoteGroup, type[T]]:
    """A group of the job server's, and the worker's class.

    Args:
        session: of this process.
        name: the group's.
        worker_class: the class; None: as it was launched.

    Raises:
        ClusterError: there is no such group, or its class cannot be imported here.
        CommError: the job server does not answer.
    """
    answer = _RecordAsked(session, FOLLOW, FollowGroup(name), []).answer
    if not answer.wait(ANSWER_TIMEOUT_S):
        raise ClusterError(f"attach({name!r}): the job server has not answered for {ANSWER_TIMEOUT_S:g} s")
    group, frames = answer.result(0)
    if worker_class is not None:
        return group, worker_class
    try:
        found: type[T] = decode(frames[0], frames[1:])
    except CodecError as error:
        problem = f"the class of its workers cannot be imported here: {error.__cause__ or error}"
        raise ClusterError(f"attach({name!r}): {problem}; attach(..., worker_class=) names it") from error
    return group, found


def _claim(session: Session, wanted: ClaimName) -> str:
    messenger = session.messenger
    asked = messenger.request(session.home, CLAIM, wanted, timeout_s=ANSWER_TIMEOUT_S, reply_type=str)
    try:
        claimed: str = asked.result().head
    except BaseException:
        if not asked.cancel() and asked.exception(0) is None:  # interrupted as the answer came
            messenger.notify(session.home, DISCLAIM, asked.result(0).head)
        raise
    return claimed


def no_such_group(name: str, there: Sequence[str]) -> ClusterError:
    """That the job server has no group of that name, and which it has."""
    listed = f"there are {list_names(there)}" if there else "it has none"
    hint = did_you_mean(name, there)
    return ClusterError("; ".join(filter(None, [f"no group '{name}' in this job: {listed}", hint])))


class _RecordAsked:
    """A question to the job server that a group's record answers. All on the I/O thread.

    No news of the group is missed.
    """

    def __init__(self, session: Session, service: str, head: Any, frames: list[Buffer]) -> None:
        self.answer: Promise[tuple[RemoteGroup, list[Buffer]]] = Promise(self._cancel)
        self._session = session
        self._groups = session.service(RemoteGroups)
        self._request: RequestFuture | None = None
        session.messenger.submit(
            ending(partial(self._begin, service, head, frames), self.answer.set_exception)
        )

    def give_up(self) -> None:
        """Nobody wants it any more; from any thread."""
        if not self.answer.cancel() and self.answer.exception(0) is None:
            self.answer.result(0)[0].stop_beside()  # it came at the last moment

    def _begin(self, service: str, head: Any, frames: list[Buffer]) -> None:
        if not self.answer.done():
            messenger = self._session.messenger
            self._request = messenger.request(
                self._session.home, service, head, frames, reply_type=GroupRecord
            )
            self._request.add_done_callback(self._on_reply)

    def _cancel(self) -> None:
        self._session.messenger.submit(self._withdraw)

    def _withdraw(self) -> None:
        if self._request is not None:
            self._request.cancel()

    def _on_reply(self, reply: RequestFuture) -> None:
        if reply.cancelled():
            return
        error = reply.exception(0)
        if error is not None:
            self.answer.set_exception(error)
        else:
            found = reply.result(0)
            group = self._groups.take(found.head)
            self.answer.set_result((group, found.frames))
            if self.answer.cancelled():  # it came before that was known here
                group.stop_beside()
