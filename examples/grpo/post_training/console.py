"""What a person sees while it runs: a bar on a terminal, plain lines in a pipe."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from post_training.report import StepReport
from post_training.settings import Settings

_LINE_EVERY_S = 2.0


class LearningProgress:
    """Shows each step's mean reward against the reward at which training stops; a context manager."""

    def __init__(self, console: Console, settings: Settings) -> None:
        self._console = console
        self._started = time.monotonic()
        self._next_line_s = 0.0
        self._last: StepReport | None = None
        self._bar = Progress(
            TextColumn("reward {task.completed:4.2f} of {task.total:.2f}"),
            BarColumn(bar_width=None),
            TextColumn("step {task.fields[version]}, {task.fields[exact]:.0%} exactly right"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("learn", total=settings.stop_reward, version=0, exact=0.0)

    def show(self, step: StepReport) -> None:
        """Take note of a step; in a pipe a line appears every two seconds at most."""
        self._bar.update(self._task, completed=step.reward, version=step.version, exact=step.exact)
        self._last = step
        now_s = time.monotonic() - self._started
        if not self._console.is_terminal and now_s >= self._next_line_s:
            self._print_line(step, now_s)
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

    def _print_line(self, step: StepReport, now_s: float) -> None:
        self._console.print(
            f"{now_s:5.1f} s  step {step.version:3}  reward {step.reward:4.2f}  exactly right {step.exact:4.0%}  "
            f"tokens {step.num_tokens:5}  longest {max(step.lengths):2}  imbalance {step.imbalance:.2f}  "
            f"lag {step.lag}",
            highlight=False,
        )
        self._last = None
