"""Channels: named queues between workers, and what their operations return."""

from typing import TYPE_CHECKING

from rlinf_scheduler.lazy import declared

if TYPE_CHECKING:
    from rlinf.scheduler.channel.channel_worker import ChannelWorker as ChannelWorker
    from rlinf.scheduler.channel.channel_worker import WeightedItem as WeightedItem
    from rlinf_scheduler.channel import *  # noqa: F403
else:
    __getattr__ = declared(globals(), "rlinf_scheduler.channel")
