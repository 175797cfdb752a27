"""Fixtures of sessions without Ray."""

from comm_fixtures import new_messenger, secret, session
from machine_fixtures import machines, processes, start_on

__all__ = ["machines", "new_messenger", "processes", "secret", "session", "start_on"]
