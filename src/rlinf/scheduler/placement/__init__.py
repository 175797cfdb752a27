"""Which component of a job runs where."""

from typing import TYPE_CHECKING

from rlinf_scheduler.lazy import mirror

if TYPE_CHECKING:
    from rlinf_scheduler.placement import *  # noqa: F403

__getattr__ = mirror(globals(), "rlinf_scheduler.placement")
