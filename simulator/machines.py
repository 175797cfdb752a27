"""The state machines under test; a test puts broken ones in their places to see that they are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rlinf_scheduler.channel.node_holder import HeldItemTable
from rlinf_scheduler.comm.shm.blocks import BlockStore
from rlinf_scheduler.comm.transport.peer_session import PeerSession
from rlinf_scheduler.devices.open_buckets import OpenBuckets
from rlinf_scheduler.devices.pins import Pins
from rlinf_scheduler.devices.pool import BucketPool
from rlinf_scheduler.queueing.client import ClientState
from rlinf_scheduler.queueing.producers import GroupProducers, Producers
from rlinf_scheduler.queueing.state import ChannelState


@dataclass(frozen=True, slots=True)
class Machines:
    """What makes each machine.

    Attributes:
        server: a channel's server, from its `maxsize`, and the bytes that a queue and the channel may hold.
        producers: who has something to put, from how many they are.
        group_producers: the same where they are the ranks of a group, from its name.
        client: a process's side of a channel, from its credit in bytes.
        holder: what a node's holder has.
        receiver: the queues of a mailbox.
        bucket_pool: the buckets of a device, from how much they take at most.
        open_buckets: those of others that a process has open.
        block_store: the blocks of an arena, from its layout, its table of holders, and what it asks of its shell.
        pins: what a process has pinned, from how much that is at most.
        session: half of a session, from the own name, the other's, an id, and the time in seconds.
    """

    server: Callable[[int, int, int], ChannelState] = ChannelState
    producers: Callable[[int], Producers] = Producers
    group_producers: Callable[[str], GroupProducers] = GroupProducers
    client: Callable[[int], ClientState] = ClientState
    holder: Callable[[], HeldItemTable[int]] = HeldItemTable
    receiver: Callable[..., ChannelState] = ChannelState
    bucket_pool: Callable[[int], BucketPool] = BucketPool
    open_buckets: Callable[[], OpenBuckets] = OpenBuckets
    block_store: Callable[..., BlockStore] = BlockStore
    pins: Callable[[int], Pins] = Pins
    session: Callable[[str, str, int, float], PeerSession[Any]] = PeerSession
