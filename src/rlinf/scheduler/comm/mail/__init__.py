"""Objects between processes by name: send, recv, broadcast."""

from rlinf.scheduler.comm.mail.mailbox import Mailbox
from rlinf.scheduler.comm.mail.members import Groups

__all__ = ["Groups", "Mailbox"]
