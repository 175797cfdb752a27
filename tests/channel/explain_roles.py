"""What other processes do in the tests of explanations."""

from __future__ import annotations

from rlinf_scheduler.errors import ChannelClosed


def wait_for_a_batch(channel):
    """Wait for a batch that does not come; how many items there were at the end."""
    try:
        return len(channel.get_batch(512))
    except ChannelClosed:
        return 0
