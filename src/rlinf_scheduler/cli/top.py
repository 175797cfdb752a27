"""`rlinf top`: what a running job does, again and again."""

from __future__ import annotations

import json
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from rlinf_scheduler.cli.common import Job, left_out, looking_at, readable_errors

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from rlinf_scheduler.comm import Reply
    from rlinf_scheduler.comm.promise import Promise
    from rlinf_scheduler.observe.status import JobStatus
    from rlinf_scheduler.session import Session
    from rlinf_scheduler.session.job_file import RunningJob

# What this process is called in the job, before its number: not as a rank, so that Ctrl-Z is no event of the job's.
LOOKER = "rlinf-top-"
# So often it looks whether an answer is there, or `q` is pressed, in seconds.
_GLANCE_S = 0.05
# The shortest time between two looks that one may ask for, in seconds.
_SHORTEST_S = 0.1
# Where no terminal says how high and how wide it is, everything is shown.
_NO_TERMINAL, _WIDE = 1_000_000, 160


def _checked_interval(seconds: float) -> float:
    if not seconds >= _SHORTEST_S:
        raise typer.BadParameter(f"{seconds:g}: it is {_SHORTEST_S:g} seconds or more")
    return seconds


def top(
    once: Annotated[bool, typer.Option("--once", help="Show it once, all of it.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print it once, as data.")] = False,
    interval: Annotated[
        float,
        typer.Option(callback=_checked_interval, help="Look again after so many seconds, 0.1 at least."),
    ] = 1.0,
    job: Job = None,
    every: Annotated[bool, typer.Option("--all", help="Show all jobs of yours on this machine.")] = False,
) -> None:
    """Show the ranks, channels, weights and events of a job whose driver runs on this machine, until q or Ctrl-C."""
    with readable_errors():
        jobs = _chosen(job, every)
        with looking_at(jobs, LOOKER) as sessions:
            if once or as_json or not sys.stdout.isatty():
                _show_once(jobs, sessions, every, as_json)
            else:
                _watch(sessions, interval)


def _chosen(which: str | None, every: bool) -> list[RunningJob]:
    # Sockets and keys take a while to load, and other commands do without them.
    from rlinf_scheduler.errors import ClusterError  # noqa: PLC0415
    from rlinf_scheduler.session.job_file import find_job, running_jobs  # noqa: PLC0415

    if every and which is not None:
        raise ClusterError("`--all` shows every job, and `--job` one: give one of the two")
    if not every:
        try:
            return [find_job(which)]
        except ClusterError as error:
            if which is None and len(running_jobs()) > 1:
                raise ClusterError(f"{error}. `--all` shows all of them") from error
            raise
    jobs = running_jobs()
    if not jobs:
        raise ClusterError("no job of yours has its driver on this machine")
    return jobs


def _show_once(jobs: list[RunningJob], sessions: list[Session], every: bool, as_json: bool) -> None:
    from rlinf_scheduler.errors import ClusterError, CommError  # noqa: PLC0415
    from rlinf_scheduler.observe.status_service import begin_status, received  # noqa: PLC0415

    by_home = {job.home: job for job in jobs}
    found = []
    silent: ClusterError | None = None
    for job, asked in [(by_home[session.home], begin_status(session)) for session in sessions]:
        try:
            found.append(received(asked))
        except ClusterError as error:
            if not every:
                raise
            silent = error
            left_out(f"the job of process {job.pid} ({job.program}): {error}")
        except CommError:
            if not every:  # of all jobs, one may have ended just now
                raise
    if silent and not found:
        raise silent
    if as_json:
        data = [status.to_dict() for status in found]
        typer.echo(json.dumps(data if every else data[0], indent=2))
        return
    from rich.console import Console  # noqa: PLC0415

    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _WIDE
    for status in found:
        console.print(_view(status, console.width, _NO_TERMINAL))


def _view(status: JobStatus, width: int, height: int, note: str = "") -> RenderableType:
    # It loads `rich`, which other commands do without.
    from rlinf_scheduler.cli.top_view import job_view  # noqa: PLC0415

    return job_view(status, width, height, note)


def _watch(sessions: list[Session], interval_s: float) -> None:
    from rich.console import Console  # noqa: PLC0415
    from rich.live import Live  # noqa: PLC0415

    from rlinf_scheduler.errors import CommError  # noqa: PLC0415

    console = Console()
    ended = ""
    with pressed_keys() as keys, Live(console=console, screen=True, auto_refresh=False) as live:
        frames = _Screen(sessions, console, interval_s)
        try:
            while frames.look(keys):
                live.update(frames.view(), refresh=True)
                if keys.quits(interval_s):
                    break
        except KeyboardInterrupt:
            pass
        except CommError:
            ended = "the job has ended"
    if ended:
        typer.echo(ended)


class _Screen:
    """What was last seen of each job, and why nothing newer is."""

    def __init__(self, sessions: list[Session], console: Console, interval_s: float) -> None:
        self._sessions = sessions
        # Another one's answer will do that is not what was shown before.
        self._max_age_s = interval_s / 2
        self._console = console
        self._statuses: list[JobStatus | None] = [None for _ in sessions]
        self._notes = ["looking ..." for _ in sessions]

    def look(self, keys: Keys) -> bool:
        """Look again at every job; whether to go on: `q` ends it.

        Raises:
            CommError: a job has ended, and it is the only one.
        """
        from rlinf_scheduler.observe.status_service import begin_status  # noqa: PLC0415

        asked = [begin_status(session, self._max_age_s) for session in self._sessions]
        while not all(each.done() for each in asked):
            if keys.quits(_GLANCE_S):
                return False
        for index, each in enumerate(asked):
            self._note(index, each)
        return True

    def _note(self, index: int, asked: Promise[Reply]) -> None:
        from rlinf_scheduler.errors import ClusterError, CommError  # noqa: PLC0415
        from rlinf_scheduler.observe.status_service import received  # noqa: PLC0415

        try:
            self._statuses[index], self._notes[index] = received(asked), ""
        except ClusterError as error:
            self._notes[index] = str(error)
        except CommError:
            self._notes[index] = "it has ended"
            if len(self._sessions) == 1:
                raise

    def view(self) -> RenderableType:
        """The present frame."""
        from rich.console import Group  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        width, height = self._console.size
        share = max(4, height // len(self._sessions))
        parts: list[RenderableType] = []
        for status, note in zip(self._statuses, self._notes, strict=True):
            parts.append(Text(note) if status is None else _view(status, width, share, note))
        return Group(*parts)


# -- the keyboard ------------------------------------------------------------------------------------


@contextmanager
def pressed_keys() -> Iterator[Keys]:
    """A block in which each key is there as soon as it is pressed; nothing is echoed. Ctrl-C interrupts as ever."""
    descriptor = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else -1
    if descriptor < 0:
        yield Keys(-1)
        return
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield Keys(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


class Keys:
    """The keys that are pressed; none ever where the input is no terminal."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def quits(self, within_s: float) -> bool:
        """Wait for so many seconds; whether `q` is pressed meanwhile, or the terminal goes away."""
        until = time.monotonic() + within_s
        while True:
            left_s = max(0.0, until - time.monotonic())
            watched = [self._descriptor] if self._descriptor >= 0 else []
            if not select.select(watched, [], [], left_s)[0]:
                return False
            if os.read(self._descriptor, 64)[:1] in (b"q", b"Q", b""):
                return True
