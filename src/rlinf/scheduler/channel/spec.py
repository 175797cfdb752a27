"""What a channel is, and how it is reached, as data that travels between processes."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

import msgspec

from rlinf.scheduler.channel import wire
from rlinf.scheduler.comm.directory import Entry
from rlinf.scheduler.comm.endpoint import Endpoint
from rlinf.scheduler.errors import ChannelNotFound
from rlinf.scheduler.queueing import QueueDepth
from rlinf.scheduler.session import Session

# Under which key of a directory's entry a channel says what it is.
KIND = "channel"
SUCCESSOR_S = 30.0


class ChannelSpec(msgspec.Struct, frozen=True, array_like=True):
    """A channel to be: what was asked for at its creation, as it goes to its process and to whoever connects.

    Attributes:
        name: its name; its server's address is `name:0`.
        maxsize: how many items each of its queues holds; 0 is unbounded.
        max_bytes: how many bytes all its queues hold together; 0 is unbounded, None a share of its machine's memory.
        producers: how many producers it has, and ends after the last of them; 0: they are not counted.
        successor_s: how long the place of a producer that failed is kept for a successor.
        channel_id: tells this channel from others of the same name, before and after it.
    """

    name: str
    maxsize: int = 0
    max_bytes: int | None = None
    producers: int = 0
    successor_s: float = SUCCESSOR_S
    channel_id: str = msgspec.field(default_factory=lambda: secrets.token_hex(8))

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
        """What the directory keeps about the channel."""
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


@dataclass(frozen=True, slots=True)
class ChannelStats:
    """What went through a channel and what is in it.

    Attributes:
        num_puts: items that its queues accepted.
        num_gets: of those, items that getters have or that are on their way to them.
        num_items: items that its queues hold now.
        bytes_in: size of all accepted items.
        bytes_out: of those, the size of items that left.
        size_bytes: size of the items that its queues hold now.
        num_getters: gets and batches that wait.
        num_putters: puts that wait.
        closed: whether puts are refused.
        queues: each queue that holds something or is waited for.
    """

    num_puts: int
    num_gets: int
    num_items: int
    bytes_in: int
    bytes_out: int
    size_bytes: int
    num_getters: int
    num_putters: int
    closed: bool
    queues: tuple[QueueDepth, ...]

    @classmethod
    def from_wire(cls, state: wire.ChannelState) -> ChannelStats:
        """Return the figures that the channel's server sent."""
        num_puts, bytes_in, closed = state.num_accepted, state.accepted_bytes, state.closed
        queues = tuple(
            QueueDepth(wire.as_name(depth.name), *msgspec.structs.astuple(depth)[1:])
            for depth in state.depths
        )
        num_items = sum(queue.num_items for queue in queues)
        size_bytes = sum(queue.size_bytes for queue in queues)
        return cls(
            num_puts=num_puts,
            # What was accepted and is not held has left; so an item that comes back is not counted twice.
            num_gets=num_puts - num_items,
            num_items=num_items,
            bytes_in=bytes_in,
            bytes_out=bytes_in - size_bytes,
            size_bytes=size_bytes,
            num_getters=sum(queue.num_getters for queue in queues),
            num_putters=sum(queue.num_putters for queue in queues),
            closed=closed,
            queues=queues,
        )


def channels_of(session: Session) -> dict[str, ChannelSpec]:
    """The channels of the job, whoever created them, by name."""
    entries = (entry for entry in session.directory.list() if KIND in entry.info)
    specs = (ChannelRef.from_entry(entry.name, entry).spec for entry in entries)
    return {spec.name: spec for spec in specs}


def address_of(name: str) -> str:
    """Return the address of the server of the channel `name`."""
    return f"{name}:0"
