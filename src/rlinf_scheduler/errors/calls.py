"""What a call, or a wait for its result, ends with."""

from __future__ import annotations

from collections.abc import Sequence

from rlinf_scheduler.errors.base import SchedulerError, WaitTimeout


class WorkerError(SchedulerError):
    """A worker's method raised; the text holds the remote traceback.

    Args:
        group: the worker group's name.
        rank: the worker's rank in its group.
        method: the method that was called. (What `__init__` raises is the cause of a LaunchError.)
        remote_traceback: the traceback as the worker's process formatted it.
        cause: the exception itself, where it could be pickled.
    """

    def __init__(
        self, group: str, rank: int, method: str, remote_traceback: str, cause: BaseException | None = None
    ) -> None:
        super().__init__(group, rank, method, remote_traceback, cause)
        self.group = group
        self.rank = rank
        self.method = method
        self.remote_traceback = remote_traceback
        self.cause = cause

    def __str__(self) -> str:
        return (
            f"rank {self.rank} of '{self.group}' raised in {self.method}():\n{self.remote_traceback.rstrip()}"
        )


class WorkerDied(WorkerError):
    """A worker's process is gone: killed, crashed, out of memory, or its node was lost; `reason` says which."""

    def __init__(self, group: str, rank: int, method: str = "", reason: str = "") -> None:
        super().__init__(group, rank, method, "")
        self.args = (group, rank, method, reason)
        self.reason = reason

    def __str__(self) -> str:
        during = f" during {self.method}()" if self.method else ""
        return f"rank {self.rank} of '{self.group}' died{during}: {self.reason or 'its process is gone'}"


class CallArgumentError(SchedulerError, TypeError):
    """The arguments of a call or of a constructor do not fit; nothing was sent and nothing was started.

    Args:
        what: what was called, e.g. "Policy.act()".
        problem: what does not fit.
        signature: what it takes.
    """

    def __init__(self, what: str, problem: str, signature: str) -> None:
        super().__init__(what, problem, signature)
        self.what = what
        self.problem = problem
        self.signature = signature

    def __str__(self) -> str:
        return f"{self.what}: {self.problem}; it takes {self.signature}"


class CallCancelled(SchedulerError):
    """A call was given up by its caller; a rank that was waiting in it has left the method.

    Args:
        group: the worker group's name.
        method: what was called.
        rank: the rank that left it; None of the call as a whole.
    """

    def __init__(self, group: str, method: str, rank: int | None = None) -> None:
        super().__init__(group, method, rank)
        self.group = group
        self.method = method
        self.rank = rank

    def __str__(self) -> str:
        where = "" if self.rank is None else f" on rank {self.rank}"
        return f"{self.group}.{self.method}() was cancelled{where}"


class UnevenStreams(SchedulerError):
    """Some ranks of a streaming call have ended and others have not, so there is no list of one value a rank.

    Args:
        what: what was called.
        ended: the ranks that have ended.
        step: how many values each of them gave.
    """

    def __init__(self, what: str, ended: Sequence[int], step: int) -> None:
        super().__init__(what, tuple(ended), step)
        self.what = what
        self.ended = tuple(ended)
        self.step = step

    def __str__(self) -> str:
        ranks = ", ".join(map(str, self.ended))
        return (
            f"{self.what}: ranks {ranks} ended after {self.step} values and the others did not; "
            f"iterate over stream.rank(...) or stream.as_ready() where ranks give different numbers"
        )


class ResultTimeout(WaitTimeout):
    """A wait passed its deadline.

    Args:
        what: what was waited for, e.g. "rollout.generate()".
        waited_s: how long, in seconds.
        missing: what had not arrived, one line each.
        why: who waits for what, as far as that could be found out; "" where it was not.
    """

    def __init__(self, what: str, waited_s: float, missing: Sequence[str] = (), why: str = "") -> None:
        super().__init__(what, waited_s, tuple(missing), why)
        self.what = what
        self.waited_s = waited_s
        self.missing = tuple(missing)
        self.why = why

    def __str__(self) -> str:
        still = f"; still missing: {', '.join(self.missing)}" if self.missing else ""
        return self._with_why(f"{self.what}: no result after {self.waited_s:.1f} s{still}")


class DeviceLockTimeout(SchedulerError, TimeoutError):
    """Other workers had the devices until the deadline.

    Args:
        devices: the devices that were asked for.
        waited_s: how long, in seconds.
        holders: their holders, and those first in line, a text each.
    """

    def __init__(self, devices: Sequence[str], waited_s: float, holders: Sequence[str] = ()) -> None:
        super().__init__(tuple(devices), waited_s, tuple(holders))
        self.devices = tuple(devices)
        self.waited_s = waited_s
        self.holders = tuple(holders)

    def __str__(self) -> str:
        holders = "; ".join(self.holders) or "the process that gives them out does not answer"
        return f"device_lock: no turn on {', '.join(self.devices)} after {self.waited_s:.1f} s: {holders}"
