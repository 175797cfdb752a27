"""What a channel is, and how it is reached, as data that travels between processes."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import msgspec

from rlinf_scheduler.channel import wire
from rlinf_scheduler.channel.arguments import (
    MAX_NAME_BYTES,
    check_name,
    checked,
    checked_count,
    checked_timeout,
)
from rlinf_scheduler.channel.deadlines import SUCCESSOR_S, Survives
from rlinf_scheduler.checks import FOREVER_S, absolute_path, is_encodable
from rlinf_scheduler.comm.directory import AWAITED, Entry
from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.shm.ledger import memory_bytes
from rlinf_scheduler.errors import ChannelArgumentError, ChannelExists, ChannelNotFound
from rlinf_scheduler.queueing.item import check_maxsize
from rlinf_scheduler.queueing.members import GroupRanks
from rlinf_scheduler.queueing.state import ChannelState
from rlinf_scheduler.rooms import check_room
from rlinf_scheduler.session import Session
from rlinf_scheduler.session.membership import GroupMembers

# Under which key of a directory's entry a channel says what it is.
KIND = "channel"
HOLDS_NODE, HOLDS_CHANNEL = HOLDS = ("node", "channel")
# What is said at the creation, and holds for the whole life of a channel, whichever process holds it.
_FOR_LIFE = (
    "name",
    "maxsize",
    "max_bytes",
    "producers",
    "producer_group",
    "successor_s",
    "max_attempts",
    "max_leased",
    "device_items",
    "priority_wait_s",
)

# Unless somebody says how much, a channel holds so much of the machine, or of the container: a quarter.
MEMORY_SHARE = 4


class ChannelSpec(msgspec.Struct, frozen=True, array_like=True):
    """The options of a channel, as asked for at its creation; they go to its process and to all that connect.

    Attributes:
        name: its name; its server's address is `name:0`.
        maxsize: how many items each of its queues holds; 0 is unbounded.
        max_bytes: how many bytes all its queues hold together; 0 is unbounded, None a share of its machine's memory.
        producers: how many producers it has, and ends after the last of them; 0: they are not counted.
        successor_s: how long the place of a producer that failed is kept for a successor.
        max_attempts: how often an item is given out on lease before it is a dead letter; 0: any number.
        max_leased: how many items one process may have on lease before its further leases wait; 0: any number.
        holds: "node": large items of other machines' producers stay on those machines; "channel": they come to its own.
        restore: the file of a checkpoint whose content it has in the beginning; "" for none.
        durable: the folder of its journal; empty for a channel that lives in memory alone.
        survives: what its journal is to survive: the end of its process, or of its machine.
        channel_id: tells this channel from others of the same name, before and after it.
        creator: the name of the process that created it, and the id of that process.
        stall_after_s: after how many seconds an operation that waits is told of; 0: never.
        device_items: tensors on a device stay there, for getters that have the same device.
        priority_wait_s: an item that has waited for so long is passed over no more by those of a higher priority; None:
            it always is.
        producer_group: the group whose ranks are its producers, however many there are; "" where they are counted.
    """

    name: str
    maxsize: int = 0
    max_bytes: int | None = None
    producers: int = 0
    successor_s: float = SUCCESSOR_S
    max_attempts: int = 0
    max_leased: int = 0
    holds: str = HOLDS_NODE
    restore: str = ""
    durable: str = ""
    survives: Survives = "machine"
    channel_id: str = msgspec.field(default_factory=lambda: secrets.token_hex(8))
    creator: tuple[str, str] = ("", "")
    stall_after_s: float = 0
    device_items: bool = False
    priority_wait_s: float | None = None
    producer_group: str = ""

    def made_by(self, name: str, process_id: str) -> ChannelSpec:
        """The same channel, created by that process."""
        return msgspec.structs.replace(self, creator=(name, process_id))

    def differences(self, other: ChannelSpec, *names: str) -> str:
        """Return where another one differs, in the options that hold for life and in these; "" if nowhere."""
        others = [name for name in (*_FOR_LIFE, *names) if getattr(self, name) != getattr(other, name)]
        return ", ".join(
            f"{name}={getattr(self, name)!r} and not {getattr(other, name)!r}" for name in others
        )

    @property
    def address(self) -> str:
        """Under which name the directory knows the channel's server."""
        return address_of(self.name)

    @property
    def credit_bytes(self) -> int:
        """How much of a client's may lie at the server before it was accepted, for each queue; 0 is unbounded."""
        if self.maxsize or self.max_bytes:
            return wire.CREDIT_BYTES
        return wire.LARGE_CREDIT_BYTES if self.max_bytes is None else 0

    @property
    def inline_bytes(self) -> int | None:
        """Items that are larger, and travel as bytes, are announced; None if none is."""
        if self.maxsize or self.max_bytes:
            return wire.INLINE_BYTES
        return wire.LARGE_INLINE_BYTES if self.max_bytes is None else None

    def to_info(self) -> dict[str, Any]:
        """Return what the directory keeps about the channel."""
        return {KIND: msgspec.to_builtins(self)}


