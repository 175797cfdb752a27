"""What the processes do whose sends, receives, broadcasts and weights are interrupted, and their partners."""

from __future__ import annotations

import numpy as np

from interruption_roles import item_of, number_of
from job_processes import DEADLINE_S, stay
from rlinf_scheduler.channel import Channel
from rlinf_scheduler.comm.gathering import Gathered
from rlinf_scheduler.observe.status_service import begin_status, received

END = -1


# -- send, recv -----------------------------------------------------------------------------------


def send_numbers(pipe, member, to, count):
    """Sends numbers, and then the end."""
    for number in [*range(count), END]:
        member.mailbox.send(item_of(number), to, timeout_s=DEADLINE_S)
    stay(pipe)


def send_numbers_asked_for(pipe, member, to, count):
    """Sends numbers, each of the first half once it is asked for, so that it is waited for; and then the end."""
    for number in [*range(count), END]:
        if 0 <= number < count // 2:
            member.mailbox.recv(to, timeout_s=DEADLINE_S).wait()
        member.mailbox.send(item_of(number), to, timeout_s=DEADLINE_S)
    stay(pipe)


def receive_until_the_end(_pipe, member, sender):
    """The numbers that came."""
    return list(iter(lambda: number_of(member.mailbox.recv(sender, timeout_s=DEADLINE_S).wait()), END))


def interrupted_sends(_pipe, member, to, rounds, seed, interrupt):
    """(The numbers whose sends gave a handle, how many signals came); each of those handles ends well."""
    handles, interruptions = [], interrupt(seed)
    for number in range(rounds):
        interruptions.attempt(
            lambda number=number: handles.append(
                (number, member.mailbox.send(item_of(number), to, timeout_s=DEADLINE_S))
            )
        )
        if number % 2 and handles:
            interruptions.attempt(handles[-1][1].wait)
    for _, handle in handles:
        handle.wait(DEADLINE_S)
    member.mailbox.send(END, to, timeout_s=DEADLINE_S).wait()
    return [number for number, _ in handles], interruptions.num_signals


def interrupted_recvs(_pipe, member, sender, rounds, seed, interrupt):
    """(The numbers that it received, how many signals came); it gives an interrupted recv up and makes another."""
    got, interruptions = [], interrupt(seed)
    for _ in range(rounds):
        interruptions.attempt(lambda: got.append(member.mailbox.recv(sender, timeout_s=DEADLINE_S).wait()))
    rest = receive_until_the_end(None, member, sender)
    return list(map(number_of, got)) + rest, interruptions.num_signals


def interrupted_waits_for_recvs(_pipe, member, sender, rounds, seed, interrupt):
    """(The numbers that it received, how many signals came); an interrupted wait is taken up again."""
    got, interruptions = [], interrupt(seed)
    for number in range(rounds):
        handle = member.mailbox.recv(sender, timeout_s=DEADLINE_S)
        member.mailbox.send("next", sender, timeout_s=DEADLINE_S)
        while len(got) == number:
            interruptions.attempt(lambda handle=handle: got.append(handle.wait()))
    rest = receive_until_the_end(None, member, sender)
    return list(map(number_of, got)) + rest, interruptions.num_signals


def interrupted_recvs_of_several(_pipe, member, senders, rounds, seed, interrupt):
    """(What it received of all of them at once, how many signals came); it gives an interrupted recv up."""
    got, interruptions = [], interrupt(seed)

    def begin():
        handles = [member.mailbox.recv(sender, timeout_s=DEADLINE_S) for sender in senders]
        return Gathered(handles, list, "receive")

    for _ in range(rounds):
        interruptions.attempt(lambda: got.append(begin().wait()))
    numbers = [tuple(map(number_of, parts)) for parts in got]
    numbers += iter(lambda: tuple(map(number_of, begin().wait())), (END,) * len(senders))
    return numbers, interruptions.num_signals


# -- broadcast ------------------------------------------------------------------------------------


def receive_broadcasts(_pipe, member, groups, src):
    """The numbers that came."""
    receive = lambda: number_of(member.mailbox.broadcast(None, groups, src, timeout_s=DEADLINE_S).wait())  # noqa: E731
    return list(iter(receive, END))


def send_broadcasts(pipe, member, groups, src, count):
    for number in [*range(count), END]:
        member.mailbox.broadcast(item_of(number), groups, src, timeout_s=DEADLINE_S)
    stay(pipe)


def interrupted_broadcasts(_pipe, member, groups, src, rounds, seed, interrupt):
    """(The numbers whose broadcasts gave a handle, how many signals came); each of those handles ends well."""
    handles, interruptions = [], interrupt(seed)
    for number in range(rounds):
        interruptions.attempt(
            lambda number=number: handles.append(
                (number, member.mailbox.broadcast(item_of(number), groups, src, timeout_s=DEADLINE_S))
            )
        )
        if number % 2 and handles:
            interruptions.attempt(handles[-1][1].wait)
    for _, handle in handles:
        handle.wait(DEADLINE_S)
    member.mailbox.broadcast(END, groups, src, timeout_s=DEADLINE_S).wait()
    return [number for number, _ in handles], interruptions.num_signals


