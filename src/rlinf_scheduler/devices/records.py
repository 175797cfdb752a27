"""What is said of buckets.

    staged     u8 254, then msgpack of an `OnDevice`; the object's other frames follow, the head first
    bucket     msgpack of a `BucketRecord`: what lies in the block that stands for a bucket

Both lie in blocks of their owner's arena. So its holder table says who reads an object on the device (whoever holds the
block of what was staged) and who has a bucket open (whoever holds the block of that), and the kernel says who lives.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.framing import Buffer

STAGED = 254
_PREFIX = bytes([STAGED])
RETIRE = "buckets.retire"
OPENED = "buckets.opened"
READ = "buckets.read"


class OnDevice(msgspec.Struct, array_like=True, frozen=True):
    """Where the parts of an object lie that are on a device.

    Attributes:
        device: its UUID.
        bucket: the descriptor of the bucket's block.
        places: for each part of the object where it begins in the bucket, and how long it is, in bytes; None for one
            that lies with the other frames.
        number: which of all objects that its owner has staged.
        owner: the process whose bucket it is,
        owner_name: and its name.
    """

    device: str
    bucket: bytes
    places: tuple[tuple[int, int] | None, ...]
    number: int
    owner: Endpoint
    owner_name: str

    def to_frame(self) -> bytes:
        """It as a frame."""
        return _PREFIX + msgspec.msgpack.encode(self)

    @classmethod
    def from_frame(cls, frame: Buffer) -> OnDevice:
        """What `to_frame` wrote.

        Raises:
            ValueError: it is none.
        """
        return _decode(memoryview(frame)[1:])


_decode = msgspec.msgpack.Decoder(OnDevice).decode


def is_staged(frames: Sequence[Buffer]) -> bool:
    """Whether parts of the object with these frames lie on a device."""
    if not len(frames) or not len(frames[0]):
        return False
    first: int = frames[0][0]
    return first == STAGED


class BucketRecord(msgspec.Struct, array_like=True, frozen=True):
    """How a bucket is opened.

    Attributes:
        size_bytes: of the bucket.
        handle: what the driver opens it by.
    """

    device: str
    size_bytes: int
    handle: bytes


class BucketOpened(msgspec.Struct, array_like=True, frozen=True):
    """A notice to a bucket's owner: the sender has it open, and is to be told when it is given up.

    Attributes:
        index: the number of its block,
        generation: and which of those that lie there one after the other.
        reader: the sender.
    """

    index: int
    generation: int
    reader: Endpoint


class ReadStaged(msgspec.Struct, array_like=True, frozen=True):
    """A question to a bucket's owner: the parts of an object on its device, in host memory -> `ReadOut` and the parts.

    Attributes:
        where: the object; somebody vouches who holds it.
        reader: the sender.
        has_device: it could read it there another time.
        as_bytes: it cannot read shared memory.
    """

    where: OnDevice
    reader: Endpoint
    has_device: bool
    as_bytes: bool


class ReadOut(msgspec.Struct, array_like=True, frozen=True):
    """The parts are there, after a frame that is none; or why they cannot be had."""

    problem: str = ""


class Retire(msgspec.Struct, array_like=True, frozen=True):
    """The sender gives up a bucket, and waits until the receiver has closed it.

    Attributes:
        index: the number of its block,
        generation: and which of those that lie there one after the other.
    """

    index: int
    generation: int
