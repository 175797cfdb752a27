"""Channels: named FIFO queues between workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinf_scheduler.lazy import declared

if TYPE_CHECKING:  # each is loaded by those who use it only
    from rlinf_scheduler.channel.answering import ChannelRequest, RequestLoop
    from rlinf_scheduler.channel.batch import Batch, GroupBatch
    from rlinf_scheduler.channel.checkpoint import Checkpoint, Restorable
    from rlinf_scheduler.channel.deadlines import SAVE_TIMEOUT_S
    from rlinf_scheduler.channel.inspecting import ChannelReport, QueueReport
    from rlinf_scheduler.channel.lease import Lease, LeaseContext, LeaseLoop
    from rlinf_scheduler.channel.lease_operation import DeadLetter
    from rlinf_scheduler.channel.local import Channel, LocalChannel  # with what `local=True` makes
    from rlinf_scheduler.channel.opening import HeldChannel, host_channel
    from rlinf_scheduler.channel.shard import Shard, ShardBatch, ShardLease
    from rlinf_scheduler.channel.slot import Slot
    from rlinf_scheduler.channel.spec import (
        ChannelRef,
        ChannelSpec,
        channels_of,
        unheld_channels,
    )
    from rlinf_scheduler.channel.starting import StartChannel, Starter
    from rlinf_scheduler.channel.subscription import Subscription
    from rlinf_scheduler.queueing.stats import ChannelStats, ChannelUser, QueueDepth, Waiting

__all__ = [
    "SAVE_TIMEOUT_S",
    "Batch",
    "Channel",
    "ChannelRef",
    "ChannelReport",
    "ChannelRequest",
    "ChannelSpec",
    "ChannelStats",
    "ChannelUser",
    "Checkpoint",
    "DeadLetter",
    "GroupBatch",
    "HeldChannel",
    "Lease",
    "LeaseContext",
    "LeaseLoop",
    "LocalChannel",
    "QueueDepth",
    "QueueReport",
    "RequestLoop",
    "Restorable",
    "Shard",
    "ShardBatch",
    "ShardLease",
    "Slot",
    "StartChannel",
    "Starter",
    "Subscription",
    "Waiting",
    "channels_of",
    "host_channel",
    "unheld_channels",
]

if not TYPE_CHECKING:  # which would believe that every name is there
    __getattr__ = declared(globals())
