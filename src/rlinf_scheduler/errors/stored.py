"""Checkpoints that cannot be written or read."""

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
