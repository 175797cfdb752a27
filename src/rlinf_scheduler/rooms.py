"""Rooms: parts that the library works without. No other part imports one; what needs one asks for it here, by name.

Each is a folder beside this file, and may be left out of an installation.
"""

from __future__ import annotations

import _thread
import os
import threading
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from rlinf_scheduler.errors import ClusterError

ROOMS = {
    "devices": "objects that stay on accelerators, and memory that is pinned for them",
    "doctor": "what is wrong with a cluster",
    "durable": "channels that survive their process, and checkpoints",
    "emulation": "networks that are slow on purpose",
    "metrics": "numbers of jobs and of training steps",
    "profiling": "where ranks and their steps spend their time",
    "tracing": "timelines of jobs",
    "web": "the page of a job",
}
LOAD_TIMEOUT_S = 120.0
# By what comes behind this package's name.
_loaded: dict[str, ModuleType] = {}


@cache
def has_room(room: str) -> bool:
    """Say whether a room is installed."""
    return os.path.exists(os.path.join(os.path.dirname(__file__), room, "__init__.py"))


def of_room(place: str) -> Any:
    """Return what a room has at a place, such as "web.server:page_url".

    Raises:
        ClusterError: the room was left out.
    """
    module, _, name = place.partition(":")
    if module not in _loaded:
        check_room(module.partition(".")[0])
        _load(module)
    return getattr(_loaded[module], name)


def _load(module: str) -> None:
    """Import a module of a room; not in the main thread.

    An interruption there can leave a lock of imports taken for good, and the I/O thread would wait for it.
    """
    if _thread.get_ident() != threading.main_thread().ident:
        _loaded[module] = import_module(f"{__package__}.{module}")
        return
    over = _thread.allocate_lock()
    errors: list[BaseException] = []

    def load() -> None:
        try:
            _load(module)
        except BaseException as error:  # noqa: BLE001 - it belongs to who asked
            errors.append(error)
        finally:
            over.release()

    over.acquire()
    _thread.start_new_thread(load, ())
    if not over.acquire(timeout=LOAD_TIMEOUT_S):
        raise ClusterError(f"{__package__}.{module} was not imported within {LOAD_TIMEOUT_S:g} s")
    for error in errors:
        raise error


def check_room(room: str) -> None:
    """Make sure that a room is installed.

    Raises:
        ClusterError: it was left out.
    """
    if not has_room(room):
        raise _left_out(room)


def not_installed(error: ModuleNotFoundError) -> Exception:
    """Return what to raise instead of an error of an import: one that names the room, if it was of a room."""
    package, _, place = (error.name or "").partition(".")
    room = place.partition(".")[0]
    is_left_out = package == __package__ and room in ROOMS and not has_room(room)
    return _left_out(room) if is_left_out else error


def _left_out(room: str) -> ClusterError:
    return ClusterError(
        f"{room} is not installed: {ROOMS[room]} (the folder {__package__}/{room} was left out)"
    )
