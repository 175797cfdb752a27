"""Objects between processes by name: send, recv, broadcast."""

from rlinf.scheduler.mailbox.mailbox import Mailbox, open_mailbox
from rlinf.scheduler.mailbox.members import Groups

__all__ = ["Groups", "Mailbox", "open_mailbox"]
