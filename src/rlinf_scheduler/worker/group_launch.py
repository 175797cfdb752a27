"""A group's name is taken, and its ranks are started on placements that are decided."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from rlinf_scheduler.addresses import root_name
from rlinf_scheduler.comm.directory import WORLD_SIZE
from rlinf_scheduler.errors import CommError, ConfigError, GroupExists, NameTaken
from rlinf_scheduler.host.info import Role, group_entry
from rlinf_scheduler.host.protocol import WorkerFactory
from rlinf_scheduler.planning import Placement
from rlinf_scheduler.session import Session
from rlinf_scheduler.worker.deaths import Policy
from rlinf_scheduler.worker.launch import LaunchOptions, Recipe, launch_ranks, launch_successors
from rlinf_scheduler.worker.starting import LaunchFunction
from rlinf_scheduler.worker.successors import RestartLimit
from rlinf_scheduler.worker.supervision import Supervision


def prepare_launch(
    session: Session,
    factory: WorkerFactory,
    placements: Sequence[Placement],
    name: str | None,
    options: LaunchOptions,
    on_failure: Policy = "fail",
    limit: RestartLimit | None = None,
) -> tuple[str, LaunchFunction[Supervision]]:
    """Take a group's name; returns it, and what launches the group on placements that are decided already.

    Raises:
        GroupExists: the name is taken.
        ConfigError: this process cannot launch any.
    """
    role = session.fact(Role)
    if role is not None and role.info.address.parent is not None:
        problem = f"'{session.name}' launches no groups: it is no process of Ray's, and joined below a rank"
        raise ConfigError(problem, hint=f"let '{root_name(session.name)}', or the driver, launch it")
    # What holds channels is no group of workers that anything could be placed beside.
    about = {} if options.registers_itself else {WORLD_SIZE: len(placements)}
    claimed = claim_name(session, name, factory.worker_class.__name__, about)

    def launch() -> Supervision:
        try:
            recipe = Recipe(session, claimed, factory, options, len(placements))
            ranks = launch_ranks(session, placements, recipe)
        except BaseException:
            with suppress(CommError):  # without a job no name is taken
                session.directory.unregister(group_entry(claimed))
            raise
        start_successors = partial(launch_successors, session, recipe)
        stall_after_s = options.stall_after_s
        return Supervision(session, claimed, ranks, on_failure, start_successors, limit, stall_after_s)

    return claimed, launch


def claim_name(
    session: Session, wanted: str | None, class_name: str, about: dict[str, int], claimant: str = ""
) -> str:
    """Take a group's name in the directory, so that no other group has it.

    A group that a worker launches is called after it, `outer:0/inner`: each rank may have one of that name.

    Args:
        session: of this process, which has the name then.
        wanted: the name; None for the class's, with a number where that is taken.
        class_name: see above.
        about: what the directory says of the group.
        claimant: who wants it; this process where nothing is said.

    Raises:
        GroupExists: the name is taken.
        ConfigError: it is no name.
    """
    claimant = claimant or session.name
    if wanted is not None and not isinstance(wanted, str):
        raise ConfigError(f"group name {wanted!r}: it is text", hint=f"name={str(wanted)!r}")
    if wanted is not None and (not wanted or set(":/") & set(wanted)):
        raise ConfigError(f"group name {wanted!r}: it must not be empty, nor hold a colon or a slash")
    parent = f"{claimant}/" if ":" in claimant else ""
    for number in itertools.count(1):
        name = parent + (wanted or (class_name if number == 1 else f"{class_name}-{number}"))
        try:
            session.directory.register(group_entry(name), session.messenger.endpoint, about)
        except NameTaken as error:
            if wanted is not None:
                problem = "a group or a channel of this name is there already; end the group by its `shutdown()` first"
                raise GroupExists(name, problem) from error
        else:
            return name
    raise AssertionError("unreachable: some number is free")
