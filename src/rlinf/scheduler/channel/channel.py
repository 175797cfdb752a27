"""The channel, and the name of the queue that is meant where none is said."""

from rlinf_scheduler.channel import Channel
from rlinf_scheduler.channel.arguments import DEFAULT_QUEUE as DEFAULT_KEY

__all__ = ["DEFAULT_KEY", "Channel"]
