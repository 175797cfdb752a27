"""Fixtures that comm, mailbox and weights share."""

from comm_fixtures import *  # noqa: F403
