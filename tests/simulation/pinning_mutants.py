"""Broken pins: pages that a device reads are given back, it reads what is not pinned, or memory never comes back."""

from __future__ import annotations

from dataclasses import replace

from rlinf_scheduler.comm.shm.blocks import BlockStore
from rlinf_scheduler.devices.pins import Pins
from simulator import Machines


class PunchesWhatIsPinned(BlockStore):
    """What is free has no use for its pages."""

    def _put_back(self, blocks):
        for block in blocks:
            self._dissolve(block)


class NeverAsksForIt(BlockStore):
    """Whoever has pinned something will unpin it some day."""

    @property
    def pins_in_the_way(self):
        return False

    @pins_in_the_way.setter
    def pins_in_the_way(self, _value):
        pass


class TakesAPartForTheWhole(Pins):
    """A block that is pinned is pinned, however much of it."""

    def covers(self, key, size_bytes):
        return key in self._sizes


class UnpinsWhatIsRead(Pins):
    """What was pinned longest ago makes room, whoever reads it."""

    def idle(self, which=lambda _key: True):
        return [key for key in self._sizes if which(key)]


class PinsWithoutEnd(Pins):
    """There is always room for one more."""

    def make_room(self, key, size_bytes):
        return [key] if key in self._sizes else []


class NeverDoneWithIt(Pins):
    """What a device may read it may read for ever."""

    def end(self, key):
        pass


def _store(store):
    return replace(Machines(), block_store=store)


def _pins(pins):
    return replace(Machines(), pins=pins)


PINNING_MUTANTS = {
    "punches what is pinned": _store(PunchesWhatIsPinned),
    "never asks for what is pinned": _store(NeverAsksForIt),
    "takes a pinned part for the whole": _pins(TakesAPartForTheWhole),
    "unpins what a device reads": _pins(UnpinsWhatIsRead),
    "pins without end": _pins(PinsWithoutEnd),
    "is never done with what is pinned": _pins(NeverDoneWithIt),
}
