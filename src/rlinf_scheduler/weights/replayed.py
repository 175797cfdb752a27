"""Weights that come from the recording of a rank; nothing leaves the process."""

from __future__ import annotations

from itertools import islice
from typing import Any, Unpack

import msgspec

from rlinf_scheduler.comm.handle import AsyncHandle
from rlinf_scheduler.tape.player import Player
from rlinf_scheduler.weights.fetch import Described
from rlinf_scheduler.weights.held import encode_held
from rlinf_scheduler.weights.layout import WeightsLayout
from rlinf_scheduler.weights.plan import FetchOptions, Keys
from rlinf_scheduler.weights.sources import MemoryPlace, Sources
from rlinf_scheduler.weights.stream import BUCKET_BYTES, WeightsStream, WholeTensors
from rlinf_scheduler.weights.target import WeightsTarget


class ReplayedWeights:
    """Stands for `Weights`, with what was recorded."""

    def __init__(self, player: Player) -> None:
        self._player = player

    def publish(self, name: str, weights: Any, version: int, **_how: Any) -> None:
        """Make a version the one that readers get from now on. It waits for no reader."""
        del version
        self._player.give("publish", name, lambda: encode_held(name, weights)[0])

    def fetch(
        self,
        name: str,
        into: Any,
        *,
        min_version: int | None = None,
        version: int | None = None,
        timeout_s: float | None = None,
        **options: Unpack[FetchOptions],
    ) -> AsyncHandle[int]:
        """Copy the newest version into `into`; the handle's result is that version's number."""
        del min_version, version, timeout_s
        return self._fetch(name, WeightsTarget(name, into, **options))

    def stream(
        self, name: str, *, keys: Keys = None, bucket_bytes: int = BUCKET_BYTES, **_when: Any
    ) -> WeightsStream:
        """Return the whole tensors of the newest version."""
        target = WholeTensors(name, keys)
        return target.stream(self._fetch(name, target).wait(), bucket_bytes, lambda: None)

    def _fetch(self, name: str, target: WeightsTarget | WholeTensors) -> AsyncHandle[int]:
        def write(brought: tuple[Described, list[bytearray]]) -> int:
            (number, counts, raw), frames = brought
            layouts, left = msgspec.msgpack.decode(raw, type=list[WeightsLayout]), iter(frames)
            payloads = {source: list(islice(left, count)) for source, count in enumerate(counts)}
            here = MemoryPlace("")
            target.write(number, target.plan(number, Sources(layouts, [here] * len(counts)), here), payloads)
            return number

        return AsyncHandle(self._player.promised("fetch", name), write, f"fetch of weights '{name}'")
