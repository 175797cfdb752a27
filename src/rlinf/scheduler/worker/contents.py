"""What a job has, as its directory knows it: groups and channels, whoever made them."""

from __future__ import annotations

from dataclasses import dataclass

from rlinf.scheduler.channel.spec import KIND, ChannelRef
from rlinf.scheduler.session import Session
from rlinf.scheduler.worker.supervision import group_entry


@dataclass(frozen=True, slots=True)
class GroupEntry:
    """A group of workers.

    Attributes:
        name: its name.
        world_size: how many ranks it has.
    """

    name: str
    world_size: int


@dataclass(frozen=True, slots=True)
class ChannelEntry:
    """A channel.

    Attributes:
        name: its name.
        maxsize: how many items each of its queues holds; 0 is unbounded.
    """

    name: str
    maxsize: int


def groups_in(session: Session) -> dict[str, GroupEntry]:
    """The worker groups of the job, by name; one that is being launched too."""
    prefix = group_entry("")
    entries = session.directory.list(prefix)
    # What holds a channel is launched as a group, but says no size.
    sizes = {e.name.removeprefix(prefix): e.info["world_size"] for e in entries if "world_size" in e.info}
    return {name: GroupEntry(name, size) for name, size in sizes.items()}


def channels_of(session: Session) -> dict[str, ChannelEntry]:
    """The channels of the job, by name."""
    entries = (entry for entry in session.directory.list() if KIND in entry.info)
    specs = (ChannelRef.from_entry(entry.name, entry).spec for entry in entries)
    return {spec.name: ChannelEntry(spec.name, spec.maxsize) for spec in specs}
