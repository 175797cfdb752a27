"""Handles of what goes on, and options of communication, by RLinf's names."""

from rlinf.scheduler.absent import Collective, MultiChannelProcessGroup, add_absent_modules
from rlinf.scheduler.collective.async_work import (
    AsyncChannelCommWork,
    AsyncChannelWork,
    AsyncCollWork,
    AsyncFuncWork,
    AsyncRayWork,
    AsyncRouteWork,
    AsyncWork,
)
from rlinf.scheduler.collective.collective_group import CollectiveGroup, CollectiveGroupOptions

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

add_absent_modules(__name__)
