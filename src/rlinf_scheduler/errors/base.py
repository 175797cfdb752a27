"""The roots of the tree."""

from __future__ import annotations


class SchedulerError(Exception):
    """The root: everything this library raises on purpose is one of these."""


class FaceError(SchedulerError, ImportError):
    """An RLinf checkout's own scheduler cannot be replaced by this library, or wants names of it that it lacks."""


class WaitTimeout(SchedulerError, TimeoutError):
    """A wait passed its deadline; the last of its arguments says why.

    Attributes:
        why: who waits for what, as far as that could be found out; "" where it was not.
    """

    why: str

    def explain(self, why: str) -> None:
        """Say why, too."""
        self.why = why
        self.args = (*self.args[:-1], why)

    def _with_why(self, problem: str) -> str:
        return problem + "".join(f"\n  {line}" for line in self.why.splitlines())
