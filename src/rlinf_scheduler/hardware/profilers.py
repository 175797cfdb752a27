"""Profilers: which ranks are started under one, by which command, and windows of capture."""

from __future__ import annotations

import re
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

Backend: TypeAlias = Literal["nsight", "rocprof_sys", "torch"]
# Those under which a rank is started; torch's profiler is in the rank.
PROGRAMS: dict[Backend, str] = {"nsight": "nsys", "rocprof_sys": "rocprof-sys-python"}
# What torch's profiler may be told to do.
TORCH_FLAGS = ("record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules")
_ALL = "all"


@dataclass(frozen=True, slots=True)
class ProfilingConfig:
    """Which ranks are started under a profiler, and how.

    Attributes:
        backend: "nsight" (Nsight Systems), "rocprof_sys" (ROCm Systems Profiler), or "torch", in the rank itself.
        enabled: whether any is.
        worker_groups: the groups' names, in capitals or not; `all` stands for all of them.
        ranks: of these groups; None: all.
        steps: at which steps there is a window of capture; None: at every step.
        output_dir: the folder of the reports, on each node; "": its folder for temporary files.
        tool: the profiler's program, by name or path; "": its usual name, looked for in PATH.
        options: what the program is given, by name: one letter becomes `-t value`, a word `--word=value`.
        flags: likewise, without values.
        env: variables of the ranks that are profiled.
    """

    backend: Backend
    enabled: bool = True
    worker_groups: tuple[str, ...] = ()
    ranks: tuple[int, ...] | None = None
    steps: tuple[int, ...] | None = None
    output_dir: str = ""
    tool: str = ""
    options: tuple[tuple[str, str], ...] = ()
    flags: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()

    @property
    def program(self) -> str:
        """The profiler's program, by name or path."""
        return self.tool or PROGRAMS[self.backend]

    def profiles(self, group: str, rank: int | None = None) -> bool:
        """Whether a group's rank is started under the profiler; without a rank, whether any of the group is."""
        if not self.enabled:
            return False
        names = {name.lower() for name in self.worker_groups}
        if _ALL not in names and group.lower() not in names:
            return False
        return rank is None or self.ranks is None or rank in self.ranks

    def captures(self, step: int) -> bool:
        """Whether there is a window of capture at a step."""
        return self.enabled and (self.steps is None or step in self.steps)

    def report_of(self, group: str, rank: int) -> str:
        """Where a rank's report goes, as the profiler is told: it writes the process's number for `%p`."""
        name = re.sub(r"[^A-Za-z0-9._-]", "_", f"{group}-{rank}")
        return str(Path(self.output_dir or tempfile.gettempdir()) / f"rlinf-profile-{name}-%p")

    def command(self, program: str, python: str, report: str) -> str:
        """The line for a shell that starts an interpreter under the profiler.

        >>> nsight = ProfilingConfig("nsight", options=(("t", "cuda,nvtx"), ("sample", "none")), flags=("stats",))
        >>> nsight.command("nsys", "python", "/tmp/actor-0-%p")
        'nsys profile --stats -t cuda,nvtx --sample=none -o /tmp/actor-0-%p python'
        """
        given: list[str] = [f"--{flag}" if len(flag) > 1 else f"-{flag}" for flag in self.flags]
        options = dict(self.options)
        if self.backend == "nsight" and "output" not in options:
            options.setdefault("o", report)
        for name, value in options.items():
            given += [f"--{name}={value}"] if len(name) > 1 else [f"-{name}", value]
        words = (
            [program, "profile", *given, python]
            if self.backend == "nsight"
            else [program, *given, "--", python]
        )
        return shlex.join(words)

    def variables(self, report: str) -> dict[str, str]:
        """The variables that a rank is given for the profiler's sake."""
        if self.backend == "nsight":
            return dict(self.env)
        path = Path(report)
        return {
            "ROCPROFSYS_TIME_OUTPUT": "false",
            "ROCPROFSYS_OUTPUT_PATH": str(path.parent),
            "ROCPROFSYS_OUTPUT_PREFIX": path.name,
            **dict(self.env),
        }


class CaptureWindow:
    """The window in which a profiler that was told to wait for it records this process: `torch.cuda.profiler`."""

    def __init__(self) -> None:
        self.is_open = False

    def open(self) -> None:
        """Begin to record; nothing happens if it has begun."""
        if not self.is_open:
            _torch().cuda.profiler.start()
            self.is_open = True

    def close(self) -> None:
        """Record no more; nothing happens if nothing was recorded."""
        if self.is_open:
            self.is_open = False
            _torch().cuda.profiler.stop()

    @contextmanager
    def range(self, label: str) -> Iterator[None]:
        """A block that has a name in the report (NVTX); nothing where no window is open."""
        if not self.is_open:
            yield
            return
        nvtx = _torch().cuda.nvtx
        nvtx.range_push(label)
        try:
            yield
        finally:
            nvtx.range_pop()


# That of this process: CUDA has one.
CAPTURE = CaptureWindow()


def _torch() -> Any:
    # Needed only while a window is open.
    import torch  # noqa: PLC0415

    return torch
