"""Workers, and groups of them."""

from typing import TYPE_CHECKING

from rlinf_scheduler.lazy import mirror

if TYPE_CHECKING:
    from rlinf_scheduler.worker import *  # noqa: F403

__getattr__ = mirror(globals(), "rlinf_scheduler.worker")
