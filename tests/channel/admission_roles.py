"""What other processes do in the tests of admission."""

from __future__ import annotations

import os
import signal

from rlinf_scheduler.errors import ChannelClosed

DEADLINE_S = 60.0


def make_until_it_ends(channel, max_lag, sizes):
    """Make items, each with leave, until the queue ends; how many."""
    made = 0
    try:
        while True:
            with channel.admit(max_lag=max_lag, timeout_s=DEADLINE_S) as slot:
                payload = (slot.version, bytes(sizes[made % len(sizes)]))
                channel.put(payload, slot=slot, timeout_s=DEADLINE_S)
                made += 1
    except ChannelClosed:
        return made


def put_with(channel, slot, item):
    channel.put(item, slot=slot, timeout_s=DEADLINE_S)


def have_a_slot(channel, ready):
    """Have a slot until it is told to go on."""
    slot = channel.admit(max_lag=0, timeout_s=DEADLINE_S)
    ready.put(os.getpid())
    ready.get("go on", timeout_s=DEADLINE_S)
    return slot.version


def take_and_keep(channel, ready):
    """Take an item on lease, and hold it until it is told to go on."""
    with channel.lease(timeout_s=DEADLINE_S) as lease:
        ready.put(lease.item)
        ready.get("go on", timeout_s=DEADLINE_S)


def train(channel, batch_items, num_steps, max_lag):
    """Take steps; the lags of what was taken."""
    lags = []
    channel.set_version(0, batch_items=batch_items, begins=True)
    for step in range(num_steps):
        batch = channel.get_batch(min_items=batch_items, max_items=batch_items, timeout_s=DEADLINE_S)
        lags += [step - version for version in batch.versions]
        channel.set_version(step + 1, timeout_s=DEADLINE_S)
    channel.end()
    return lags, max_lag


def answer_prompts(channel, prompts, num_prompts):
    """Answer so many prompts with the slots that came along."""
    for _ in range(num_prompts):
        number, slot = prompts.get(timeout_s=DEADLINE_S)
        channel.put(number, slot=slot, timeout_s=DEADLINE_S)


def drop_a_prompt(prompts):
    """Take a prompt, and answer nothing."""
    prompts.get(timeout_s=DEADLINE_S)


def die_with_a_lease(prompts, ready):
    with prompts.lease(timeout_s=DEADLINE_S) as lease:
        ready.put(lease.attempt)
        os.kill(os.getpid(), signal.SIGKILL)
        return lease


def die_with_an_item(channel, prompts, ready):
    item = prompts.get(timeout_s=DEADLINE_S)
    channel.stats()  # behind what the copy in it says
    ready.put(1)
    os.kill(os.getpid(), signal.SIGKILL)
    return item


def die_with_an_acknowledged_item(channel, prompts, ready):
    with prompts.lease(timeout_s=DEADLINE_S) as lease:
        item = lease.item
    channel.stats()
    ready.put(1)
    os.kill(os.getpid(), signal.SIGKILL)
    return item


def send_slot(channel, prompts, number):
    prompts.put((number, channel.admit(max_lag=0, timeout_s=DEADLINE_S)))
