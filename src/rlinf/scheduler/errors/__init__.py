"""Errors; the tree of them is in `rlinf_scheduler.errors`."""

from typing import TYPE_CHECKING

from rlinf_scheduler.errors import *  # noqa: F403
from rlinf_scheduler.lazy import mirror

if TYPE_CHECKING:
    from rlinf_scheduler.errors import ChannelEmpty as ChannelEmpty
    from rlinf_scheduler.errors import ChannelFull as ChannelFull
else:
    __getattr__ = mirror(globals(), "rlinf_scheduler.errors")
