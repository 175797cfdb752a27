"""What mailboxes say to each other.

sender to receiver    MailPut, with the bytes, a descriptor, or nothing -> PutOutcome, when the queue holds the item
                      MailWithdraw, a notice: then the PutOutcome says that it is not held
receiver to sender    Read -> ReaderAnswer, with the bytes: there is room for an item that came without them
"""

from __future__ import annotations

import msgspec

from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.replication import Key, Want

SERVICE = "mailbox"
PUT = "mailbox.put"
WITHDRAW = "mailbox.withdraw"
READ = "mailbox.read"


class TensorType(msgspec.Struct, frozen=True, array_like=True):
    """The type of a tensor, which `recv_tensor` compares before it takes an item."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"a {self.dtype} tensor of shape {self.shape}"


class ItemLocation(msgspec.Struct, frozen=True, array_like=True):
    """The place where an item's bytes can be read."""

    key: Key
    origin: Endpoint


class MailPut(msgspec.Struct, array_like=True):
    """An item for a queue of the receiver's: one for each sender and topic.

    Attributes:
        sender: the sender's name,
        receiver: and the receiver's.
        topic: "" of send; each set of members of broadcasts has one of its own.
        ticket: what tells the item from every other one of the sender's process.
        tensor: of an item that is a tensor.
        source: where it can be read, if its bytes did not come along, or cannot be opened.
    """

    sender: str
    receiver: str
    topic: str
    ticket: int
    size_bytes: int
    tensor: TensorType | None = None
    source: ItemLocation | None = None


class PutOutcome(msgspec.Struct, array_like=True):
    """The outcome of a put.

    Attributes:
        held: whether the queue holds the item; else it was withdrawn.
        held_bytes: what the queue holds.
    """

    held: bool
    held_bytes: int


class MailWithdraw(msgspec.Struct, array_like=True):
    """The sender gives a put up."""

    ticket: int


class Read(msgspec.Struct, array_like=True):
    """The receiver has room for an item."""

    key: Key
    want: Want
