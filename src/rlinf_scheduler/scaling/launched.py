"""Groups of the job that this process resizes, for policies and loans: by their names, or given."""

from __future__ import annotations

from typing import Any

from rlinf_scheduler.errors import ClusterError, ConfigError, PlacementError, SchedulerError
from rlinf_scheduler.host.info import keeps_elsewhere
from rlinf_scheduler.session import Session
from rlinf_scheduler.wording import did_you_mean, list_names
from rlinf_scheduler.worker.group import WorkerGroup, group_of
from rlinf_scheduler.worker.supervision import groups_in, groups_of
from rlinf_scheduler.worker.worker import Worker


def launched_group(
    session: Session, group: WorkerGroup[Any] | str, *, is_called: bool = False
) -> WorkerGroup[Any]:
    """A group of the job, by its name, or itself.

    In a job that outlives its drivers that is each group of the job, in others each that this process has launched.

    Args:
        session: of this process.
        group: see above.
        is_called: its methods are to be called, for which its class has to be known here.

    Raises:
        ClusterError: there is none of that name, or it has ended; or its class cannot be imported here.
        ConfigError: this is neither a group nor a name.
        PlacementError: this is a view of some of its ranks.
    """
    if isinstance(group, WorkerGroup):
        whole = WorkerGroup.plain(group)
        if has_ended(whole):
            raise ClusterError(f"group '{whole.name}' has ended")
        if set(whole.ranks) != set(whole.members.ranks):
            raise PlacementError(
                f"this is a view of some of the ranks of '{whole.name}': give the group itself"
            )
        return whole
    if not isinstance(group, str):
        raise ConfigError(f"{group!r} is neither a group nor the name of one")
    if keeps_elsewhere(session):
        # Few programs have such a job.
        from rlinf_scheduler.worker.remote_home import RemoteHome  # noqa: PLC0415

        return session.service(RemoteHome).attach(group, None if is_called else Worker)
    # The processes of channels are groups of the library's own, which end as no user's can.
    there = {each.name: each for each in list(groups_of(session)) if each.on_failure != "end"}
    if group not in there:
        raise _not_launched_here(group, sorted(there), sorted(groups_in(session)))
    return group_of(there[group], there[group].worker_class or Worker)


def _not_launched_here(name: str, here: list[str], job: list[str]) -> ClusterError:
    """That this process cannot resize a group, and which groups there are."""
    listed = f"there are {list_names(job)}" if job else "there is none"
    problem = f"this process has launched no group '{name}'; {listed}"
    if name in job:
        hint = f"the process that has launched it resizes it, and this one {list_names(here) or 'none'}"
    else:
        hint = did_you_mean(name, job)
    return ClusterError("; ".join(filter(None, [problem, hint])))


def has_ended(group: WorkerGroup[Any]) -> bool:
    """Whether a group has ended, is being ended, or was never there."""
    try:
        return group.health()[0].state == "ended"
    except (KeyError, PlacementError):  # that rank has just left
        return False
    except SchedulerError:  # its launch has failed
        return True
