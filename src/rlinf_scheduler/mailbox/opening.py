"""How a process comes to its mailbox: when it first sends or receives, or somebody first sends to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinf_scheduler.session import Session

if TYPE_CHECKING:  # loaded by those who use it only
    from rlinf_scheduler.mailbox.mailbox import Mailbox

# Its services are called so, and more after a point.
FAMILY = "mailbox"


def open_mailbox(session: Session) -> Mailbox:
    """The mailbox of a session; `session.service(open_mailbox)` is always the same."""
    # The I/O thread loads it: nobody interrupts that.
    from rlinf_scheduler.mailbox.mailbox import Mailbox  # noqa: PLC0415

    return Mailbox(session.messenger, session.directory, session.name)


def open_mailbox_when_needed(session: Session) -> None:
    """Have the mailbox there as soon as anybody sends to this process, or asks what it has sent."""
    session.messenger.serve_when_asked(FAMILY, lambda: session.service(open_mailbox))