@dataclass(frozen=True, slots=True)
class ChannelRef:
    """A channel that is there: what it is, and the process that holds it."""

    spec: ChannelSpec
    endpoint: Endpoint

    @classmethod
    def from_entry(cls, name: str, entry: Entry) -> ChannelRef:
        """Return the channel that the directory knows as `name`.

        Raises:
            ChannelNotFound: what has that name is no channel.
        """
        if KIND not in entry.info:
            raise ChannelNotFound(name, f"'{entry.name}' is there, but it is not a channel")
        return cls(msgspec.convert(entry.info[KIND], ChannelSpec), entry.endpoint)


def inherited_channel(session: Session, wanted: ChannelSpec) -> ChannelRef | None:
    """The channel that this process's predecessor, which had its name and died, created; None if there is none.

    Raises:
        ChannelExists: it was created with other options than are wanted now.
    """
    entries = session.directory.list(wanted.address)
    entry = next((each for each in entries if each.name == wanted.address and KIND in each.info), None)
    if entry is None:
        return None
    ref = ChannelRef.from_entry(wanted.name, entry)
    creator, process_id = ref.spec.creator
    # One that its creator holds itself is gone with that.
    if creator != session.name or process_id in (
        session.messenger.endpoint.process_id,
        ref.endpoint.process_id,
    ):
        return None
    if ref.spec.durable and wanted.max_bytes is None:
        # Its journal has fixed the share of the memory that this means.
        wanted = msgspec.structs.replace(wanted, max_bytes=ref.spec.max_bytes)
    differences = ref.spec.differences(wanted, "holds", "durable", "survives")
    if differences:
        problem = f"the process that was '{creator}' before this one created it with {differences}"
        raise ChannelExists(wanted.name, f"{problem}: create it with the same options, or `connect` to it")
    return ref


def channels_of(session: Session) -> dict[str, ChannelSpec]:
    """Return all channels of the job, by name; durable ones also while no process holds them."""
    return _specs(session.directory.list(awaited=True))


def unheld_channels(session: Session) -> dict[str, ChannelSpec]:
    """Of these, the durable ones whose process is gone, until another one holds them."""
    return _specs(entry for entry in session.directory.list(awaited=True) if AWAITED in entry.info)


def _specs(entries: Iterable[Entry]) -> dict[str, ChannelSpec]:
    specs = (ChannelRef.from_entry(entry.name, entry).spec for entry in entries if KIND in entry.info)
    return {spec.name: spec for spec in specs}


def address_of(name: str) -> str:
    """Return the address of the server of the channel `name`."""
    return f"{name}:0"


def max_bytes_of(spec: ChannelSpec) -> int:
    """Return how many bytes all queues of a channel may hold in this process; 0 is unbounded."""
    return memory_bytes() // MEMORY_SHARE if spec.max_bytes is None else spec.max_bytes


def state_of(spec: ChannelSpec, max_bytes: int) -> ChannelState:
    """Return the queues of a channel, empty, which hold so many bytes together."""
    return ChannelState(
        spec.maxsize,
        total_bytes=max_bytes,
        max_attempts=spec.max_attempts,
        max_leased=spec.max_leased,
        priority_wait_s=spec.priority_wait_s,
    )


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
    check_room("durable")
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


def checked_producers(channel: str, producers: Any) -> tuple[int, str]:
    """Return how many producers are counted, 0 for none; and whose ranks they are, "" for no group's."""
    if producers is None:
        return 0, ""
    members = getattr(producers, "members", None)
    group = members.group if isinstance(members, GroupMembers) else producers
    if not isinstance(group, str):
        return checked_count(channel, "producers", producers), ""
    if not group or ":" in group or not is_encodable(group):
        problem = f"producers is a number, a group, or a group's name, not {producers!r}"
        raise ChannelArgumentError(channel, problem)
    return 0, group


def group_ranks(members: GroupMembers) -> GroupRanks:
    """Return the ranks of a group as a channel's server is told of them."""
    return GroupRanks(members.group, members.ranks, members.version)
