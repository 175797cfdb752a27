"""Broken machines of checkpoints."""

from __future__ import annotations

from collections import defaultdict
from copy import copy
from dataclasses import replace

from feeding_mutants import with_policy
from msgspec.structs import replace as changed
from product_mutants import Mutant

from rlinf_scheduler.durable import checkpoints
from rlinf_scheduler.queueing.item import as_name
from rlinf_scheduler.queueing.sharding import Shardings, ShardState
from rlinf_scheduler.queueing.snapshot import Snapshot, Taker, merged
from rlinf_scheduler.queueing.state import ChannelState
from simulator import Machines


class _LeavesOutWhatIsOnLease(Taker):
    """What consumers have on lease is theirs."""

    def _lent(self):
        return []


class _LeavesOutWhatIsOnItsWay(Taker):
    """What was sent was taken."""

    def _sent_by_queue(self):
        return defaultdict(list)


class _LosesPartsInHand(Shardings):
    """A part that was handed out is done with."""

    def _saved(self, shard, items, queue):
        return super()._saved(ShardState(shard.parts, number=shard.number), items, queue)


class KeepsWhatIsDoneWith(ChannelState):
    """An acknowledgement is not part of the checkpoint."""

    def snapshot(self, *, at_rest=False, done=()):
        return super().snapshot(at_rest=at_rest)


class NumbersLeasesAnew(ChannelState):
    """Generations begin at 1 after a restart."""

    def restore(self, record, payloads):
        super().restore(changed(record, last_number=0), payloads)


def _changed(change_queue):
    class Changed(ChannelState):
        def restore(self, record, payloads):
            super().restore(
                changed(record, queues=[change_queue(queue) for queue in record.queues]), payloads
            )

    return Changed


def _with_what_came_back_last(queue):
    """What was on lease stands behind what never left."""
    items = [changed(item, order=order) for order, item in enumerate((*queue.items, *queue.returned))]
    return changed(queue, returned=[], items=items)


def _without_attempts(queue):
    """Nothing was ever given out."""
    return changed(queue, returned=[changed(item, attempts=0) for item in queue.returned])


def _without_priorities(queue):
    """All are the same."""
    return changed(queue, items=[changed(item, priority=0) for item in queue.items])


def _without_steps(queue):
    """Ranks begin anew, and what they had is gone."""
    return changed(queue, sharding=None)


def _with_members(queue):
    """Those who read a subscription before a restart read it still."""
    return (
        queue
        if queue.terms is None
        else changed(queue, membership=changed(queue.membership, members={("gone", 1): None}))
    )


def _without_what_members_had(queue):
    """What a member had is gone with it."""
    return queue if queue.terms is None else changed(queue, returned=[])


class ForgetsSubscriptions(ChannelState):
    """Nobody has read anything."""

    def restore(self, record, payloads):
        queues = [queue for queue in record.queues if queue.terms is None]
        names = {as_name(queue.name) for queue in queues}
        dead = [letter for letter in record.dead if as_name(letter.queue) in names]
        super().restore(changed(record, queues=queues, dead=dead), payloads)


class ForgetsEnds(ChannelState):
    """A queue that has ended takes puts again."""

    def restore(self, record, payloads):
        super().restore(changed(record, ended=[], all_ended=False), payloads)


class ForgetsThatItIsClosed(ChannelState):
    """A closed channel is open again."""

    def restore(self, record, payloads):
        super().restore(changed(record, closed=False), payloads)


class ForgetsTheDead(ChannelState):
    """There are no dead letters."""

    def restore(self, record, payloads):
        super().restore(changed(record, dead=[]), payloads)


class CountsAnew(ChannelState):
    """What was put before does not count."""

    def restore(self, record, payloads):
        super().restore(changed(record, num_accepted=0), payloads)


def _second_look_only(first, second):
    """What has left meanwhile is in another channel."""
    return second


def _first_look_only(first, second):
    """What has come meanwhile is in another channel."""
    return first


def _without_what_passed(first, second):
    """What has both come and gone meanwhile is in another channel."""
    return merged(Snapshot(first.data, first.items, at_rest=True), second)


def _all_of_both(first, second):
    """What is there both times is there twice."""
    return merged(Snapshot(first.data, [copy(item) for item in first.items], at_rest=True), second)


def _with_taker(taker):
    class WithTaker(ChannelState):
        taker_type = taker

    return _server(WithTaker)


def _server(server):
    return replace(Machines(), server=server)


def _with_merged(merged):
    return Mutant(checkpoints, "merged", lambda _whole: merged)


CHECKPOINT_MUTANTS = {
    "leaves out what is on lease": _with_taker(_LeavesOutWhatIsOnLease),
    "leaves out what is on its way": _with_taker(_LeavesOutWhatIsOnItsWay),
    "keeps what a checkpoint says is done with": _server(KeepsWhatIsDoneWith),
    "numbers leases anew after a restart": _server(NumbersLeasesAnew),
    "restores what came back behind the rest": _server(_changed(_with_what_came_back_last)),
    "forgets attempts at a restart": _server(_changed(_without_attempts)),
    "forgets priorities at a restart": _server(_changed(_without_priorities)),
    "forgets steps at a restart": _server(_changed(_without_steps)),
    "loses parts in hand": _server(with_policy(_LosesPartsInHand)),
    "keeps members of subscriptions at a restart": _server(_changed(_with_members)),
    "forgets what members of subscriptions had at a restart": _server(_changed(_without_what_members_had)),
    "forgets subscriptions at a restart": _server(ForgetsSubscriptions),
    "forgets ends at a restart": _server(ForgetsEnds),
    "opens a closed channel by a restart": _server(ForgetsThatItIsClosed),
    "forgets dead letters at a restart": _server(ForgetsTheDead),
    "counts anew after a restart": _server(CountsAnew),
}

MERGE_MUTANTS = {
    "saves the second look only": _with_merged(_second_look_only),
    "saves the first look only": _with_merged(_first_look_only),
    "does not save what comes and goes between two looks": _with_merged(_without_what_passed),
    "saves twice what is there at both looks": _with_merged(_all_of_both),
}
