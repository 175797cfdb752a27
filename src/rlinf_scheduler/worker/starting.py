"""How a group's launch is run: before anything else, or beside what the calling thread's block starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.threads import run_beside_in_time
from rlinf_scheduler.session import Session, SideBySide
from rlinf_scheduler.worker.group_calls import GroupCalls

GroupT = TypeVar("GroupT", bound=GroupCalls[Any])
LaunchFunction: TypeAlias = Callable[[], GroupT]


def begin(session: Session, launch: LaunchFunction[GroupT]) -> Promise[GroupT]:
    """Run a launch: now, or in a thread of its own if the calling thread is in a block; it raises, or its promise.

    Args:
        session: whose blocks count.
        launch: brings the group's processes up; raises if it cannot, and leaves nothing behind then.
    """
    promise: Promise[GroupT] = Promise()
    block = session.service(SideBySide).block
    if block is None:
        promise.set_result(launch())
    else:
        block.add(promise, _end)
        begin_beside(session, launch, promise)
    return promise


def begin_beside(session: Session, launch: LaunchFunction[GroupT], promise: Promise[GroupT]) -> None:
    """Run a launch in a thread of its own, whose end comes to the promise."""
    run_beside_in_time(session.messenger.call_later, _run, launch, promise)


def _run(launch: LaunchFunction[GroupT], promise: Promise[GroupT]) -> None:
    try:
        promise.set_result(launch())
    except BaseException as error:  # noqa: BLE001 - it belongs to the waiter for the group
        promise.set_exception(error)


def _end(promise: Promise[Any]) -> None:
    if promise.exception(0) is None:
        promise.result(0).stop_beside()
