"""What the threads of this process are at: their stacks, and what they wait for. Called on the I/O thread."""

from __future__ import annotations

import asyncio
import dis
import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple, TypeVar

from msgspec.structs import replace

from rlinf_scheduler.comm.threads import OWN_THREADS
from rlinf_scheduler.comm.waits import COLLECTIVE, IDLE, Describe, Wait, describer_of
from rlinf_scheduler.observe.process_stats import Frame, Stack

T = TypeVar("T")

# Longer stacks are cut at their outer end.
MAX_FRAMES = 60
_OWN = str(Path(__file__).parents[2])
_INSTALLED = ("site-packages", "dist-packages")
# By where its library is: `sysconfig`, which knows, loads a table of a thousand settings.
_PYTHON = str(Path(os.__file__).parent)
# Where PyTorch's collectives are called, whatever carries them out.
_COLLECTIVES = "torch/distributed/distributed_c10d.py"
_EVENT_LOOP = "asyncio/base_events.py"
# Where the main thread of an actor of Ray's is when none of its methods runs.
_RAYS_LOOP = "ray/_private/worker.py"
MAIN, TASK = "MainThread", "task"
# Of the tasks of an event loop so many are looked at: the I/O thread does that.
MAX_TASKS = 512
# Between a function that waits and its caller these may stand: `with` blocks, and what it waits by.
_BETWEEN = ("contextlib.py", "/threading.py", "/concurrent/futures/_base.py")
CALL_THREADS = "rlinf-call-"
# CPUCLOCK_SCHED and CPUCLOCK_PERTHREAD_MASK of the kernel.
_THREADS_CLOCK = 2 | 4
# Threads of this library's own, and of Ray's, say nothing about the job.
_OWN_THREADS = (
    "comm-",
    "rlinf-events",
    "rlinf-progress",
    "rlinf-web",
    "ray_",
    "AsyncIO Thread",
    "PythonGCThread",
)


def is_own(file: str) -> bool:
    """Whether a file belongs to this library."""
    return file.startswith(_OWN)


def is_library(file: str) -> bool:
    """Whether a file belongs to this library, to Python's, or to an installed package."""
    return (
        is_own(file)
        or file.startswith(("<frozen", _PYTHON))
        or any(f"/{folder}/" in file for folder in _INSTALLED)
    )


def is_own_thread(name: str) -> bool:
    """Whether a thread is this library's own, or Ray's, and says nothing about the job."""
    return name.startswith(_OWN_THREADS)


def frames_of_threads(
    take: Callable[[Iterator[FrameType]], T], idents: Collection[int] | None = None
) -> dict[int, T]:
    """What is taken of the frames of each thread, the innermost first, by its number.

    Args:
        take: takes what it needs; the frames that it keeps may be looked at later.
        idents: only of these threads; None: of all.
    """
    # Python 3.11 collects garbage in the middle of an allocation. In `_current_frames` it has a lock for which it waits
    # when a `threading.local` goes: this thread would wait for itself, and all others for it. In `f_back`, which makes
    # an object for the frame of a thread that is stopped, what is collected lets that thread go on: the frame is gone
    # when its object is ready, and whoever looks at that later ends the process by a segmentation fault.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return {
            ident: take(_outwards(frame))
            for ident, frame in sys._current_frames().items()
            if idents is None or ident in idents
        }
    finally:
        if was_enabled:
            gc.enable()


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


class _Seen(NamedTuple):
    """Where a thread was: the frame and instruction, since when, how much it had run, and since when no more."""

    at: tuple[int, int]
    since: float
    run_ns: int
    still_since: float


