"""What the recording of a rank consists of: the first frame of each record; what follows it is bytes.

Attributes that somebody adds go to the end and have a default, so that what was recorded before can be read.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class Began(msgspec.Struct, tag="began", frozen=True):
    """Who was recorded. Its frames: the `Placement` and the hardware, pickled; the topology, packed.

    Attributes:
        rank: its rank there.
        num_restarts: how many processes had its place before.
        seed: its seed.
        seeds_generators: its process's generators were seeded with it.
        environment: the variables that the launch has set.
        sys_path: where its modules were looked for.
        at: when it began, in seconds since 1970.
    """

    group: str
    rank: int
    world_size: int
    num_restarts: int
    seed: int
    seeds_generators: bool
    environment: dict[str, str]
    sys_path: list[str]
    at: float


class Factory(msgspec.Struct, tag="factory", frozen=True):
    """What its worker is made from: its frames are the class and then the arguments, each encoded.

    Attributes:
        worker_class: the class, `module:name`.
        num_class_frames: how many frames the class has.
    """

    worker_class: str
    num_class_frames: int


class CallBegan(msgspec.Struct, tag="call", frozen=True):
    """A call began; its frames are its arguments, encoded.

    Attributes:
        lane: what its operations are noted under.
        method: which method.
        kind: what was done with it, as in the request.
        at: when, in seconds since 1970.
    """

    lane: str
    method: str
    kind: str
    at: float


class CallEnded(msgspec.Struct, tag="ended", frozen=True):
    """A call ended; `failed` is what it raised, in words, or ""."""

    lane: str
    failed: str = ""


class Noted(msgspec.Struct, tag="noted", frozen=True):
    """An operation ended. Its frames: what is said about what it brought, pickled, and that; or, failed, its error.

    Attributes:
        lane: of which call, or thread.
        operation: such as "get".
        subject: of what, such as the channel and its queue.
        place: its number among those of its lane, operation and subject, as they began.
        failed: it raised.
        digest: the CRC-32 and the size of what it gave away; None for what gives nothing.
    """

    lane: str
    operation: str
    subject: str
    place: int
    failed: bool = False
    digest: tuple[int, int] | None = None


class Stopped(msgspec.Struct, tag="stopped", frozen=True):
    """Nothing more was recorded, and why."""

    reason: str


RankEntry: TypeAlias = Began | Factory | CallBegan | CallEnded | Noted | Stopped
encode_entry = msgspec.msgpack.Encoder().encode
decode_entry = msgspec.msgpack.Decoder(RankEntry).decode
