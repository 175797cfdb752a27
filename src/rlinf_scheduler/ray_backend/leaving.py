"""Leaving Ray, also where its head does not answer any more: nobody waits for what does not come.

Ray tells its head that this process listens no more, and has no deadline for that: where the head's machine is silent
it waits until the kernel gives the connection up, for more than two minutes, and once more at the process's end.
"""

from __future__ import annotations

import atexit
import logging
import sys
import threading
from collections.abc import Callable

import ray
from ray._private import auto_init_hook, worker

from rlinf_scheduler.comm.forking import end_without_libraries, on_fork_in_child
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.comm.threads import run_beside
from rlinf_scheduler.errors import ClusterError
from rlinf_scheduler.ray_backend.authentication import host_and_port
from rlinf_scheduler.ray_backend.lost_nodes import HEAD, ask_raylets

# A head that has not said a word by then does not answer.
_LOOK_S = 1.0
# So long Ray may take to leave a head that does not answer, then or after it.
SHUTDOWN_WITHIN_S = 2.0
_log = logging.getLogger(__name__)
# This process ends without Ray's part in that.
_without_ray = threading.Event()
# What Ray was left to do alone, and where its head is.
_left_alone: list[tuple[Promise[None], str]] = []


def leave_ray() -> None:
    """Leave a Ray that others have started; where its head does not answer, within seconds."""
    if not ray.is_initialized():  # what was begun, and did not come so far
        ray.shutdown()
        return
    address = str(ray.get_runtime_context().gcs_address)
    left: Promise[None] | None = None
    try:
        answers = _answers(address)
        left = None if answers else _begin_beside(ray.shutdown)
        if left is not None:
            _wait(left, address)
    except BaseException:  # Ctrl-C, say: what it ends must not wait for the head then
        _leave_alone(left or _begin_beside(ray.shutdown), address)
        raise
    if answers:
        ray.shutdown()
    elif left is not None and left.done():
        left.result()
    else:
        _log.info("Ray's head at %s does not answer: this process does not wait until Ray is left", address)
        _leave_alone(left, address)


def do_while_head_answers(work: Callable[[], None]) -> None:
    """Have Ray do what its head has a part in; where that does not answer, it is not waited for.

    Raises: what `work` raises, if it ends meanwhile.
    """
    address = str(ray.get_runtime_context().gcs_address)
    done = _begin_beside(work)
    if done is not None:
        _wait(done, address)
        if done.done():
            done.result()
    elif _answers(address):
        work()


def check_left() -> None:
    """Make sure that this process can use another Ray.

    Raises:
        ClusterError: it has not left the last one yet, whose head does not answer.
    """
    for left, address in _left_alone:
        if not left.done():
            problem = f"this process has not left its last Ray yet, whose head at {address} does not answer"
            raise ClusterError(f"{problem}: open the cluster in another process")


def show_errors_at_once() -> None:
    """Have an error that ends this process shown before anything else: Ray's hook tells its head of it first.

    That has no deadline, either.
    """
    if sys.excepthook is worker.custom_excepthook:  # else it is the program's own
        sys.excepthook = worker.normal_excepthook


def leave_to_parent_in_child() -> None:
    """Have a child that is forked from this process end without Ray: that waits for threads, or crashes."""
    on_fork_in_child(_end_without_ray)


def start_none_by_accident() -> None:
    """Have what a thread of this process asks of Ray after it was left fail: Ray would start another Ray for it.

    That one ends with whatever ends the processes of the program, and Ray ends the program a minute after it.
    """
    auto_init_hook.enable_auto_connect = False


def _wait(done: Promise[None], address: str) -> None:
    while not done.wait(SHUTDOWN_WITHIN_S) and _answers(address):
        pass  # the head is busy, and comes to it


def _answers(address: str) -> bool:
    try:
        return HEAD in ask_raylets({HEAD: host_and_port(address)}, _LOOK_S)[1]
    except OSError:  # no descriptor is to be had, or the host has no address any more
        return False


def _begin_beside(work: Callable[[], None]) -> Promise[None] | None:
    """Begin work in a thread of its own; None where none can be had, as at the end of a process on Python 3.12.1."""
    done: Promise[None] = Promise()
    try:
        run_beside(done.set_from, work)
    except RuntimeError:  # "can't start new thread", or "can't create new thread at interpreter shutdown"
        return None
    return done


def _leave_alone(left: Promise[None] | None, address: str) -> None:
    _left_alone.append((left or Promise(), address))
    _end_without_ray()


def end_ray_by_own_callback() -> None:
    """Have Ray's part in the end of this process done by a callback that can be told to do nothing.

    From Python 3.14 on what is called at the end of a process can take no other callback out of that any more.
    """
    for callback in (ray.shutdown, _end_ray):
        atexit.unregister(callback)
    atexit.register(_end_ray)


def _end_ray() -> None:
    if not _without_ray.is_set():
        ray.shutdown(_exiting_interpreter=True)


def _end_without_ray() -> None:
    """Have this process end with the status that it ends with anyhow, and without Ray's part in that."""
    _without_ray.set()  # it would wait again
    end_without_libraries()  # what Ray's C++ would take down then is in use by the thread that waits