class Threads:
    """The threads of this process, as they are when it is asked; it remembers who stood where before.

    A service of its session.
    """

    def __init__(self, _session: object = None) -> None:
        self._seen: dict[int, _Seen] = {}

    def look(self) -> None:
        """Note where each thread is, so that it can be said later for how long it has been there."""
        now, seen = time.monotonic(), {}
        for ident, at in frames_of_threads(_place_in).items():
            run_ns = _run_ns(ident)
            before = self._seen.get(ident)
            if before is None or before.at != at:
                seen[ident] = _Seen(at, now, run_ns, now)
            elif not run_ns or before.run_ns != run_ns:  # a loop, say, that comes by there again and again
                seen[ident] = _Seen(at, before.since, run_ns, now)
            else:
                seen[ident] = before
        self._seen = seen

    def stacks(self) -> list[Stack]:
        """The stacks of all threads but this one and the library's own, the main thread's first."""
        self.look()
        # Not `threading.enumerate`: this thread would wait for a lock that an interrupted thread may hold.
        names = {ident: thread.name for ident, thread in dict(threading._active).items()}  # type: ignore[attr-defined]
        main, own = threading.main_thread().ident, threading.get_ident()
        found: list[tuple[bool, Stack]] = []
        now = time.monotonic()
        for ident, frames in frames_of_threads(list).items():
            name = names.get(ident, f"thread {ident}")
            found.extend((True, replace(stack, thread=ident)) for stack in _tasks_in(frames))
            if ident == own or is_own_thread(name) or _is_in_rays_loop(frames[0]):
                continue
            stack = replace(stack_of(name, frames), thread=ident)
            seen = self._seen.get(ident)
            if seen is not None:
                wait = self._since_seen(stack.wait, ident)
                still_s, same_s = now - seen.still_since, now - seen.since
                stack = replace(stack, wait=wait, same_for_s=same_s, still_for_s=still_s)
            if stack.wait is not None or ident not in OWN_THREADS:
                found.append((ident != main, stack))
        found.sort(key=lambda each: each[0])
        return [stack for _, stack in found if stack.wait is None or stack.wait.kind != IDLE]

    def waits(self, idents: Collection[int]) -> dict[int, Wait]:
        """Return what threads wait for, by their numbers, without describing their stacks."""
        found = frames_of_threads(innermost, idents)
        told = {ident: self._since_seen(wait_in(frames), ident) for ident, frames in found.items()}
        return {ident: wait for ident, wait in told.items() if wait is not None and wait.kind != IDLE}

    def longest_wait(self) -> Wait | None:
        """Return the longest wait of the main thread, its tasks and threads that run calls; None if nothing waits."""
        names = {ident: thread.name for ident, thread in dict(threading._active).items()}  # type: ignore[attr-defined]
        idents = {ident for ident, name in names.items() if name.startswith(CALL_THREADS)}
        main = threading.main_thread().ident or 0
        waits = list(self.waits({*idents, main}).values())
        waits += _waits_of_tasks(frames_of_threads(list, (main,)).get(main, []))
        return max(waits, key=lambda wait: wait.since_s, default=None)

    def _since_seen(self, wait: Wait | None, ident: int) -> Wait | None:
        """Let a wait that does not know its beginning have begun when its thread was seen to run last."""
        seen = self._seen.get(ident)
        if wait is None or wait.kind != COLLECTIVE or seen is None:
            return wait
        return replace(wait, since_s=time.monotonic() - seen.still_since)


def _is_in_rays_loop(frame: FrameType) -> bool:
    """Whether a thread waits there for what Ray has to run next."""
    code = frame.f_code
    return code.co_name == "main_loop" and code.co_filename.endswith(_RAYS_LOOP)


def _waits_of_tasks(frames: list[FrameType]) -> list[Wait]:
    """Return what the tasks of the event loop wait for that a thread runs; nothing while one of them is at work."""
    if not frames or not frames[0].f_code.co_filename.endswith("/selectors.py"):
        return []
    loop = next(filter(None, map(loop_run_in, frames)), None)
    tasks = () if loop is None else _tasks_of(loop)
    return [wait for task in tasks if (wait := wait_of_task(task)) is not None]


def _tasks_of(loop: asyncio.AbstractEventLoop) -> Iterable[asyncio.Task[Any]]:
    with suppress(RuntimeError):  # too many come and go
        return islice(asyncio.all_tasks(loop), MAX_TASKS)
    return ()


def wait_of_task(task: asyncio.Task[Any]) -> Wait | None:
    """Return what a task waits for; None if it waits for nothing here."""
    wait = wait_in(list(frames_inwards(task.get_coro()))[::-1])
    return None if wait is None or wait.kind == IDLE else wait


def _tasks_in(frames: Iterable[FrameType]) -> Iterator[Stack]:
    """The tasks of the event loop that a thread runs, those that say something."""
    for frame in frames:
        loop = loop_run_in(frame)
        if loop is not None:
            tasks = _tasks_of(loop)
            stacks = (stack_of(TASK, reversed(list(frames_inwards(task.get_coro())))) for task in tasks)
            yield from (each for each in stacks if each.wait is not None or not _is_of_library(each))


