"""Objects between processes by name: send, recv, broadcast."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinf.scheduler.lazy import loader

if TYPE_CHECKING:  # each is loaded by those who use it only
    from rlinf.scheduler.mailbox.mailbox import Mailbox
    from rlinf.scheduler.mailbox.members import Groups
    from rlinf.scheduler.mailbox.opening import open_mailbox, open_mailbox_when_needed

_MODULES = {
    "Groups": "rlinf.scheduler.mailbox.members",
    "Mailbox": "rlinf.scheduler.mailbox.mailbox",
    "open_mailbox": "rlinf.scheduler.mailbox.opening",
    "open_mailbox_when_needed": "rlinf.scheduler.mailbox.opening",
}

__all__ = ["Groups", "Mailbox", "open_mailbox", "open_mailbox_when_needed"]


__getattr__ = loader(globals(), _MODULES)
