"""This process's one membership in the job: who it is, how it reaches the others, what is undone when it leaves."""

from __future__ import annotations

from rlinf_scheduler.session.bus import EventBus
from rlinf_scheduler.session.session import Session, SideBySide, current_or_none, current_session, set_current

__all__ = ["EventBus", "Session", "SideBySide", "current_or_none", "current_session", "set_current"]