def loop_run_in(frame: FrameType) -> asyncio.AbstractEventLoop | None:
    """The event loop that a frame of a thread runs; None if it is another function's."""
    code = frame.f_code
    if code.co_name == "run_forever" and code.co_filename.endswith(_EVENT_LOOP):
        found = frame.f_locals.get("self")
        return found if isinstance(found, asyncio.AbstractEventLoop) else None
    return None


def _is_of_library(stack: Stack) -> bool:
    return all(frame.is_library for frame in stack.frames)


def stack_of(name: str, frames: Iterable[FrameType]) -> Stack:
    """Describe a stack, given its frames, the innermost first."""
    shown = innermost(iter(frames))
    wait = wait_in(shown)
    notes = [_note(frame) for frame in shown]
    told = next((place for place, note in enumerate(notes) if not note.is_library), 0)
    if notes and wait is None:
        code, last = shown[told].f_code, shown[told].f_lasti
        note = notes[told]
        notes[told] = Frame(
            note.file, note.line, note.function, callee_of(code, last), note.is_own, note.is_library
        )
    return Stack(name, tuple(notes), wait)


def callee_of(code: CodeType, last: int) -> str:
    """What a call that is under way calls, as its source has it without arguments, e.g. "time.sleep"; "" if unclear.

    Args:
        last: the offset of its present instruction.
    """
    # While Python code is called, the offset is that of what the call keeps behind its instruction.
    steps = [step for step in dis.get_instructions(code) if step.offset <= last]
    now = steps[-1] if steps else None
    if now is None or now.positions is None or not now.opname.startswith(("CALL", "BEFORE_WITH")):
        return ""
    start = now.positions.lineno, now.positions.col_offset
    names = [
        str(step.argval)
        for step in steps
        if step.opname.startswith("LOAD_")
        and step.positions is not None
        and (step.positions.lineno, step.positions.col_offset) == start
        and isinstance(step.argval, str)
    ]
    return ".".join(dict.fromkeys(names))


def _place_in(frames: Iterator[FrameType]) -> tuple[int, int]:
    """Where a thread is in the innermost code that is the user's."""
    first = next(frames)
    for each in chain((first,), frames):
        if not is_library(each.f_code.co_filename):
            return id(each), each.f_lasti
    return id(first), first.f_lasti


def _run_ns(ident: int) -> int:
    """For how long a thread has run on a processor, in nanoseconds; 0 where that is not known."""
    thread = threading._active.get(ident)  # type: ignore[attr-defined]
    if thread is None or thread.native_id is None:
        return 0
    with suppress(OSError):
        # Linux's own number of that clock. `time.pthread_getcpuclockid` may crash on a thread that is gone just now.
        return time.clock_gettime_ns((~thread.native_id << 3) | _THREADS_CLOCK)
    return 0


def innermost(frames: Iterator[FrameType]) -> list[FrameType]:
    """Take as much of a stack as is shown of it."""
    return list(islice(frames, MAX_FRAMES))


def frames_inwards(awaitable: Any) -> Iterator[FrameType]:
    """The frames of what is awaited, the outermost first."""
    while awaitable is not None:
        frame = getattr(awaitable, "cr_frame", None) or getattr(awaitable, "gi_frame", None)
        if frame is not None:
            yield frame
        awaitable = getattr(awaitable, "cr_await", None) or getattr(awaitable, "gi_yieldfrom", None)


def _note(frame: FrameType) -> Frame:
    code = frame.f_code
    file = code.co_filename
    line = frame.f_lineno or code.co_firstlineno
    return Frame(file, line, code.co_qualname, "", is_own(file), is_library(file))


def wait_in(frames: list[FrameType]) -> Wait | None:
    """What a thread waits for in this library, or in a collective; None if it is at something else."""
    for frame in frames:
        code = frame.f_code
        describe = describer_of(code)
        if describe is not None:
            return _described(describe, frame)
        if not is_own(code.co_filename) and not code.co_filename.endswith(_BETWEEN):
            break
    return _collective(frames)


def _described(describe: Describe, frame: FrameType) -> Wait | None:
    try:
        return describe(frame.f_locals)
    except Exception:  # noqa: BLE001 - it is in the middle of something: not all of its variables are there yet
        return None


def _collective(frames: list[FrameType]) -> Wait | None:
    names = [frame.f_code.co_name for frame in frames if frame.f_code.co_filename.endswith(_COLLECTIVES)]
    return Wait(COLLECTIVE, f"torch.distributed.{names[-1]}()") if names else None
