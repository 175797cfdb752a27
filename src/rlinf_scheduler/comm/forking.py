"""What happens in a child that was forked from a process of the cluster.

Such a child inherits every descriptor but no thread: nobody serves its connections, and as long as it holds
them the others cannot see that its parent died. So the child gives up what it inherited as its first act, and
whatever it does with that later is an error that says so. It may join the cluster as a process of its own.
When it leaves the user's code in which it was forked, it ends: what called that code is its parent's.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from rlinf_scheduler.errors import CommError

logger = logging.getLogger(__name__)

FORKED = (
    "this is a forked child, and what it inherited from its parent's place in the cluster does not work here; "
    "start the process with 'spawn' or 'forkserver', or let it use the cluster through its parent; below a rank it "
    "joins the job by Worker.join_parent(), with a Worker of its own"
)

_libc = ctypes.CDLL(None)
_callbacks: list[Callable[[], None]] = []
_generation = 0


def on_fork_in_child(callback: Callable[[], None]) -> None:
    """Call `callback` in every child that this process forks, before anything else runs there.

    It must not wait for a lock: the thread that held it may not exist in the child. Added once, however often
    it is given.
    """
    if not _callbacks:
        os.register_at_fork(after_in_child=_run_callbacks)
    if callback not in _callbacks:
        _callbacks.append(callback)


def generation() -> int:
    """How many forks lie between this process and the first one; what was made in another one is not ours."""
    return _generation


def forked_error(what: str = "") -> CommError:
    """The error of using what was inherited through a fork."""
    return CommError(f"{what}: {FORKED}" if what else FORKED)


@contextmanager
def children_end_here() -> Iterator[None]:
    """Have every child that is forked inside end where it leaves, as a program of its own does.

    Its status is that of a program, too: what was given to `sys.exit`, 1 after any other exception, else 0.
    """
    begun_in = _generation
    try:
        yield
    except BaseException as error:
        if _generation != begun_in:
            _end(error)
        raise
    if _generation != begun_in:
        _end(None)


def _end(error: BaseException | None) -> NoReturn:
    status = 0 if error is None else 1
    with suppress(Exception):  # a stream is closed, or an exception cannot be shown
        status = _told_status(error)
        sys.stdout.flush()
        sys.stderr.flush()
    # Nothing of what a process does at its end: connections, Ray and their threads are the parent's.
    os._exit(status)


def end_without_libraries() -> None:
    """Have this process end with the status that it ends with anyhow, and without what C libraries do then.

    In a child they may wait for threads of the parent, which it has not: also where its last thread just returns.
    """
    with suppress(AttributeError):  # another C library
        # Python's own end comes before it.
        _libc.on_exit(_libc._exit, None)
        # What is registered last is called first: `_exit` drops what C code has printed and not written.
        _libc.on_exit(_libc.fcloseall, None)


def _told_status(error: BaseException | None) -> int:
    if error is None:
        return 0
    if not isinstance(error, SystemExit):
        traceback.print_exception(error)
        return 1
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 0xFF
    sys.stderr.write(f"{error.code}\n")
    return 1


def _run_callbacks() -> None:
    global _generation
    _generation += 1
    for callback in _callbacks:
        try:
            callback()
        except Exception:
            logger.exception("a forked child could not give up what it inherited")
