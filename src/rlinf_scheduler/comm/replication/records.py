"""What publishers, replicas and readers say to each other.

reader to publisher    a question of its service's, with a Want in it -> ReaderAnswer, with the bytes or a descriptor
reader to replica      Copy -> ReaderAnswer; of its own machine, or of another if the reader is to be a replica, too
replica to publisher   Kept -> whether it is still needed
publisher to replica   Drop
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from rlinf_scheduler.comm.endpoint import Endpoint

NOTHING_HEARD = -2


class Key(msgspec.Struct, frozen=True, array_like=True):
    """Which object of a publisher: a topic's, or the version of some weights."""

    name: str
    number: int


class Want(msgspec.Struct, array_like=True):
    """What a reader says with every question.

    Attributes:
        reader: where it is.
        heard: the number that it was told to wait for, or with.
        unreadable: why it could not open what it was sent; "" if it could.
        avoid: a process that should have had the object and did not.
        avoid_number: the object's number.
        was_late: that process has not answered in time; it may have the object, and be slow.
        was_to_keep: what the reader was to copy from there was for its machine.
    """

    reader: Endpoint
    heard: int = NOTHING_HEARD
    unreadable: str = ""
    avoid: str = ""
    avoid_number: int = NOTHING_HEARD
    was_late: bool = False
    was_to_keep: bool = False


class AnswerKind(IntEnum):
    """What an answer means."""

    WAIT = 0  # it is not there, or on its way to the reader's machine: ask again, and be answered when it is
    HERE = 1  # it comes with this answer
    KEEP = 2  # so it does, and the reader is its machine's replica from now on
    AT = 3  # the machine's replica has it
    GONE = 4  # the process that was asked does not have it (any more)
    FROM = 5  # another machine's replica has it, and the reader is its machine's replica from now on


class ReaderAnswer(msgspec.Struct, array_like=True):
    """What a reader is told.

    Attributes:
        kind: see `AnswerKind`.
        key: what was found; of WAIT, what is there.
        at: of AT and FROM: where the replica is.
        size_bytes: of AT and FROM: of the object.
    """

    kind: AnswerKind
    key: Key
    at: Endpoint | None = None
    size_bytes: int = 0


class Copy(msgspec.Struct, array_like=True):
    """A reader asks a replica."""

    publisher_id: str
    key: Key
    want: Want


class Kept(msgspec.Struct, array_like=True):
    """A replica has written an object, or (`at` is None) could not."""

    key: Key
    at: Endpoint | None


class Drop(msgspec.Struct, array_like=True):
    """Nobody needs an object any more."""

    key: Key
