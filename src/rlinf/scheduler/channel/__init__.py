"""Channels: named queues between workers, and what their operations return."""

from typing import TYPE_CHECKING

from rlinf_scheduler.lazy import mirror

if TYPE_CHECKING:
    from rlinf_scheduler.channel import *  # noqa: F403

__getattr__ = mirror(globals(), "rlinf_scheduler.channel")
