"""The registry of policies, beside the plain ones: what a queue may be, what bounds a channel has, what is saved."""

from __future__ import annotations

from typing import Any, TypeAlias, TypedDict

from msgspec import Struct

from rlinf_scheduler.queueing.dead_letters import BuriedItem, DeadLetters, MoveDead
from rlinf_scheduler.queueing.item import Item
from rlinf_scheduler.queueing.leases import (
    Extend,
    LeaseGetter,
    Leases,
    LeaseState,
    LeaseTerms,
    Settle,
)
from rlinf_scheduler.queueing.members import Resize
from rlinf_scheduler.queueing.messages import Get
from rlinf_scheduler.queueing.operations import Getter, Putter
from rlinf_scheduler.queueing.policy import Policy
from rlinf_scheduler.queueing.sharding import DonePart, PartGetter, Shardings, ShardingState, WantedPart
from rlinf_scheduler.queueing.taps import Membership, Subscribe, Taps, Unsubscribe
from rlinf_scheduler.queueing.version_gate import VersionState
from rlinf_scheduler.queueing.versions import AskForSlot, HoldSlot, LetGoOfSlot, SetVersion, VersionedQueues

# What clients say of them, as operations and as requests; and a get, whose items leave as a policy has it.
AnyGet: TypeAlias = Get[LeaseTerms | WantedPart]
OPERATIONS: tuple[type, ...] = (AskForSlot, SetVersion)
REQUESTS: tuple[type, ...] = (
    Settle,
    Extend,
    MoveDead,
    DonePart,
    Resize,
    HoldSlot,
    LetGoOfSlot,
    Subscribe,
    Unsubscribe,
)
POLICIES: tuple[type[Policy], ...] = (Leases, DeadLetters, Shardings, VersionedQueues, Taps)


class Bounds(TypedDict, total=False):
    """Bounds of a channel that one of its policies keeps; see there."""

    max_attempts: int
    max_leased: int


# -- what is saved: the fields of a policy are written and read by it alone --------------------------

AnyGetter: TypeAlias = Getter | LeaseGetter | PartGetter


class QueueData(Struct, array_like=True):
    """One queue. A new field goes to the end and has a default.

    Attributes:
        num_entered: how many items ever entered it: the order of the next one.
        flushed: items of a smaller order do not wait for others.
        returned: what was taken and came back, in order; items: what never left.
        sent: getters that were sent something and have not confirmed it.
        leases: what consumers have on lease, and what comes back after a delay.
        waiting: getters that wait, in order; skipped: likewise, those that may have no more for now.
        putters: the puts that are not over: those with room in the order in which they got it, then the line.
        terms: of a subscription; membership: who reads it.
    """

    name: Any
    num_entered: int
    flushed: int = 0
    returned: list[Item] = []
    items: list[Item] = []
    sent: list[AnyGetter] = []
    leases: list[LeaseState] = []
    waiting: list[AnyGetter] = []
    skipped: list[AnyGetter] = []
    putters: list[Putter] = []
    versions: VersionState | None = None
    sharding: ShardingState | None = None
    terms: tuple[Any, int, int] | None = None
    membership: Membership | None = None


class ClientData(Struct, array_like=True):
    """A client: the tickets of its operations, and of those that are skipped, each in order."""

    name: str
    tickets: list[int]
    skipped: list[int]


class ChannelData(Struct, array_like=True):
    """All queues of a channel, and what it counts. A new field goes to the end and has a default.

    Attributes:
        queues: in order of appearance, like clients, of which there are none at rest.
        dead: dead letters, the oldest first.
        last_number: the last generation of a lease, or number of a dead letter or a slot; none comes again.
        num_accepted: how many items were put since the beginning; num_lost: how many of these were lost.
        ended: the names of those that were ended alone.
        crowded: the queues with a put that waits for the bytes of the channel, in order.
        versioned: the queues with versions, in order.
        why_over: of the last leases that ended without their consumers' doing: why.
        now: the clock of the state's shell.
        num_vacancies: how often the last member of a subscription has left.
        homes: of groups by queue and name, the sticky consumer that had an item last, the latest at the end.
    """

    queues: list[QueueData]
    dead: list[BuriedItem]
    last_number: int
    num_accepted: int
    accepted_bytes: int
    closed: bool = False
    all_ended: bool = False
    ended: list[Any] = []
    num_lost: int = 0
    lost_bytes: int = 0
    clients: list[ClientData] = []
    crowded: list[Any] = []
    versioned: list[Any] = []
    why_over: list[tuple[int, str]] = []
    now: float = 0.0
    num_vacancies: int = 0
    homes: list[tuple[Any, Any, str]] = []
