"""Fixtures that comm, mailbox and weights share."""

from comm_fixtures import *  # noqa: F403
from machine_fixtures import machines, processes, start_on  # noqa: F401
