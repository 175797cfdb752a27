"""What a process has received stays valid in the children that it forks.

A child has its parent's maps, but not its slots: what the parent releases would be used again while the child reads it.
So before a fork the parent takes a slot for the child in each arena of which it holds something and holds the same
there; from then on each releases for itself. What the parent could not take, because it is out of descriptors or slots
or held it only after that, the child takes; if that is too late, the child's map of the block is made unreadable: it
is killed if it reads it, but never reads anything else.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable
from typing import Protocol

from rlinf_scheduler.comm.shm import kernel
from rlinf_scheduler.comm.shm.foreign import ForeignArena, Hold
from rlinf_scheduler.comm.shm.slots import claim_slot


class Opened(Protocol):
    """The arenas that a process has open."""

    def arenas(self) -> Iterable[ForeignArena]:
        """Each of them."""

    def orphan(self) -> None:
        """This is a forked child: be its own."""


_all: weakref.WeakSet[Opened] = weakref.WeakSet()
# For each thread that is about to fork: the child's descriptor and slot of each arena.
_prepared: dict[int, dict[ForeignArena, tuple[int, int]]] = {}
_registered: list[bool] = []


def remember(opened: Opened) -> None:
    """See to these arenas when this process forks."""
    _all.add(opened)
    if not _registered:
        _registered.append(True)
        os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)


def _before() -> None:
    prepared = _prepared[threading.get_ident()] = {}
    for opened in list(_all):
        for arena in opened.arenas():
            held = _held(arena)
            place = _new_place(arena) if held else None
            if place is None:
                continue
            prepared[arena] = place
            for hold in held:
                arena.seat.table.hold(place[1], hold.index, hold.generation)


def _in_parent() -> None:
    for fd, _ in _prepared.pop(threading.get_ident(), {}).values():
        os.close(fd)


def _in_child() -> None:
    mine = _prepared.pop(threading.get_ident(), {})
    for others in _prepared.values():
        for fd, _ in others.values():
            os.close(fd)
    _prepared.clear()
    for opened in list(_all):
        opened.orphan()
        for arena in opened.arenas():
            held = _held(arena)
            place = mine.get(arena) or (_new_place(arena) if held else None)
            arena.seat.adopt(*(place or (-1, -1)))
            for hold in held:
                if place is None or not arena.seat.table.hold(place[1], hold.index, hold.generation):
                    _forbid(hold)


def _held(arena: ForeignArena) -> list[Hold]:
    return [hold for ref in list(arena.holds.values()) if (hold := ref()) is not None]


def _new_place(arena: ForeignArena) -> tuple[int, int] | None:
    try:
        fd = kernel.open_of(os.getpid(), arena.fd)
    except OSError:
        return None
    try:
        return fd, claim_slot(fd, arena.seat.table)
    except OSError:
        os.close(fd)
        return None


def _forbid(hold: Hold) -> None:
    size = hold.arena.block_bytes(hold.index)
    for address in (hold.arena.mapped_at(hold.index), *hold.private):
        if address:
            kernel.forbid(address, size)
