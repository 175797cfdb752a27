"""Fixtures of messengers and interruptions."""

from alarms import alarms
from comm_fixtures import new_messenger, secret

__all__ = ["alarms", "new_messenger", "secret"]
