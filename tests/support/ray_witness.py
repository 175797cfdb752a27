"""Sees what the processes of the Ray that all tests share die of: a test that fails with them is not at fault."""

import os

from rlinf_scheduler.host.postmortem import Witnesses
from rlinf_scheduler.proc import living, with_descendants

# What a node stands or falls with.
_PROGRAMS = "gcs_server", "raylet"


class RayWitness:
    """Watches those that this process has started."""

    def __init__(self):
        everybody, witnesses = living(), Witnesses()
        own = with_descendants([each for each in everybody if each.pid == os.getpid()], everybody)
        self._watched = {
            each: witnesses.watch(each.pid, each.start) for each in own if each.name in _PROGRAMS
        }
        self._ended = []

    def told(self):
        """A line about each that has ended, and of what."""
        for each in self._watched.keys() - living().keys():
            cause = self._watched.pop(each).cause() or "nobody knows of what"
            self._ended.append(f"{each.name}, process {each.pid}, has ended: {cause}")
        return "\n".join(self._ended)

    def close(self):
        """See nothing any more."""
        for witness in self._watched.values():
            witness.close()
        self._watched.clear()
