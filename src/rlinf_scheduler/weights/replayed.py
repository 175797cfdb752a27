"""Weights that come from the recording of a rank; nothing leaves the process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlinf_scheduler.comm.handle import AsyncHandle
from rlinf_scheduler.tape.player import Player
from rlinf_scheduler.weights.sources import Place
from rlinf_scheduler.weights.state_dicts import encode_held
from rlinf_scheduler.weights.target import Target, sources_of


class ReplayedWeights:
    """Stands for `Weights`.

    Args:
        player: what was recorded.
    """

    def __init__(self, player: Player) -> None:
        self._player = player

    def publish(self, name: str, state_dict: Mapping[str, Any], version: int) -> None:
        """Make a version the one that readers get from now on. It waits for no reader."""
        del version
        self._player.give("publish", name, lambda: encode_held(name, state_dict)[0])

    def fetch(self, name: str, into: Any, **_options: Any) -> AsyncHandle[int]:
        """Copy the newest version into `into`; the handle's result is that version's number."""
        target = Target(name, into)

        def write(brought: tuple[int, list[bytearray]]) -> int:
            version, frames = brought
            target.write(version, target.plan(version, sources_of(frames), Place("")), {0: frames})
            return version

        return AsyncHandle(self._player.promised("fetch", name), write, f"fetch of weights '{name}'")
