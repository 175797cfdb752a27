"""Fixtures of sessions without Ray."""

from comm_fixtures import new_messenger, secret, session

__all__ = ["new_messenger", "secret", "session"]