def interrupted_receipts_of_broadcasts(_pipe, member, groups, src, rounds, seed, interrupt):
    """(The numbers that it received, how many signals came)."""
    got, interruptions = [], interrupt(seed)
    for _ in range(rounds):
        interruptions.attempt(
            lambda: got.append(member.mailbox.broadcast(None, groups, src, timeout_s=DEADLINE_S).wait())
        )
    rest = receive_broadcasts(None, member, groups, src)
    return list(map(number_of, got)) + rest, interruptions.num_signals


# -- weights --------------------------------------------------------------------------------------


def state_of(version):
    """Small tensors and some that lie in shared memory, all full of the version's number."""
    return {
        f"layer.{place}": np.full(size, version, np.int64) for place, size in enumerate((3, 20_000, 5, 9_000))
    }


def versions_in(state):
    return {int(value) for array in state.values() for value in (array.min(), array.max())}


def publish_continually(pipe, member, name):
    """Publishes one version after the other until the pipe says how to end; which was the last."""
    version = 0
    while not pipe.poll():
        member.weights.publish(name, state_of(version), version)
        version += 1
    pipe.recv()
    return version - 1


def fetch_continually(_pipe, member, name, last):
    """The versions that it fetched whole, until the last one; the others as sets."""
    seen, into = [], state_of(-1)
    while last not in seen:
        version = member.weights.fetch(name, into, timeout_s=DEADLINE_S).wait()
        seen.append(version if versions_in(into) == {version} else versions_in(into))
    return seen


def interrupted_fetches(_pipe, member, name, rounds, seed, interrupt):
    """(What it saw of versions that were not whole, how many signals came).

    An interrupted wait is taken up again in half of the cases; else the fetch is given up.
    """
    broken, interruptions = [], interrupt(seed)
    into = state_of(-1)
    for number in range(rounds):
        handles, versions = [], []
        interruptions.attempt(
            lambda handles=handles: handles.append(member.weights.fetch(name, into, timeout_s=DEADLINE_S))
        )
        if not handles:
            continue
        wait = lambda versions=versions, handle=handles[0]: versions.append(handle.wait())  # noqa: E731
        interruptions.attempt(wait)
        if number % 2 and not versions:
            wait()
        if versions and versions_in(into) != {versions[0]}:
            broken.append((versions[0], versions_in(into)))
    version = member.weights.fetch(name, into, timeout_s=DEADLINE_S).wait()
    if versions_in(into) != {version}:
        broken.append((version, versions_in(into)))
    return broken, interruptions.num_signals


def interrupted_publications(_pipe, member, name, rounds, seed, interrupt):
    """How many signals came; it ends with a publication of version `rounds` that nothing interrupts."""
    interruptions = interrupt(seed)
    for version in range(rounds):
        interruptions.attempt(
            lambda version=version: member.weights.publish(name, state_of(version), version)
        )
    member.weights.publish(name, state_of(rounds), rounds)
    return interruptions.num_signals


def interrupted_first_publications(_pipe, member, prefix, rounds, seed, interrupt):
    """How many signals came; each name is new, and what was interrupted is published once more."""
    interruptions = interrupt(seed)
    state = {"x": np.zeros(3)}
    for number in range(rounds):
        name = f"{prefix}-{number}"
        if not interruptions.attempt(lambda name=name: member.weights.publish(name, state, 0)):
            member.weights.publish(name, state, 1)
    return interruptions.num_signals


# -- handlers that use a channel ------------------------------------------------------------------


def exchanges_beside_a_handler_that_uses_a_channel(_pipe, member, name, peer, rounds, seed, interrupt):
    """(How many signals came, how many of their handlers came to their end.)"""
    channel, num_ended = Channel.connect(name), 0

    def use(_number):
        nonlocal num_ended
        channel.put("from a handler", timeout_s=DEADLINE_S)
        assert channel.get(timeout_s=DEADLINE_S) == "from a handler"
        num_ended += 1

    into, interruptions = state_of(-1), interrupt(seed, on_signal=use)
    for number in range(rounds):
        interruptions.attempt(
            lambda number=number: member.weights.publish("policy", state_of(number), number)
        )
        interruptions.attempt(lambda: member.weights.fetch("policy", into, timeout_s=DEADLINE_S).wait())
        assert versions_in(into) == {number}
        interruptions.attempt(
            lambda number=number: member.mailbox.send(item_of(number), peer).wait(DEADLINE_S)
        )
        interruptions.attempt(lambda: member.mailbox.recv(peer, timeout_s=DEADLINE_S).wait())
    return interruptions.num_signals, num_ended


def send_back(_pipe, member, peer, count):
    for _ in range(count):
        member.mailbox.send(member.mailbox.recv(peer, timeout_s=DEADLINE_S).wait(), peer).wait(DEADLINE_S)


# -- looks at the job ----------------------------------------------------------------------------


def interrupted_looks(_pipe, member, rounds, seed, interrupt):
    """(What a look after all those that were interrupted says, how many signals came)."""
    interruptions = interrupt(seed)
    for _ in range(rounds):
        interruptions.attempt(lambda: received(begin_status(member, 0.0)))
    return received(begin_status(member, 0.0)), interruptions.num_signals
