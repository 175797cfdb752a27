"""Groups that this process has launched, for what grows and shrinks them."""

from __future__ import annotations

from typing import Any

from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.errors import ClusterError, PlacementError, SchedulerError
from rlinf_scheduler.session import Session
from rlinf_scheduler.wording import did_you_mean, list_names
from rlinf_scheduler.worker.group import WorkerGroup
from rlinf_scheduler.worker.group_calls import GroupCalls
from rlinf_scheduler.worker.supervision import groups_of
from rlinf_scheduler.worker.worker import Worker


def launched_group(session: Session, group: WorkerGroup[Any] | str) -> WorkerGroup[Any]:
    """A group that this process has launched, by its name, or itself.

    Raises:
        ClusterError: there is none of that name, or it has ended.
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
    # The processes of channels are groups of the library's own, which end as no user's can.
    there = {each.name: each for each in list(groups_of(session)) if each.on_failure != "end"}
    if not isinstance(group, str) or group not in there:
        names = sorted(there)
        listed = f"there are {list_names(names)}" if names else "it has none"
        problem = f"this process has launched no group {group!r}; {listed}"
        raise ClusterError("; ".join(filter(None, [problem, did_you_mean(str(group), names)])))
    done: Promise[GroupCalls[Any]] = Promise()
    done.set_result(there[group])
    return WorkerGroup(group, Worker, len(there[group].ranks), done)


def has_ended(group: WorkerGroup[Any]) -> bool:
    """Whether a group has ended, is being ended, or was never there."""
    try:
        return group.health()[0].state == "ended"
    except (KeyError, PlacementError):  # that rank has just left
        return False
    except SchedulerError:  # its launch has failed
        return True
