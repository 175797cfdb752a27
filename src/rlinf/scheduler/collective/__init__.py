"""Handles of what goes on, and options of communication, by RLinf's names."""

from rlinf.scheduler.collective.async_work import (
    AsyncChannelCommWork,
    AsyncChannelWork,
    AsyncCollWork,
    AsyncFuncWork,
    AsyncRayWork,
    AsyncRouteWork,
    AsyncWork,
)
from rlinf.scheduler.collective.collective import Collective
from rlinf.scheduler.collective.collective_group import CollectiveGroup, CollectiveGroupOptions
from rlinf.scheduler.collective.multi_channel_pg import MultiChannelProcessGroup

__all__ = [
    "AsyncChannelCommWork",
    "AsyncChannelWork",
    "AsyncCollWork",
    "AsyncFuncWork",
    "AsyncRayWork",
    "AsyncRouteWork",
    "AsyncWork",
    "Collective",
    "CollectiveGroup",
    "CollectiveGroupOptions",
    "MultiChannelProcessGroup",
]
