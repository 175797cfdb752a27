"""Options that several functions take or pass on: their types, and what of those of a new channel makes sense."""

from __future__ import annotations

import os
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypedDict

from rlinf_scheduler.channel.arguments import FOREVER_S, checked_count, checked_path, checked_timeout
from rlinf_scheduler.channel.deadlines import Survives
from rlinf_scheduler.channel.spec import HOLDS, HOLDS_CHANNEL, HOLDS_NODE
from rlinf_scheduler.errors import ChannelArgumentError
from rlinf_scheduler.queueing import GroupName, QueueName

if TYPE_CHECKING:  # these have options themselves
    from rlinf_scheduler.channel.admission import Slot
    from rlinf_scheduler.channel.checkpoint import Restorable


class ChannelOptions(TypedDict, total=False):
    """What `Channel.create` takes by name, for functions that pass it on; each may be left out."""

    max_bytes: int | None
    producers: int | None
    successor_s: float
    max_attempts: int | None
    max_leased: int | None
    restore: Restorable | None
    own_process: bool | None
    holds: str | None
    durable: str | os.PathLike[str] | None
    survives: Survives
    stall_after_s: float | None
    device_items: bool
    priority_wait_s: float | None
    node_rank: int | None
    distributed: bool
    local: bool
    exist_ok: bool


class ItemOptions(TypedDict, total=False):
    """What `Channel.put` and `put_nowait` say of an item."""

    priority: int
    group: GroupName | None
    version: int | None
    slot: Slot | None
    sources: Any


class BatchLimitOptions(TypedDict, total=False):
    """What a batch has to be besides its weight."""

    max_items: int | None
    max_bytes: int | None
    min_items: int
    max_wait_s: float | None


class LeaseOptions(BatchLimitOptions, total=False):
    """What `Channel.lease` takes besides the queue."""

    batch_weight: float | None
    group_size: int | None
    ttl_s: float
    work_deadline_s: float | None
    timeout_s: float | None
    key: QueueName | None
    target_weight: float | None


def checked_successor(channel: str, successor_s: Any) -> float:
    """Return how long a producer's place is kept, in seconds."""
    limit_s = checked_timeout(channel, successor_s, "successor_s")
    return FOREVER_S if limit_s is None else limit_s


def checked_stall(channel: str, stall_after_s: Any) -> float:
    """Return after how many seconds a wait is told of; 0 for never."""
    return checked_timeout(channel, stall_after_s, "stall_after_s") or 0.0


def checked_holds(channel: str, holds: Any, *, durable: bool) -> str:
    """Return where large items of other machines' producers are."""
    if holds is None:
        return HOLDS_CHANNEL if durable else HOLDS_NODE
    if durable and holds == HOLDS_NODE:
        problem = (
            'what lies on other nodes does not survive them: a durable channel is one of holds="channel"'
        )
        raise ChannelArgumentError(channel, problem)
    if holds not in HOLDS:
        raise ChannelArgumentError(channel, f"holds is 'node' or 'channel', not {holds!r}")
    where: str = holds
    return where


def checked_place(channel: str, group: Any, rank: Any, node_rank: Any) -> tuple[Any, Any, int | None]:
    """Return beside which worker, or on which node, a channel is to be held.

    True or False instead of a group is `distributed`, and what follows it the node, as programs for RLinf have it.
    """
    if isinstance(group, bool):
        group, rank, node_rank = None, None, rank if node_rank is None else node_rank
    if node_rank is None:
        return group, rank, None
    if group is not None or rank is not None:
        problem = f"it is held on node_rank={node_rank!r} or beside a worker (group_affinity), not both"
        raise ChannelArgumentError(channel, problem)
    if isinstance(node_rank, int) and not isinstance(node_rank, bool) and node_rank >= 0:
        return None, None, node_rank
    raise ChannelArgumentError(channel, f"node_rank is a node's number from 0, not {node_rank!r}")


def checked_durable(channel: str, durable: Any, survives: Any, own_process: Any) -> dict[str, Any]:
    """Return what a channel's spec says of its journal."""
    if survives not in ("machine", "process"):
        raise ChannelArgumentError(channel, f"survives is 'machine' or 'process', not {survives!r}")
    if durable is None:
        if survives != "machine":
            problem = f"survives={survives!r} without durable=: a channel without a journal survives nothing"
            raise ChannelArgumentError(channel, problem)
        return {}
    if not isinstance(durable, (str, os.PathLike)) or not os.fspath(durable):
        raise ChannelArgumentError(channel, f"durable is the path of a folder, not {durable!r}")
    if own_process is False:
        raise ChannelArgumentError(channel, "a durable channel has a process of its own")
    folder = checked_path(channel, "durable", durable)
    # The same channel in every process that holds it: whoever uses it stays connected.
    number = blake2b(f"{channel}\n{folder}".encode(), digest_size=8).hexdigest()
    return {"durable": folder, "survives": survives, "channel_id": number}


def checked_device_items(channel: str, device_items: Any, *, durable: bool) -> bool:
    """Return whether items stay on devices."""
    if not isinstance(device_items, bool):
        raise ChannelArgumentError(channel, f"device_items is True or False, not {device_items!r}")
    if device_items and durable:
        raise ChannelArgumentError(
            channel,
            "what lies on a device goes with its producer: a durable channel has no device_items",
        )
    return device_items


def checked_producers(channel: str, producers: Any) -> int:
    """Return how many producers are counted; 0 for none."""
    if producers is None:
        return 0
    return checked_count(channel, "producers", producers)
