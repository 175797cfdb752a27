"""The home of a job's groups: their names are taken, their launches begun, and their ranks supervised there."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

from rlinf_scheduler.addresses import root_name
from rlinf_scheduler.comm import Buffer, Reply
from rlinf_scheduler.comm.directory import Entry
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.threads import run_beside_in_time
from rlinf_scheduler.errors import CommError, ConfigError, GroupExists, NameTaken
from rlinf_scheduler.host.info import Role, group_entry
from rlinf_scheduler.planning import Placement
from rlinf_scheduler.session import Session, SideBySide
from rlinf_scheduler.worker.deaths import Policy
from rlinf_scheduler.worker.group_calls import GroupCalls
from rlinf_scheduler.worker.launch import LaunchOptions, Recipe, launch_ranks, launch_successors
from rlinf_scheduler.worker.successors import RestartLimit
from rlinf_scheduler.worker.supervision import Supervision

# An interrupted thread waits so long for the answer that comes.
_INTERRUPTED_S = 1.0
GroupT = TypeVar("GroupT", bound=GroupCalls[Any])
LaunchFunction: TypeAlias = Callable[[], GroupT]


@dataclass(frozen=True, slots=True)
class GroupOrder:
    """A group that is to be launched.

    Attributes:
        factory: the worker's class and its arguments, encoded.
        placements: where the ranks are to be.
        options: how they are launched.
        on_failure: what the death of a rank means.
        limit: how often a rank comes back.
    """

    factory: tuple[Buffer, ...]
    placements: tuple[Placement, ...]
    options: LaunchOptions
    on_failure: Policy = "fail"
    limit: RestartLimit | None = None


def launch_group(
    session: Session, order: GroupOrder, name: str, given_up: Promise[None] | None = None
) -> Supervision:
    """Launch a group whose name this process has, and supervise it; the name is free if that fails.

    Args:
        session: of this process.
        order: the group.
        name: its name.
        given_up: done when nobody wants it any more; then this raises LaunchError.

    Raises: as of `launch_ranks`.
    """
    try:
        recipe = Recipe(session, name, order.factory, order.options, len(order.placements))
        ranks = launch_ranks(session, order.placements, recipe, given_up)
    except BaseException:
        free_name(session, name)
        raise
    start_successors = partial(launch_successors, session, recipe)
    stall_after_s = order.options.stall_after_s
    group = Supervision(session, name, ranks, order.on_failure, start_successors, order.limit, stall_after_s)
    group.give_back = recipe.give_back
    return group


def check_launches(session: Session) -> None:
    """Make sure that this process may launch groups.

    Raises:
        ConfigError: it may not.
    """
    role = session.fact(Role)
    if role is not None and role.info.address.parent is not None:
        problem = f"'{session.name}' launches no groups: it is no process of Ray's, and joined below a rank"
        raise ConfigError(problem, hint=f"let '{root_name(session.name)}', or the driver, launch it")


def claim_name(session: Session, wanted: str | None, class_name: str, about: dict[str, int]) -> str:
    """Take a group's name in the directory, so that no other group has it.

    A group that a worker launches is called after it, `outer:0/inner`: each rank may have one of that name.

    Args:
        session: of this process, which has the name then.
        wanted: the name; None for the class's, with a number where that is taken.
        class_name: see above.
        about: what the directory says of the group. Nothing is placed beside what holds channels: it says nothing.

    Raises:
        GroupExists: the name is taken.
        ConfigError: it is no name.
    """
    if wanted is not None and not isinstance(wanted, str):
        raise ConfigError(f"group name {wanted!r}: it is text", hint=f"name={str(wanted)!r}")
    if wanted is not None and (not wanted or set(":/") & set(wanted)):
        raise ConfigError(f"group name {wanted!r}: it must not be empty, nor hold a colon or a slash")
    parent = f"{session.name}/" if ":" in session.name else ""
    for number in itertools.count(1):
        name = parent + (wanted or (class_name if number == 1 else f"{class_name}-{number}"))
        try:
            _register(session, name, about)
        except NameTaken as error:
            if wanted is not None:
                problem = "a group or a channel of this name is there already; end the group by its `shutdown()` first"
                raise GroupExists(name, problem) from error
        else:
            return name
    raise AssertionError("unreachable: some number is free")


def _register(session: Session, name: str, about: dict[str, int]) -> None:
    entry = Entry(group_entry(name), session.messenger.endpoint, about)
    asked = session.directory.register_async(entry)
    try:
        asked.result()
    except BaseException:  # it may be interrupted, and the name be taken all the same

        def free(done: Promise[Reply]) -> None:
            if not done.cancelled() and done.exception(0) is None:
                session.directory.unregister_async(entry.name)

        asked.wait(_INTERRUPTED_S)  # the next launch may want that name
        asked.add_done_callback(free)
        raise


def free_name(session: Session, name: str) -> None:
    """Let others have a group's name, if this process has it."""
    with suppress(CommError):  # without a job no name is taken
        session.directory.unregister_async(group_entry(name))


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
