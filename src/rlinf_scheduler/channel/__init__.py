"""Channels: named FIFO queues between workers.

What users hold:
- `channel.py`: made of `access.py`, `inspecting.py` (with `peeking.py`), `saving.py`, and of features, each with its
  operations: `batch.py` and `batches.py`, `lease.py` and `lease_operation.py`, `asking.py` and `answering.py`
  (`question.py` travels), `admission.py` (`slot.py`), `shard.py`, `subscription.py`; `arguments.py`: what they
  accept; `local.py`: one inside a process

A process's side:
- `connection.py`: as its threads see it, `connections.py`: all of them
- `client.py`: on the I/O thread, with `requests.py`, `sender.py`, `receiving.py`
- `operation.py`: what a put and a get are (`comm/operation.py`: where the two meet); `refusals.py`: their
  errors; `shortcut.py`: the way of a thread past both
- `copies.py`: what travels with items besides their bytes

Between them:
- `wire.py`: what is said of operations, `control_wire.py`: of everything else
- `spec.py`: what a channel is, as data, and what `create` accepts; `deadlines.py`: how long it waits where nobody says
  otherwise

The process that holds it:
- `server.py`: around the state machine of `queueing`, with `clients.py`, the processes that use it, and `outbox.py`,
  its responses; `features/`: what it does, in files that register themselves
- `starting.py`: how that is started, `opening.py`: how a channel begins there

Where items lie:
- `holding.py`: in messages, or on their producer's node, whose `node_holder.py` has them; `held.py`: what is said of
  these, and how they are fetched; `remote_items.py`: what the server knows of them
- `placed.py`: on a device, which the room `devices` sees to

What is on disk:
- `durable.py`: a channel that survives its process, made of `journal.py`, the file, `journal_records.py`, what is in
  it, `journaled.py`, between its server and the world, and `found_journal.py`, what a process finds that comes to hold
  it; `reconnecting_transport.py` leads to it, by `durable_wire.py`
- `checkpoint.py`: what was saved, in files of records, `record_file.py`
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinf_scheduler.lazy import declared

if TYPE_CHECKING:  # each is loaded by those who use it only
    from rlinf_scheduler.channel.answering import ChannelRequest, RequestLoop
    from rlinf_scheduler.channel.batch import Batch, GroupBatch
    from rlinf_scheduler.channel.checkpoint import Checkpoint, Restorable, load_job
    from rlinf_scheduler.channel.durable import DurableChannel
    from rlinf_scheduler.channel.inspecting import ChannelReport, QueueReport
    from rlinf_scheduler.channel.lease import Lease, LeaseContext, LeaseLoop
    from rlinf_scheduler.channel.lease_operation import DeadLetter
    from rlinf_scheduler.channel.local import Channel, LocalChannel  # with what `local=True` makes
    from rlinf_scheduler.channel.opening import HeldChannel, host_channel, open_channel
    from rlinf_scheduler.channel.saving import SAVE_TIMEOUT_S, save_job
    from rlinf_scheduler.channel.server import ChannelServer
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
    from rlinf_scheduler.queueing import ChannelStats, ChannelUser, QueueDepth, Waiting

__all__ = [
    "SAVE_TIMEOUT_S",
    "Batch",
    "Channel",
    "ChannelRef",
    "ChannelReport",
    "ChannelRequest",
    "ChannelServer",
    "ChannelSpec",
    "ChannelStats",
    "ChannelUser",
    "Checkpoint",
    "DeadLetter",
    "DurableChannel",
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
    "load_job",
    "open_channel",
    "save_job",
    "unheld_channels",
]

if not TYPE_CHECKING:  # which would believe that every name is there
    __getattr__ = declared(globals())
