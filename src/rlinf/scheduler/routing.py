"""Batches between groups of different sizes."""

from typing import TYPE_CHECKING

from rlinf_scheduler.lazy import mirror

if TYPE_CHECKING:
    from rlinf_scheduler.routing import *  # noqa: F403
else:
    __getattr__ = mirror(globals(), "rlinf_scheduler.routing")
