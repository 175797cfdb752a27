"""Objects between processes by name: send, recv, broadcast."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinf_scheduler.lazy import declared

if TYPE_CHECKING:  # each is loaded by those who use it only
    from rlinf_scheduler.mailbox.mailbox import Mailbox
    from rlinf_scheduler.mailbox.members import Groups
    from rlinf_scheduler.mailbox.opening import open_mailbox, open_mailbox_when_needed

__all__ = ["Groups", "Mailbox", "open_mailbox", "open_mailbox_when_needed"]

if not TYPE_CHECKING:  # which would believe that every name is there
    __getattr__ = declared(globals())
