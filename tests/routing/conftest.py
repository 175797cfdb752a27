"""Fixtures that comm, mailbox, weights and routing share."""

from comm_fixtures import *  # noqa: F403
