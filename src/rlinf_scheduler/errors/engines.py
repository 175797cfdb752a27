"""An engine of rollouts cannot do what it was asked."""

from __future__ import annotations

import signal

from rlinf_scheduler.errors.base import SchedulerError


class EngineError(SchedulerError):
    """An engine of rollouts cannot do what it was asked."""


class EngineDead(EngineError):
    """An engine, or one of its processes, is gone.

    Args:
        process: which, e.g. "EngineCore of vLLM".
        pid: its number, where it is known.
        exit_code: as `multiprocessing` gives it: below 0 it is a signal's; None where it is not known.
        reason: what else is known.
    """

    def __init__(
        self, process: str, pid: int | None = None, exit_code: int | None = None, reason: str = ""
    ) -> None:
        super().__init__(process, pid, exit_code, reason)
        self.process = process
        self.pid = pid
        self.exit_code = exit_code
        self.reason = reason

    def __str__(self) -> str:
        process = self.process + (f" (pid {self.pid})" if self.pid is not None else "")
        return f"{process} is gone" + "".join(f": {each}" for each in (self._ended(), self.reason) if each)

    def _ended(self) -> str:
        if self.exit_code is None:
            return ""
        if self.exit_code >= 0:
            return f"it ended with exit code {self.exit_code}"
        known = {each.value: each.name for each in signal.Signals}
        return f"it was ended by {known.get(-self.exit_code, f'signal {-self.exit_code}')}"


class UpdateFailed(EngineError):
    """Weights were not updated; the version before is in use.

    Args:
        name: of the weights.
        version: the one in use.
        reason: why.
    """

    def __init__(self, name: str, version: int, reason: str) -> None:
        super().__init__(name, version, reason)
        self.name = name
        self.version = version
        self.reason = reason

    def __str__(self) -> str:
        return f"weights '{self.name}' were not updated, version {self.version} is in use: {self.reason}"
