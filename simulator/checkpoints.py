"""A channel is saved at any moment, and its job killed and restarted from what was saved: it has what it must have.

The story itself goes on; the job that was restarted takes everything that it finds, by leases, and is looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from rlinf_scheduler.queueing import (
    ChannelData,
    ChannelState,
    Deliver,
    Instruction,
    Item,
    LeaseTerms,
    OnLease,
    QueueName,
    Reason,
    Refuse,
    Snapshot,
    SubscriptionName,
    WantedPart,
)
from rlinf_scheduler.queueing.instructions import Part
from rlinf_scheduler.queueing.leases import Leases, Settle
from rlinf_scheduler.queueing.messages import EndQueue, Get, Put
from rlinf_scheduler.queueing.taps import Taps
from simulator.channel_server import ChannelServer
from simulator.ledger import Ledger
from simulator.machines import Machines
from simulator.script import SHARDS, TAP, Script
from simulator.world import Violation

# Between the two looks at a channel that is not the only one.
LOOKS_US = 50_000
RESTARTED = "restarted"


class Wanted(NamedTuple):
    """What a checkpoint is to have: of each queue, in order; dead letters; and what may be there besides."""

    queues: dict[QueueName, list[tuple[int, int]]]  # numbers of items, and how often each was given out
    dead: dict[tuple[QueueName, int], int]  # by queue and number

    def numbers(self, of: QueueName | None = None, others_than: QueueName | None = None) -> Iterable[int]:
        """The items of one queue, or of all but one; dead letters too."""
        for queue, items in self.queues.items():
            if of in (None, queue) and queue != others_than:
                yield from (number for number, _ in items)
        for queue, number in self.dead:
            if of in (None, queue) and queue != others_than:
                yield number


class Checkpoints:
    """Takes checkpoints of a channel, and restarts from each.

    Args:
        server: of the channel.
        ledger: what it must hold.
        machines: under test.
        script: the story.
    """

    def __init__(self, server: ChannelServer, ledger: Ledger, machines: Machines, script: Script) -> None:
        self._server = server
        self._ledger = ledger
        self._machines = machines
        self._script = script
        self._world = server.world
        self._draw = draw = self._world.randomness("checkpoints")
        length_us = script.steps[-1].at_us if script.steps else 0
        for _ in range(draw.choice((0, 1, 2))):
            look = self._save if draw.random() < 0.6 else self._look
            self._world.schedule(draw.randint(0, length_us), None, look)

    def _save(self) -> None:
        """Save now, with some lease acknowledged by that, and restart from it."""
        if not self._server.host.alive:
            return
        generations = self._ledger.leases.generations
        done = {self._draw.choice(generations)} if generations and self._draw.random() < 0.5 else set()
        snapshot, wanted = self._take(done)
        restarted = self._restart(snapshot)
        for queue, items in wanted.queues.items():
            found = list(self._take_all(restarted, queue))
            if found != items:
                message = f"a restarted job finds (item, times given out) {found} in {queue}; it should find {items}"
                raise Violation(message, [number for number, _ in (*found, *items)])
        vacant = [name for name, _ in restarted.policy(Taps).vacant()]
        if vacant != [name for name in (TAP,) if SubscriptionName(name) in wanted.queues]:
            raise Violation(f"the subscriptions {vacant} of a restarted job wait for somebody to read them")
        letters = restarted.policy(Leases).dead_letters()
        dead = {(letter.queue.name, letter.item.payload): letter.attempts for letter in letters}
        if dead != wanted.dead:
            raise Violation(f"a restarted job has the dead letters {dead}; it should have {wanted.dead}")
        if self._script.plan is not None:
            self._ledger.check_restarted_shards(SHARDS, self._train(restarted))
        self._check_rest(restarted)

    def _check_rest(self, restarted: ChannelState) -> None:
        num_accepted = len(self._ledger.accepted)
        if restarted.queues.num_accepted != num_accepted:
            raise Violation(
                f"{restarted.queues.num_accepted} items were put, says a restarted job; it were {num_accepted}"
            )
        for queue in self._ledger.queues:
            out = restarted.apply(Put(0, queue, wait=False), RESTARTED, Item(-1))
            is_over = bool(out) and isinstance(out[-1], Refuse) and out[-1].reason is not Reason.FULL
            if is_over != self._ledger.has_ended(queue):
                raise Violation(f"a restarted job takes puts to {queue}: {not is_over}")

    def _look(self) -> None:
        """Look at the channel a first time, and save a moment later."""
        if self._server.host.alive:
            first, wanted = self._take(set())
            self._server.state.queues.watch(first.entered)
            accepted = self._ledger.accepted
            delay_us = self._draw.randint(0, LOOKS_US)
            self._world.schedule(
                self._world.now_us + delay_us, None, self._look_again, (first, wanted, accepted)
            )

    def _look_again(self, first: Snapshot, before: Wanted, accepted: set[int]) -> None:
        if not self._server.host.alive:
            return
        self._server.state.queues.unwatch(first.entered)
        second, after = self._take(set())
        merged = self._machines.merged(first, second)
        if any(item.lost for item in merged.items):
            return  # its bytes are gone since the first look: whoever saves is told to do it once more
        restarted = self._restart(merged)
        self._check_read(restarted, before, after)
        found: Counter[int] = Counter()
        for queue in self._ledger.queues:
            found.update(number for number, _ in self._take_all(restarted, queue))
        letters = restarted.policy(Leases).dead_letters()
        found.update(letter.item.payload for letter in letters if letter.queue.name != SubscriptionName(TAP))
        if self._script.plan is not None:
            found.update(number for part in self._train(restarted).values() for number in part)
        wanted = {
            number for each in (before, after) for number in each.numbers(others_than=SubscriptionName(TAP))
        }
        wanted |= self._ledger.accepted - accepted
        wanted -= self._ledger.gone
        if self._script.plan is None and found != Counter(wanted):
            wrong = sorted((found - Counter(wanted)) + (Counter(wanted) - found))
            raise Violation(f"a job restarted from two looks has lost {wrong}, or has them twice", wrong)
        if max(found.values(), default=1) > 1 or not wanted <= found.keys():
            raise Violation(f"a job restarted from two looks finds {found}; it should find {wanted}")

    def _check_read(self, restarted: ChannelState, before: Wanted, after: Wanted) -> None:
        """Check that a subscription which was read at the second look has all that was not read at one of them."""
        name = SubscriptionName(TAP)
        found = [number for number, _ in self._take_all(restarted, name)]
        found += [
            each.item.payload for each in restarted.policy(Leases).dead_letters() if each.queue.name == name
        ]
        unread = {*before.numbers(of=name), *after.numbers(of=name)} if name in after.queues else set()
        if len(found) > len(set(found)) or not unread - self._ledger.gone <= set(found):
            message = f"a job restarted from two looks has {found} to read; it should have {unread}"
            raise Violation(message, unread)

    def _take(self, done: set[int]) -> tuple[Snapshot, Wanted]:
        self._world.note(self._server.name, "is saved", *done)
        snapshot = self._server.state.snapshot(at_rest=True, done=done)
        queues = {
            _name_of(name): [(item.number, item.attempts) for item in items]
            for name, items in self._ledger.at_rest(done).items()
            if name != SHARDS or self._script.plan is None
        }
        letters = (item for item in self._ledger.leases.dead if not item.is_gone)
        dead = {(_name_of(item.queue), item.number): item.attempts for item in letters}
        return snapshot, Wanted(queues, dead)

    def _restart(self, snapshot: Snapshot) -> ChannelState:
        script = self._script
        state = self._machines.server(script.maxsize, 0, script.total_bytes)
        data = msgspec.msgpack.encode(snapshot.data)
        record = msgspec.msgpack.decode(data, type=ChannelData)
        state.restore(record, [item.payload for item in snapshot.items])
        return state

    def _take_all(self, state: ChannelState, queue: QueueName) -> Iterable[tuple[int, int]]:
        """Take what a queue holds, one after the other: numbers of items, and how often each was given out before."""
        ticket = 0
        while True:
            ticket += 1
            out = state.apply(Get(ticket, queue, wait=False, grant=LeaseTerms(1.0)), RESTARTED)
            if not isinstance(out[0], Deliver) or not isinstance(out[0].grant, OnLease):
                return
            (item,), lease = out[0].items, out[0].grant
            if lease.generation <= self._ledger.leases.last_generation:
                raise Violation(f"lease {lease.generation} was there before a restart", (lease.generation,))
            state.apply(Settle(lease.generation, None, True), RESTARTED)
            yield item.payload, lease.attempts[0] - 1

    def _train(self, state: ChannelState) -> dict[tuple[int, int], list[int]]:
        """Let new ranks train to the end: the parts that they get, by shard and step."""
        plan = self._script.plan
        if plan is None:
            return {}
        state.apply(EndQueue(SHARDS))
        parts: dict[tuple[int, int], list[int]] = {}
        done = dict.fromkeys(range(plan.num_shards), -1)
        ticket = 1_000_000
        has_moved = True
        while done:
            if not has_moved:
                raise Violation(f"the ranks {list(done)} of a restarted job never hear of the end")
            has_moved = False
            for index, step in list(done.items()):
                ticket += 1
                out: list[Instruction] = state.apply(
                    Get(ticket, SHARDS, wait=False, grant=WantedPart(plan, index, step)), RESTARTED
                )
                answer = out[0]
                has_moved |= not isinstance(answer, Refuse) or answer.reason is not Reason.EMPTY
                if isinstance(answer, Deliver) and isinstance(answer.grant, Part):
                    done[index] = answer.grant.step
                    parts[index, answer.grant.step] = [item.payload for item in answer.items]
                elif isinstance(answer, Refuse) and answer.reason is not Reason.EMPTY:
                    del done[index]
        return parts


def _name_of(queue: QueueName) -> QueueName:
    """What the server calls a queue of the books."""
    return SubscriptionName(TAP) if queue == TAP else queue
