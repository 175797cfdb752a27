"""A channel is saved at any moment, and restored from the file: it has what it must have.

The product saves, writes, reads and restores. The story itself goes on; what was restored is taken, by leases.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from msgspec.structs import replace

from rlinf_scheduler.channel import control_wire, spec
from rlinf_scheduler.channel.features import FEATURES
from rlinf_scheduler.channel.server import ChannelServer
from rlinf_scheduler.channel.spec import ChannelSpec
from rlinf_scheduler.comm.messenger import Messenger
from rlinf_scheduler.comm.promise import Promise
from rlinf_scheduler.durable.checkpoint_files import read_channel
from rlinf_scheduler.durable.checkpoints import restore
from rlinf_scheduler.queueing.dead_letters import DeadLetters
from rlinf_scheduler.queueing.item import Item, QueueName, SubscriptionName
from rlinf_scheduler.queueing.leases import LeaseTerms, OnLease, Settle
from rlinf_scheduler.queueing.members import GroupRanks
from rlinf_scheduler.queueing.messages import Deliver, EndQueue, Get, Instruction, Put, Reason, Refuse
from rlinf_scheduler.queueing.sharding import Part, WantedPart
from rlinf_scheduler.queueing.state import ChannelState
from rlinf_scheduler.queueing.taps import Taps
from simulator.cluster import Cluster
from simulator.groups import GROUP
from simulator.host import Host
from simulator.ledger import Ledger
from simulator.processes import replaced
from simulator.product_users import ChannelUsers, number_of
from simulator.script import SHARDS, TAP, Script
from simulator.world import Violation

# Between the two looks at a channel that is not the only one.
LOOKS_US = 50_000
SAVE_S = 30.0
RESTARTED = "restarted"
FOLDER = "/checkpoints"


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


def wanted_of(books: Ledger, done: Iterable[int], *, has_shards: bool) -> Wanted:
    """Return what a checkpoint is to have, by the books of its moment."""
    queues = {
        _name_of(name): [(item.number, item.attempts) for item in items]
        for name, items in books.at_rest(set(done)).items()
        if name != SHARDS or not has_shards
    }
    letters = (item for item in books.leases.dead if not item.is_gone)
    return Wanted(queues, {(_name_of(item.queue), item.number): item.attempts for item in letters})


class Checkpoints:
    """Has a channel saved, and restored from each file.

    Args:
        cluster: where it is.
        script: the story.
        ledger: what it must hold.
        spec: the channel.
        users: who may save it, by name.
    """

    def __init__(
        self,
        cluster: Cluster,
        script: Script,
        ledger: Ledger,
        channel: ChannelSpec,
        users: dict[str, ChannelUsers],
    ) -> None:
        self._cluster = cluster
        self._script = script
        self._ledger = ledger
        # In what order items leave depends on time, where none is to be passed over for long.
        self._spec = replace(channel, priority_wait_s=None)
        self._users = users
        # Of the file that is written now: the books at each look, and which leases are done with.
        self._looks: list[tuple[Ledger, frozenset[int]]] = []
        self._is_saving = False
        self._num_saved = self._num_started = 0
        self._draw = draw = cluster.world.randomness("checkpoints")
        if script.has_holders:  # a thread that writes waits for what other nodes hold
            return
        ledger.on_saved = self._on_saved
        length_us = script.steps[-1].at_us if script.steps else 0
        for _ in range(draw.choice((0, 1, 2))):
            save = self._save if draw.random() < 0.6 else self._look
            cluster.world.schedule(draw.randint(0, length_us), None, save)

    def _on_saved(self, done: Iterable[int]) -> None:
        """The channel is looked at now."""
        self._ledger.on_saved = None
        self._looks.append((copy.deepcopy(self._ledger), frozenset(done)))
        self._ledger.on_saved = self._on_saved

    # -- who saves -----------------------------------------------------------------------------------

    def _begin(self) -> ChannelUsers | None:
        living = [users for users in self._users.values() if users.host.alive]
        if self._is_saving or not living:
            return None
        self._is_saving = True
        self._looks.clear()
        return self._draw.choice(living)

    def _save(self) -> None:
        """Save, with some lease acknowledged by that."""
        saver = self._begin()
        if saver is not None:
            leases = self._ledger.leases.of(saver.name)
            done = [self._draw.choice(leases)] if leases and self._draw.random() < 0.7 else []
            self._ask(saver, "", done)

    def _look(self) -> None:
        """Look at the channel a first time, and save a moment later."""
        saver = self._begin()
        if saver is not None:
            looked = saver.connection.requests.begin(
                control_wire.Look("token", []), control_wire.Saved, SAVE_S
            )
            looked.add_done_callback(partial(self._on_looked, saver))

    def _on_looked(self, saver: ChannelUsers, looked: Promise[Any]) -> None:
        if not looked.cancelled() and looked.exception(0) is None:
            saver.host.later(self._draw.randint(0, LOOKS_US), self._ask, saver, "token", [])

    def _ask(self, saver: ChannelUsers, token: str, done: list[int]) -> None:
        self._num_saved += 1
        path = f"{FOLDER}/{self._num_saved}"
        self._cluster.world.note(saver.name, "saves", path, *done)
        message = control_wire.Save(token, done, path)
        saved = saver.connection.requests.begin(message, control_wire.Saved, SAVE_S)
        saved.add_done_callback(partial(self._on_reply, path))

    def _on_reply(self, path: str, asked: Promise[Any]) -> None:
        """A file is there; or nobody says so, and there may be one yet: then no other is asked for."""
        if asked.cancelled() or asked.exception(0) is not None:
            return
        saved: control_wire.Saved = asked.result(0).head
        self._is_saving = False
        if saved.problem:
            return
        self._cluster.world.note("checkpoint", path, "is there", saved.num_items)
        if len(self._looks) == 1:
            self._check(self._restart(path), *self._looks[0])
        else:
            self._check_both(self._restart(path), *self._looks)

    def _restart(self, path: str) -> ChannelState:
        messenger = self._start_process()
        with replaced(spec, "ChannelState", self._cluster.machines.server):
            server = ChannelServer(messenger, self._spec, FEATURES)
        restore(server, read_channel(path, messenger.disk))
        return server.state

    def _start_process(self) -> Messenger:
        cluster = self._cluster
        self._num_started += 1
        host = Host(cluster.world, cluster.network, f"{RESTARTED}.{self._num_started}", cluster.machines)
        return cluster.processes.of(host).messenger

    def check_files(self) -> None:
        """Check that each file that is at its place is whole, whenever who wrote it died."""
        if not self._num_saved:
            return
        disk = self._start_process().disk
        for name in disk.listdir(FOLDER):
            if not name.endswith(".new"):
                read_channel(f"{FOLDER}/{name}", disk)

    # -- what was restored ---------------------------------------------------------------------------

    def _wanted(self, books: Ledger, done: Iterable[int] = ()) -> Wanted:
        return wanted_of(books, done, has_shards=self._script.plan is not None)

    def _check(self, restarted: ChannelState, books: Ledger, done: frozenset[int]) -> None:
        wanted = self._wanted(books, done)
        for queue, items in wanted.queues.items():
            found = list(self._take_all(restarted, queue, books))
            # What is taken until the file is written may be left out.
            kept = [item for item in found if item in items or item[0] not in self._ledger.marked]
            must = [item for item in items if item in found or item[0] not in self._ledger.marked]
            if kept != must:
                message = f"a restarted job finds (item, times given out) {found} in {queue}; it should find {items}"
                raise Violation(message, [number for number, _ in (*found, *items)])
        vacant = [name for name, _ in restarted.policy(Taps).vacant()]
        if vacant != [name for name in (TAP,) if SubscriptionName(name) in wanted.queues]:
            raise Violation(f"the subscriptions {vacant} of a restarted job wait for somebody to read them")
        letters = restarted.policy(DeadLetters).of()
        dead = {(letter.queue.name, _number(letter.item)): letter.attempts for letter in letters}
        if dead != wanted.dead:
            raise Violation(f"a restarted job has the dead letters {dead}; it should have {wanted.dead}")
        if self._script.plan is not None:
            ranks = self._draw_ranks()
            books.check_restarted_shards(SHARDS, ranks, self._train(restarted, ranks))
        self._check_rest(restarted, books)

    @staticmethod
    def _check_rest(restarted: ChannelState, books: Ledger) -> None:
        num_accepted = len(books.accepted)
        if restarted.queues.tally.num_items != num_accepted:
            raise Violation(
                f"{restarted.queues.tally.num_items} items were put, says a restarted job; it were {num_accepted}"
            )
        for queue in books.queues:
            out = restarted.apply(Put(0, queue, wait=False), RESTARTED, Item(-1))
            is_over = bool(out) and isinstance(out[-1], Refuse) and out[-1].reason is not Reason.FULL
            if is_over != books.has_ended(queue):
                raise Violation(f"a restarted job takes puts to {queue}: {not is_over}")

    def _check_both(
        self,
        restarted: ChannelState,
        first: tuple[Ledger, frozenset[int]],
        second: tuple[Ledger, frozenset[int]],
    ) -> None:
        """Check what was restored from two looks."""
        books = second[0]
        before, after = self._wanted(*first), self._wanted(*second)
        self._check_read(restarted, before, after, books)
        found: Counter[int] = Counter()
        for queue in books.queues:
            found.update(number for number, _ in self._take_all(restarted, queue, books))
        letters = restarted.policy(DeadLetters).of()
        found.update(_number(letter.item) for letter in letters if letter.queue.name != SubscriptionName(TAP))
        if self._script.plan is not None:
            parts = self._train(restarted, self._draw_ranks())
            found.update(number for part in parts.values() for number in part)
        wanted = {
            number for each in (before, after) for number in each.numbers(others_than=SubscriptionName(TAP))
        }
        wanted |= books.accepted - first[0].accepted
        wanted -= books.gone | (self._ledger.marked - found.keys())
        if self._script.plan is None and found != Counter(wanted):
            wrong = sorted((found - Counter(wanted)) + (Counter(wanted) - found))
            raise Violation(f"a job restarted from two looks has lost {wrong}, or has them twice", wrong)
        if max(found.values(), default=1) > 1 or not wanted <= found.keys():
            raise Violation(f"a job restarted from two looks finds {found}; it should find {wanted}")

    def _check_read(self, restarted: ChannelState, before: Wanted, after: Wanted, books: Ledger) -> None:
        """Check that a subscription which was read at the second look has all that was not read at one of them."""
        name = SubscriptionName(TAP)
        found = [number for number, _ in self._take_all(restarted, name, books)]
        letters = restarted.policy(DeadLetters).of()
        found += [_number(each.item) for each in letters if each.queue.name == name]
        unread = {*before.numbers(of=name), *after.numbers(of=name)} if name in after.queues else set()
        if len(found) > len(set(found)) or not unread - books.gone <= set(found):
            message = f"a job restarted from two looks has {found} to read; it should have {unread}"
            raise Violation(message, unread)

    @staticmethod
    def _take_all(state: ChannelState, queue: QueueName, books: Ledger) -> Iterable[tuple[int, int]]:
        """Take what a queue holds, one after the other: numbers of items, and how often each was given out before."""
        ticket = 0
        while True:
            ticket += 1
            out = state.apply(Get(ticket, queue, wait=False, grant=LeaseTerms(1.0)), RESTARTED)
            if not isinstance(out[0], Deliver) or not isinstance(out[0].grant, OnLease):
                return
            (item,), lease = out[0].items, out[0].grant
            if lease.generation <= books.leases.last_generation:
                raise Violation(f"lease {lease.generation} was there before a restart", (lease.generation,))
            state.apply(Settle(lease.generation, None, True), RESTARTED)
            yield _number(item), lease.attempts[0] - 1

    def _draw_ranks(self) -> Sequence[int]:
        """The ranks of a restarted job: as many as there were, or more, or fewer."""
        num_shards = 0 if self._script.plan is None else self._script.plan.num_shards
        return range(self._draw.choice((num_shards, num_shards, max(1, num_shards - 1), num_shards + 1)))

    def _train(self, state: ChannelState, ranks: Sequence[int]) -> dict[tuple[int, int], list[int]]:
        """Let new ranks train to the end: the parts that they get, by shard and step."""
        if self._script.plan is None:
            return {}
        plan = self._script.plan._replace(num_shards=len(ranks))
        if self._script.is_resized:
            plan = plan.of(GroupRanks(GROUP, tuple(ranks), (2, 0)))
        state.apply(EndQueue(SHARDS))
        parts: dict[tuple[int, int], list[int]] = {}
        done = dict.fromkeys(ranks, -1)
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
                    parts[index, answer.grant.step] = [_number(item) for item in answer.items]
                elif isinstance(answer, Refuse) and answer.reason is not Reason.EMPTY:
                    del done[index]
        return parts


def _name_of(queue: QueueName) -> QueueName:
    """What the server calls a queue of the books."""
    return SubscriptionName(TAP) if queue == TAP else queue


def _number(item: Item) -> int:
    return number_of(item.payload.load())
