"""What a channel is, and how it is reached, as data that travels between processes."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from rlinf_scheduler.channel import wire
from rlinf_scheduler.channel.deadlines import SUCCESSOR_S, Survives
from rlinf_scheduler.comm.directory import AWAITED, Entry
from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.shm.ledger import memory_bytes
from rlinf_scheduler.errors import ChannelExists, ChannelNotFound
from rlinf_scheduler.queueing import ChannelState
from rlinf_scheduler.session import Session

# Under which key of a directory's entry a channel says what it is.
KIND = "channel"
HOLDS_NODE, HOLDS_CHANNEL = HOLDS = ("node", "channel")
# What is said at the creation, and holds for the whole life of a channel, whichever process holds it.
_FOR_LIFE = (
    "name",
    "maxsize",
    "max_bytes",
    "producers",
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
