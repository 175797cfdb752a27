"""Checkpoints and recordings that cannot be written, read or followed."""

from __future__ import annotations

from rlinf_scheduler.errors.base import SchedulerError


class FileError(SchedulerError):
    """What this library keeps in a file or a folder cannot be written, read or used.

    Args:
        path: where it is, or was to be.
        problem: one sentence.
    """

    _what = "file"

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.path = path
        self.problem = problem

    def __str__(self) -> str:
        return f"{self._what} '{self.path}': {self.problem}"


class CheckpointError(FileError):
    """A checkpoint cannot be written or read, or what it holds does not fit where it is to be restored."""

    _what = "checkpoint"


class RecordingError(FileError):
    """A recording, of a rank or of a channel, cannot be written or read, or there is none of what was asked for."""

    _what = "recording"


class ReplayError(SchedulerError):
    """A rank that is run again does not follow its recording.

    Args:
        where: the call or thread, and the operation.
        problem: what there is; or what the rank gave or did then, and now.
    """

    _what = "the recording is not followed"

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(where, problem)
        self.where = where
        self.problem = problem

    def __str__(self) -> str:
        return f"{self._what} at {self.where}: {self.problem}"


class ReplayEnded(ReplayError):
    """A rank that is run again asks for something that its recording does not have."""

    _what = "the recording ends"


class ReplayDiffers(ReplayError):
    """A rank that is run again does something else than it did when it was recorded."""

    _what = "it differs from the recording"
