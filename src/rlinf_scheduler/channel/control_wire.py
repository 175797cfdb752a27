"""What a process asks the server of a channel beside its operations, and what that answers.

Requests go to the control service, and wait for an answer each; they stand behind the operations that were sent before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, Union

import msgspec

from rlinf_scheduler.comm.endpoint import Endpoint
from rlinf_scheduler.queueing.members import GroupRanks
from rlinf_scheduler.queueing.messages import Close as Close
from rlinf_scheduler.queueing.messages import EndQueue as EndQueue
from rlinf_scheduler.queueing.messages import Flush as Flush
from rlinf_scheduler.queueing.messages import Retract as Retract
from rlinf_scheduler.queueing.policies import REQUESTS as OF_POLICIES


class Open(msgspec.Struct, tag=0, array_like=True):
    """A client begins -> None."""

    endpoint: Endpoint


class Delete(msgspec.Struct, tag=2, array_like=True):
    """Close, free the name, leave -> None."""


class Query(msgspec.Struct, tag=3, array_like=True):
    """Ask about a queue -> `QueueState`."""

    queue: Any


class Peek(msgspec.Struct, tag=51, array_like=True):
    """Ask for the first items of a queue, which stay where they are -> `Peeked` with their frames.

    Attributes:
        queue: its name.
        number: how many, at most.
        max_bytes: only as many of them as are no larger together; 0: however large they are.
        as_bytes: they cannot be read where they lie.
    """

    queue: Any
    number: int
    max_bytes: int = 0
    as_bytes: bool = False


class Peeked(msgspec.Struct, array_like=True):
    """Items that were looked at.

    Attributes:
        num_frames: how many frames each has.
        marks: of each what is another one once it was given out.
        reason: why there is none, as of a get that was refused.
        state: the queue in a phrase.
    """

    num_frames: list[int]
    marks: list[tuple[int, int, float]]
    reason: str = ""
    state: str = ""


class Stats(msgspec.Struct, tag=4, array_like=True):
    """Ask how many there are of everything -> `ChannelStats`, and in the frames rows of `QueueDepth`."""


class Explain(msgspec.Struct, tag=15, array_like=True):
    """Ask who waits for what -> `ChannelStats`, and in the frames rows of `QueueStats`."""


class Invite(msgspec.Struct, tag=5, array_like=True):
    """Ask for a shortcut for one thread -> `Invitation`."""


class Join(msgspec.Struct, tag=8, array_like=True):
    """Be one of the channel's producers -> `Done`.

    Attributes:
        members: where these are the ranks of a group, those that it has; None of others.
    """

    number: int
    name: str
    members: GroupRanks | None = None


class Leave(msgspec.Struct, tag=9, array_like=True):
    """Be a producer no more: done, or failed -> None."""

    number: int
    failed: bool


class ListDead(msgspec.Struct, tag=12, array_like=True):
    """Ask for the dead letters of a queue, or (None) of all -> `DeadNotes`."""

    queue: Any


class ReadDead(msgspec.Struct, tag=13, array_like=True):
    """Ask for the item of a dead letter -> `Done`, with its frames."""

    number: int


class Look(msgspec.Struct, tag=40, array_like=True):
    """Remember what the channel holds now, under a token, for a `Save` -> `Saved`.

    What the client has by the generations in `done` is left out.
    """

    token: str
    done: list[int]


class Save(msgspec.Struct, tag=41, array_like=True):
    """Write what the channel holds now, and what it held at the look of a token (if that is not empty) -> `Saved`."""

    token: str
    done: list[int]
    path: str


class Forget(msgspec.Struct, tag=42, array_like=True):
    """Nobody saves under this token any more -> nothing."""

    token: str


class Saved(msgspec.Struct, array_like=True):
    """That was done, or why not: what was to be done with is over (`generation`), or something else.

    Of a file: how many items are in it, and how large it is.
    """

    generation: int = 0
    problem: str = ""
    num_items: int = 0
    size_bytes: int = 0


OfSaves = Look | Save | Forget
OfReports = Query | Peek | Stats | Explain
PLAIN = (Open, Close, Delete, Invite, EndQueue, Flush, Join, Leave, Retract, ListDead, ReadDead)
if TYPE_CHECKING:
    Control: TypeAlias = msgspec.Struct
else:
    Control = Union[(*PLAIN, *OF_POLICIES, OfSaves, OfReports)]


class Done(msgspec.Struct, array_like=True):
    """Why that could not be done; empty if it was."""

    problem: str


class DeadNote(msgspec.Struct, array_like=True):
    """A dead letter without its item."""

    number: int
    queue: Any
    size_bytes: int
    attempts: int
    reason: str
    consumer: str


class DeadNotes(msgspec.Struct, array_like=True):
    """The oldest first."""

    letters: list[DeadNote]


class Invitation(msgspec.Struct, array_like=True):
    """The path of the server's socket for shortcuts, empty where it takes none, and the first message on one."""

    path: str
    token: bytes


class QueueState(msgspec.Struct, array_like=True):
    """How many items a queue holds, whether a put to it would wait, and how many a subscription has given up."""

    num_items: int
    is_full: bool
    num_dropped: int = 0
