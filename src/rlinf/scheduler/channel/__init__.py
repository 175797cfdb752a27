"""Channels: named FIFO queues between workers.

- `client.py`: what users hold; `arguments.py`: what it accepts
- `connections.py`, `connection.py`, `shell.py`, `operation.py`, `refusals.py`: a process's side, operations under way
- `server.py`: the process that holds the queues, around the state machine of `queueing`
- `batch.py`, `producer.py`, `shard.py`: what `get_batch`, `producer` and `shard` return
- `producer_desk.py`, `byte_bound.py`: what the server does besides
- `wire.py`: what the two say to each other
- `spec.py`: what a channel is, as data
- `starting.py`: how the process that holds one is started
"""

from __future__ import annotations

from rlinf.scheduler.channel.batch import Batch, ShardBatch
from rlinf.scheduler.channel.client import Channel
from rlinf.scheduler.channel.server import ChannelServer, host_channel
from rlinf.scheduler.channel.shard import Shard
from rlinf.scheduler.channel.spec import ChannelRef, ChannelSpec, ChannelStats, channels_of
from rlinf.scheduler.channel.starting import StartChannel, Starter
from rlinf.scheduler.queueing import QueueDepth

__all__ = [
    "Batch",
    "Channel",
    "ChannelRef",
    "ChannelServer",
    "ChannelSpec",
    "ChannelStats",
    "QueueDepth",
    "Shard",
    "ShardBatch",
    "StartChannel",
    "Starter",
    "channels_of",
    "host_channel",
]
