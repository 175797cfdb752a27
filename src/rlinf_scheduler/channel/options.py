"""The options of a new channel or subscription; a mistake is a ChannelArgumentError before anything is sent."""

from __future__ import annotations

import os
from hashlib import blake2b
from typing import Any

from rlinf_scheduler.channel.arguments import (
    MAX_NAME_BYTES,
    check_name,
    checked,
    checked_count,
    checked_timeout,
)
from rlinf_scheduler.channel.spec import HOLDS, HOLDS_CHANNEL, HOLDS_NODE
from rlinf_scheduler.checks import FOREVER_S, absolute_path, is_encodable
from rlinf_scheduler.errors import ChannelArgumentError
from rlinf_scheduler.queueing import check_maxsize
from rlinf_scheduler.rooms import check_room


def checked_name(name: Any) -> str:
    """Return a channel's name."""
    if not isinstance(name, str) or not name:
        raise ChannelArgumentError(str(name), f"a channel's name is a string that is not empty, not {name!r}")
    if len(name) > MAX_NAME_BYTES:
        raise ChannelArgumentError(
            f"{name[:40]}...", f"a name of {len(name)} characters; it may have {MAX_NAME_BYTES}"
        )
    if ":" in name or not is_encodable(name):
        problem = f"a channel's name is text without ':', which separates it from a rank, not {name!r}"
        raise ChannelArgumentError(name, problem)
    return name


def checked_maxsize(channel: str, maxsize: Any) -> int:
    """Return a bound in items per queue."""
    return int(checked(channel, check_maxsize, maxsize))


def checked_max_bytes(channel: str, max_bytes: Any) -> int | None:
    """Return a bound in bytes; 0 for none, None for the default."""
    if max_bytes is None or (type(max_bytes) is int and max_bytes == 0):
        return max_bytes
    if isinstance(max_bytes, str):
        problem = f"max_bytes is a number of bytes, not the text {max_bytes!r}; 8 GiB are max_bytes=8 << 30"
        raise ChannelArgumentError(channel, problem)
    return checked_count(channel, "max_bytes", max_bytes)


def checked_path(channel: str, what: str, path: Any) -> str:
    """Return a path as it travels."""
    try:
        return absolute_path(path)
    except ValueError as error:
        raise ChannelArgumentError(channel, f"{what}: {error}") from error


def check_host_items(channel: str, device_items: bool, what: str) -> None:
    """Make sure that a channel's process has all that its items are."""
    if device_items:
        problem = f"its items may lie on their producers' devices (device_items=True), and {what}"
        raise ChannelArgumentError(channel, problem)


def checked_subscription(channel: str, name: Any) -> str:
    """Return a subscription's name."""
    if isinstance(name, str) and name and is_encodable(name):
        check_name(channel, name, "subscription")
        return name
    raise ChannelArgumentError(channel, f"a subscription's name is text that is not empty, not {name!r}")


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
    if device_items:
        check_room("devices")
    return device_items


def checked_producers(channel: str, producers: Any) -> int:
    """Return how many producers are counted; 0 for none."""
    if producers is None:
        return 0
    return checked_count(channel, "producers", producers)
