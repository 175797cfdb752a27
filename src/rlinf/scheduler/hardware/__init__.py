"""Accelerator vendors, robots and other hardware."""

from typing import TYPE_CHECKING

from rlinf_scheduler.lazy import mirror

if TYPE_CHECKING:
    from rlinf_scheduler.hardware import *  # noqa: F403

__getattr__ = mirror(globals(), "rlinf_scheduler.hardware")
