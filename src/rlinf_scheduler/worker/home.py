"""The home of a job's groups: names are taken, groups launched and supervised, and ranks that are gone come back."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

from msgspec import structs

from rlinf_scheduler.addresses import root_name
from rlinf_scheduler.comm import Reply
from rlinf_scheduler.comm.directory import Entry
from rlinf_scheduler.comm.loop import ending
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.errors import CommError, ConfigError, GroupExists, LaunchError, NameTaken
from rlinf_scheduler.events import GroupLaunched
from rlinf_scheduler.host.info import Role, group_entry, job_topology
from rlinf_scheduler.planning import Placement
from rlinf_scheduler.session import Session, SideBySide
from rlinf_scheduler.worker.group_calls import GroupCalls
from rlinf_scheduler.worker.launch import Recipe, start_ranks
from rlinf_scheduler.worker.moves import Moves
from rlinf_scheduler.worker.node_watch import NodeWatch
from rlinf_scheduler.worker.order import GroupOrder
from rlinf_scheduler.worker.processes import LaunchedRank, Processes, devices_of
from rlinf_scheduler.worker.resizable_group import ResizableGroup
from rlinf_scheduler.worker.supervision import Supervision

# An interrupted thread waits so long for the answer that comes, and whoever lets a name go until it is free.
_INTERRUPTED_S = _FREED_S = 1.0
GroupT = TypeVar("GroupT", bound=GroupCalls[Any])
LaunchFunction: TypeAlias = Callable[[], GroupT]


def launch_group(
    session: Session, order: GroupOrder, name: str, given_up: Promise[None] | None = None
) -> Supervision:
    """Launch a group whose name this process has, and supervise it.

    Args:
        session: of this process.
        order: the group.
        name: its name.
        given_up: done when nobody wants it any more; then this raises LaunchError.

    Raises:
        NodeLost: a node is gone.
        DeviceHeld: others have some of the devices.
        LaunchError, LaunchTimeout, ConfigError: as of `start_ranks`.
    """
    placements, options = order.placements, order.options
    session.service(NodeWatch).check({placement.node_rank for placement in placements})
    recipe = Recipe(session, name, order.factory, options, sorted(each.rank for each in placements))
    devices = devices_of(placements, job_topology(session).nodes)
    give_back = session.service(Processes).reserve(name, devices, options.wait_s, given_up)
    began = time.monotonic()
    try:
        ranks = start_ranks(session, placements, recipe, given_up)
    except BaseException:
        give_back()
        raise
    took_s = time.monotonic() - began
    group = ResizableGroup(session, recipe, ranks, partial(_launch_successors, session, recipe))
    group.give_back, group.worker_class = give_back, order.worker_class
    # At last: who hears of it looks for its ranks.
    session.bus.emit(GroupLaunched(name, len(ranks), took_s, recipe.seed))
    return group


def _launch_successors(
    session: Session, recipe: Recipe, before: Sequence[LaunchedRank], given_up: Promise[None], anew: bool
) -> list[LaunchedRank]:
    """Start processes in the places of those that are gone: with their ranks, devices, environments and names.

    The job holds their devices still. A node may have come back under another id. Where it is gone, and the launch
    says that ranks move, it is another node.

    Args:
        session: of the process that launches.
        recipe: of their group.
        before: those that are gone; nobody takes them any more.
        given_up: done when nobody wants them any more; then this raises LaunchError.
        anew: it is another launch of the group: its ranks, all of them, meet at another port, and nobody takes the
            weights of those before for theirs.

    Raises:
        LaunchError, LaunchTimeout: as of `start_ranks`.
        NodeLost: a node is gone.
        PlacementError: so it is, and no other one has what is needed.
    """
    watch, moves = session.service(NodeWatch), session.service(Moves)
    if anew:
        recipe.meets_at("", 0)
        launched_ns = max(time.time_ns(), recipe.launched_ns + 1)  # clocks are set back
        recipe.members = structs.replace(recipe.members, launched_ns=launched_ns)
    placements: list[Placement] = []
    try:
        for rank in sorted(before, key=lambda rank: rank.address.rank):
            placement = rank.placement
            if recipe.options.moves and placement.node_rank in watch.states.unusable():
                topology = recipe.options.topology or job_topology(session)
                placement = moves.begin(recipe.name, placement, topology)
                if placement.rank == recipe.members.ranks[0]:  # where the group meets from now on
                    recipe.meets_at("", recipe.members.master_port)
            placements.append(placement)
        watch.check({placement.node_rank for placement in placements})
        nodes = job_topology(session).nodes
        there = [replace(each, node_id=nodes[each.node_rank].node_id) for each in placements]
        num_restarts = max(rank.num_restarts for rank in before) + 1
        return start_ranks(session, there, recipe, given_up, num_restarts)
    except BaseException:
        for placement in placements:
            moves.give_up(recipe.name, placement)
        raise


def check_launches(session: Session) -> None:
    """Make sure that this process may launch groups.

    Raises:
        ConfigError: it may not.
    """
    role = session.fact(Role)
    if role is not None and role.info.address.parent is not None:
        problem = f"'{session.name}' launches no groups: it is no process of Ray's, and joined below a rank"
        raise ConfigError(problem, hint=f"let '{root_name(session.name)}', or the driver, launch it")


class Claim:
    """A group's name as its launch takes it; if its thread is interrupted, or the launch fails, it is free again.

    A group that a worker launches is called after it, `outer:0/inner`: each rank may have one of that name.

    Args:
        session: of this process, which has the name then.
        about: what the directory says of the group. Nothing is placed beside what holds channels: it says nothing.
    """

    def __init__(self, session: Session, about: dict[str, int]) -> None:
        self._session = session
        self._about = about
        self._parent = f"{session.name}/" if ":" in session.name else ""
        # What was asked for last, and the answer; made before it is asked, so that an interruption finds it.
        self._asked: tuple[str, Promise[None]] | None = None
        # Who gives the name back, the launch or its caller: the first that says so.
        self._giver: dict[None, str] = {}

    def take(self, wanted: str | None, class_name: str) -> str:
        """Take a name in the directory, so that no other group has it.

        Args:
            wanted: the name; None for the class's, with a number where that is taken.
            class_name: see above.

        Raises:
            GroupExists: the name is taken.
            ConfigError: it is no name.
        """
        if wanted is not None and not isinstance(wanted, str):
            raise ConfigError(f"group name {wanted!r}: it is text", hint=f"name={str(wanted)!r}")
        if wanted is not None and (not wanted or set(":/") & set(wanted)):
            raise ConfigError(f"group name {wanted!r}: it must not be empty, nor hold a colon or a slash")
        for number in itertools.count(1):
            name = self._parent + (wanted or (class_name if number == 1 else f"{class_name}-{number}"))
            taken: Promise[None] = Promise()
            self._asked = name, taken
            self._session.messenger.submit(ending(partial(self._ask, name, taken), taken.set_exception))
            try:
                taken.result()
            except NameTaken as error:
                if wanted is not None:
                    there = "a group or a channel of this name is there already"
                    problem = f"{there}; end the group by its `shutdown()` first"
                    raise GroupExists(name, problem) from error
            else:
                return name
        raise AssertionError("unreachable: some number is free")

    def launch(self, launch: Callable[[str], GroupT], name: str) -> GroupT:
        """Launch the group of that name."""
        group: GroupT | None = None
        try:
            self._begin_launch(name)
            group = launch(name)
        except BaseException:
            if group is not None:
                group.stop_beside()
            elif self._giver.get(None) == "launch":
                free_name(self._session, name)
            raise
        return group

    def _begin_launch(self, name: str) -> None:
        if self._giver.setdefault(None, "launch") != "launch":
            raise LaunchError(name, "it was interrupted before it began")

    def let_go(self) -> None:
        """Let others have the name, unless its launch has begun, which does so itself."""
        if self._asked is None or self._giver.setdefault(None, "caller") != "caller":
            return
        name, taken = self._asked

        def free(_: Promise[None]) -> None:
            if taken.exception(0) is None:
                self._session.directory.unregister_async(group_entry(name))

        try:
            taken.wait(_INTERRUPTED_S)  # the next launch may want that name
        finally:  # it may be interrupted once more
            taken.add_done_callback(free)

    def _ask(self, name: str, taken: Promise[None]) -> None:
        """On the I/O thread."""

        def answer(done: Promise[Reply]) -> None:
            error = done.exception(0)
            if error is None:
                taken.set_result(None)
            else:
                taken.set_exception(error)

        entry = Entry(group_entry(name), self._session.messenger.endpoint, self._about)
        self._session.directory.register_async(entry).add_done_callback(answer)


def launch_by_name(
    session: Session,
    launch: Callable[[str], GroupT],
    wanted: str | None,
    class_name: str,
    about: dict[str, int],
) -> tuple[str, Promise[GroupT]]:
    """Take a name and launch its group, now or beside (see `begin`); returns the name, and the group's promise.

    Raises:
        GroupExists, ConfigError: as of `Claim.take`; and what the launch does.
    """
    claim = Claim(session, about)
    try:
        name = claim.take(wanted, class_name)
        return name, begin(session, partial(claim.launch, launch, name))
    except BaseException:
        claim.let_go()
        raise


def free_name(session: Session, name: str) -> None:
    """Let others have a group's name, if this process has it; who is told of its end next may take it at once."""
    with suppress(CommError):  # without a job no name is taken
        session.directory.unregister_async(group_entry(name)).wait(_FREED_S)


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
    session.messenger.run_beside(_run, launch, promise)


def _run(launch: LaunchFunction[GroupT], promise: Promise[GroupT]) -> None:
    try:
        promise.set_result(launch())
    except BaseException as error:  # noqa: BLE001 - it belongs to the waiter for the group
        promise.set_exception(error)


def _end(promise: Promise[Any]) -> None:
    if promise.exception(0) is None:
        promise.result(0).stop_beside()
