"""What a person sees while it runs: a bar on a terminal, plain lines in a pipe."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from report import UpdateReport
from settings import Settings

_LINE_EVERY_S = 2.0


class LearningProgress:
    """Shows each update's mean return against the return at which training stops; a context manager."""

    def __init__(self, console: Console, settings: Settings) -> None:
        self._console = console
        self._started = time.monotonic()
        self._next_line_s = 0.0
        self._last: UpdateReport | None = None
        self._bar = Progress(
            TextColumn("mean return {task.completed:5.1f} of {task.total:.0f}"),
            BarColumn(bar_width=None),
            TextColumn("update {task.fields[version]}, {task.fields[steps]:,} steps"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("learn", total=settings.stop_return, version=0, steps=0)

    def show(self, update: UpdateReport) -> None:
        """Take note of an update; in a pipe a line appears every two seconds at most."""
        self._bar.update(
            self._task, completed=update.mean_return, version=update.version, steps=update.num_steps
        )
        self._last = update
        now_s = time.monotonic() - self._started
        if not self._console.is_terminal and now_s >= self._next_line_s:
            self._print_line(update, now_s)
            self._next_line_s = now_s + _LINE_EVERY_S

    def __enter__(self) -> LearningProgress:
        self._bar.start()
        self._started = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
        if not self._console.is_terminal and self._last is not None:
            self._print_line(self._last, time.monotonic() - self._started)

    def _print_line(self, update: UpdateReport, now_s: float) -> None:
        self._console.print(
            f"{now_s:5.1f} s  update {update.version:3}  steps {update.num_steps:6}  "
            f"mean return of {update.num_judged:2} episodes {update.mean_return:5.1f}  "
            f"entropy {update.entropy:.2f}  lag {update.lag}",
            highlight=False,
        )
        self._last = None
