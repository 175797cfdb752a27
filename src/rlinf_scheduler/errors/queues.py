"""What operations on channels that wait for nothing end with, also as errors of the standard library's queues."""

from __future__ import annotations

import queue

# Takes a tenth of a second to load, which programs that only plan do without: the package loads this module last.
from asyncio import QueueEmpty, QueueFull

from rlinf_scheduler.errors.channel import ChannelError


class ChannelEmpty(ChannelError, queue.Empty, QueueEmpty):
    """`get_nowait` found nothing."""


class ChannelFull(ChannelError, queue.Full, QueueFull):
    """`put_nowait` found no room."""
