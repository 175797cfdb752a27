"""Fixtures that comm, mailbox and weights share."""

from comm_fixtures import *  # noqa: F403
from io_steps import io_steps  # noqa: F401
from machine_fixtures import machines, processes, star, start_on  # noqa: F401
