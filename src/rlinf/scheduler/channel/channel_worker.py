"""The parts of channels, by RLinf's names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rlinf.scheduler.absent import absent
from rlinf_scheduler.channel.local import LocalChannel

__all__ = ["ChannelWorker", "LocalChannel", "WeightedItem"]

ChannelWorker = absent(
    "ChannelWorker",
    __name__,
    "channels are held by processes of the library's own; use `Channel.create`, `Channel.connect` and `explain`",
)


@dataclass(order=True)
class WeightedItem:
    """An item with its weight, which it counts in `get_batch`; in the order of weights."""

    weight: float
    item: Any = field(compare=False)
