"""Rooms: parts that the library works without. No other part imports one; what needs one asks for it here, by name.

Each is a folder beside this file, and may be left out of an installation.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
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


@cache
def has_room(room: str) -> bool:
    """Say whether a room is installed."""
    spec = find_spec(f"{__package__}.{room}")
    return spec is not None and spec.origin is not None  # a folder without modules has none


def of_room(place: str) -> Any:
    """Return what a room has at a place, such as "web.server:page_url".

    Raises:
        ClusterError: the room was left out.
    """
    module, _, name = place.partition(":")
    check_room(module.partition(".")[0])
    return getattr(import_module(f"{__package__}.{module}"), name)


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
