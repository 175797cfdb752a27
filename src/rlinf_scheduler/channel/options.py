"""The options of a channel that is created, for functions that pass them on."""

from __future__ import annotations

import os
from typing import TypedDict

from rlinf_scheduler.channel.deadlines import Survives
from rlinf_scheduler.channel.saving import Restorable


class ChannelOptions(TypedDict, total=False):
    """What `Channel.create` takes by name, and means; each may be left out."""

    max_bytes: int | None
    producers: int | None
    successor_s: float
    max_attempts: int | None
    max_leased: int | None
    restore: Restorable | None
    own_process: bool | None
    holds: str | None
    durable: str | os.PathLike[str] | None
    survives: Survives
    stall_after_s: float | None
    device_items: bool
    priority_wait_s: float | None
    node_rank: int | None
    distributed: bool
    local: bool
    exist_ok: bool
