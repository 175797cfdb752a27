"""A checkpoint as its users hold it: what was saved, and where the channels that were saved are."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from rlinf_scheduler.checks import absolute_path
from rlinf_scheduler.comm.failure import sendable
from rlinf_scheduler.errors import CheckpointError
from rlinf_scheduler.rooms import check_room


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint of a job; false where there is none yet.

    Attributes:
        path: its folder.
        extra: what was saved besides.
        channels: the file of each channel, by the channel's name.
        saved_at: when, in seconds since 1970; 0 where there is none.
    """

    path: str
    extra: Any = field(default=None, repr=False)
    channels: dict[str, str] = field(default_factory=dict)
    saved_at: float = 0.0

    def __bool__(self) -> bool:
        return self.saved_at > 0

    def file_of(self, channel: str) -> str | None:
        """The file of a channel; None if there is no checkpoint yet.

        Raises:
            CheckpointError: it was not saved.
        """
        if self and channel not in self.channels:
            there = ", ".join(f"'{name}'" for name in self.channels) or "no channel"
            raise CheckpointError(self.path, f"channel '{channel}' is not in it: it has {there}")
        return self.channels.get(channel)


# What may be restored from: a channel's file, or a job's checkpoint that has it.
Restorable = str | os.PathLike[str] | Checkpoint


def file_to_restore(restore: Restorable | None, channel: str) -> str:
    """The file that a channel is restored from; "" for none.

    Raises:
        CheckpointError: a job's checkpoint has no such channel, or there can be no such file.
    """
    if restore is None:
        return ""
    file = restore.file_of(channel) or "" if isinstance(restore, Checkpoint) else restore
    if not file:
        return ""
    check_room("durable")
    return checked_file(file)


def checked_file(path: str | os.PathLike[str]) -> str:
    """Return the path of a checkpoint as it travels.

    Raises:
        CheckpointError: there can be no such file.
    """
    try:
        return absolute_path(path)
    except ValueError as error:
        raise CheckpointError(sendable(os.fspath(path)), str(error)) from None
