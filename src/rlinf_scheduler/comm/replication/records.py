"""What publishers, replicas and readers say to each other.

reader to publisher    a question of its service's, with a Want in it -> ReaderAnswer, with the object or a descriptor
reader to replica      Copy -> ReaderAnswer, of its own machine
replica to its source  Copy of a piece -> ReaderAnswer, with its bytes
replica to publisher   Copy, for what has changed since the object before -> ReaderAnswer
replica to publisher   Kept -> whether it is still needed
publisher to replica   Drop
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import msgspec

from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.comm.pull.records import PullOffer

NOTHING_HEARD = -2


class CarriedBy(NamedTuple):
    """How an object has come to a reader.

    Attributes:
        by: what has carried it: "shared memory", "a message", "TCP", or what pulls, such as "nixl 1.5.1".
        why: why it was not shared memory of its machine, or pulled from another one; "" if it was.
    """

    by: str
    why: str = ""


class Key(msgspec.Struct, frozen=True, array_like=True):
    """Which object of a publisher: a topic's, or the version of some weights."""

    name: str
    number: int


class Want(msgspec.Struct, array_like=True):
    """What a reader says with every question.

    Attributes:
        heard: the number that it was told to wait for, or with.
        unreadable: why it could not open what it was sent; "" if it could.
        avoid: a process that should have had the object and did not.
        avoid_number: the object's number.
        was_late: that process has not answered in time; it may have the object, and be slow.
        was_to_keep: what the reader was to copy from there was for its machine.
        alone: it cannot keep anything for its machine.
        pulls: with what it pulls, such as "nixl 1.5.1"; "" for nothing.
        refused: why it cannot make the object of the one before; "" if it was not to.
    """

    reader: Endpoint
    heard: int = NOTHING_HEARD
    unreadable: str = ""
    avoid: str = ""
    avoid_number: int = NOTHING_HEARD
    was_late: bool = False
    was_to_keep: bool = False
    alone: bool = False
    pulls: str = ""
    refused: str = ""


class Base(msgspec.Struct, frozen=True, array_like=True):
    """The object before another one, and the process that has it on a reader's machine."""

    key: Key
    at: Endpoint


class AnswerKind(IntEnum):
    """What an answer means."""

    WAIT = 0  # it is not there, or on its way to whom is asked: ask again, and be answered when it is
    HERE = 1  # it comes with this answer
    AT = 2  # the machine's replica has it
    GONE = 3  # whom is asked does not have it (any more)
    FROM = 4  # another machine has it, or gets it: the reader is its machine's replica from now on


class ReaderAnswer(msgspec.Struct, array_like=True):
    """What a reader is told.

    Attributes:
        kind: see `AnswerKind`.
        key: what was found; of WAIT, what is there.
        at: of AT and FROM: where it is.
        size_bytes: of AT: of the object.
        begin: of a piece: where it begins.
        pull: of a piece: from where it is to be pulled, which does not come with the answer; or why not.
        sizes: of FROM: of the object's frames; its first bytes may come with the answer, or all that has changed.
        base: of FROM: of what it can be made, with what has changed since.
    """

    kind: AnswerKind
    key: Key
    at: Endpoint | None = None
    size_bytes: int = 0
    begin: int = 0
    sizes: tuple[int, ...] = ()
    pull: PullOffer | str = ""
    base: Base | None = None


class Copy(msgspec.Struct, array_like=True):
    """A question for an object, or for a piece of it: from the byte `begin` to before the byte `end`."""

    publisher_id: str
    key: Key
    want: Want
    begin: int = 0
    end: int = 0


class Kept(msgspec.Struct, array_like=True):
    """A replica has written an object, or (`at` is None) could not."""

    key: Key
    at: Endpoint | None


class Drop(msgspec.Struct, array_like=True):
    """A process is not to keep or copy an object any more; with `avoid`, only not to copy it from that process."""

    key: Key
    avoid: str = ""
