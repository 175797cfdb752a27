"""The registry of policies, beside the plain ones: of what a queue may be, and of what a channel's bounds are."""

from __future__ import annotations

from typing import TypeAlias, TypedDict

from rlinf_scheduler.queueing.admission import Admissions, Admit, HoldSlot, LetGoOfSlot, SetVersion
from rlinf_scheduler.queueing.leases import Extend, Leases, LeaseTerms, MoveDead, Settle
from rlinf_scheduler.queueing.messages import Get
from rlinf_scheduler.queueing.policy import Policy
from rlinf_scheduler.queueing.sharding import DonePart, Shardings, WantedPart
from rlinf_scheduler.queueing.taps import Subscribe, Taps, Unsubscribe

# What clients say of them, as operations and as requests; and a get, whose items leave as a policy has it.
AnyGet: TypeAlias = Get[LeaseTerms | WantedPart]
OPERATIONS: tuple[type, ...] = (Admit, SetVersion)
REQUESTS: tuple[type, ...] = (
    Settle,
    Extend,
    MoveDead,
    DonePart,
    HoldSlot,
    LetGoOfSlot,
    Subscribe,
    Unsubscribe,
)
POLICIES: tuple[type[Policy], ...] = (Leases, Shardings, Admissions, Taps)


class Bounds(TypedDict, total=False):
    """Bounds of a channel that one of its policies keeps; see there."""

    max_attempts: int
    max_leased: int
