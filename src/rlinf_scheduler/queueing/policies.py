"""The registry of policies, beside the plain ones: of what a queue may be, and of what a channel's bounds are."""

from __future__ import annotations

from typing import TypedDict

from rlinf_scheduler.queueing.admission import Admissions, Admit, HoldSlot, LetGoOfSlot, SetVersion
from rlinf_scheduler.queueing.leases import Extend, Leases, MoveDead, Settle
from rlinf_scheduler.queueing.policy import Policy
from rlinf_scheduler.queueing.sharding import DonePart, Shardings
from rlinf_scheduler.queueing.taps import Subscribe, Taps, Unsubscribe

# What clients say of them, as operations (beside `Get.grant`) and as requests.
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
