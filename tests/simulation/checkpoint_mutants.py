"""Broken machines of checkpoints."""

from __future__ import annotations

from collections import defaultdict
from copy import copy
from dataclasses import replace

from feeding_mutants import with_queue

from rlinf.testing.simulation import Machines
from rlinf_scheduler.queueing import ChannelState, Snapshot, as_name, merged
from rlinf_scheduler.queueing.named_queue import NamedQueue
from rlinf_scheduler.queueing.sharding import Sharding


class LeavesOutWhatIsOnLease(ChannelState):
    """What consumers have on lease is theirs."""

    def _leases_by_queue(self, done):
        return defaultdict(list)


class LeavesOutWhatIsOnItsWay(ChannelState):
    """What was sent was taken."""

    def _deliveries_by_queue(self):
        return defaultdict(list)


class KeepsWhatIsDoneWith(ChannelState):
    """An acknowledgement is not part of the checkpoint."""

    def snapshot(self, *, at_rest=False, done=()):
        return super().snapshot(at_rest=at_rest)


class NumbersLeasesAnew(ChannelState):
    """Generations begin at 1 after a restart."""

    def restore(self, record, payloads):
        super().restore(record._replace(last_number=0), payloads)


def _changed(change_queue):
    class Changed(ChannelState):
        def restore(self, record, payloads):
            super().restore(
                record._replace(queues=[change_queue(queue) for queue in record.queues]), payloads
            )

    return Changed


def _with_what_came_back_last(queue):
    """What was on lease stands behind what never left."""
    items = [item._replace(order=order) for order, item in enumerate((*queue.items, *queue.returned))]
    return queue._replace(returned=[], items=items)


def _without_attempts(queue):
    """Nothing was ever given out."""
    return queue._replace(returned=[item._replace(attempts=0) for item in queue.returned])


def _without_priorities(queue):
    """All are the same."""
    return queue._replace(items=[item._replace(priority=0) for item in queue.items])


def _without_steps(queue):
    """Ranks begin anew, and what they had is gone."""
    return queue._replace(sharding=None)


def _with_members(queue):
    """Those who read a subscription before a restart read it still."""
    return queue if queue.tap is None else queue._replace(tap=queue.tap._replace(members=[("gone", 1)]))


def _without_what_members_had(queue):
    """What a member had is gone with it."""
    return queue if queue.tap is None else queue._replace(returned=[])


class ForgetsSubscriptions(ChannelState):
    """Nobody has read anything."""

    def restore(self, record, payloads):
        queues = [queue for queue in record.queues if queue.tap is None]
        names = {as_name(queue.name) for queue in queues}
        dead = [letter for letter in record.dead if as_name(letter.queue) in names]
        super().restore(record._replace(queues=queues, dead=dead), payloads)


class ForgetsEnds(ChannelState):
    """A queue that has ended takes puts again."""

    def restore(self, record, payloads):
        super().restore(record._replace(ended=[], all_ended=False), payloads)


class ForgetsThatItIsClosed(ChannelState):
    """A closed channel is open again."""

    def restore(self, record, payloads):
        super().restore(record._replace(closed=False), payloads)


class ForgetsTheDead(ChannelState):
    """There are no dead letters."""

    def restore(self, record, payloads):
        super().restore(record._replace(dead=[]), payloads)


class CountsAnew(ChannelState):
    """What was put before does not count."""

    def restore(self, record, payloads):
        super().restore(record._replace(num_accepted=0), payloads)


class _LosesPartsInHand(Sharding):
    """A part that was handed out is done with."""

    def contents(self):
        next_step, num_dealt, shards = super().contents()
        return next_step, num_dealt, [(parts[holder is not None :], None) for parts, holder in shards]


class _WithParts(NamedQueue):
    def get_part(self, getter, plan, index, done_step, out):
        if self.sharding is None:
            self.sharding = _LosesPartsInHand(plan)
        super().get_part(getter, plan, index, done_step, out)


def _second_look_only(first, second):
    """What has left meanwhile is in another channel."""
    return second


def _first_look_only(first, second):
    """What has come meanwhile is in another channel."""
    return first


def _without_what_passed(first, second):
    """What has both come and gone meanwhile is in another channel."""
    return merged(Snapshot(first.record, first.items, at_rest=True), second)


def _all_of_both(first, second):
    """What is there both times is there twice."""
    return merged(Snapshot(first.record, [copy(item) for item in first.items], at_rest=True), second)


def _server(server):
    return replace(Machines(), server=server)


CHECKPOINT_MUTANTS = {
    "leaves out what is on lease": _server(LeavesOutWhatIsOnLease),
    "leaves out what is on its way": _server(LeavesOutWhatIsOnItsWay),
    "keeps what a checkpoint says is done with": _server(KeepsWhatIsDoneWith),
    "numbers leases anew after a restart": _server(NumbersLeasesAnew),
    "restores what came back behind the rest": _server(_changed(_with_what_came_back_last)),
    "forgets attempts at a restart": _server(_changed(_without_attempts)),
    "forgets priorities at a restart": _server(_changed(_without_priorities)),
    "forgets steps at a restart": _server(_changed(_without_steps)),
    "loses parts in hand": _server(with_queue(_WithParts)),
    "keeps members of subscriptions at a restart": _server(_changed(_with_members)),
    "forgets what members of subscriptions had at a restart": _server(_changed(_without_what_members_had)),
    "forgets subscriptions at a restart": _server(ForgetsSubscriptions),
    "forgets ends at a restart": _server(ForgetsEnds),
    "opens a closed channel by a restart": _server(ForgetsThatItIsClosed),
    "forgets dead letters at a restart": _server(ForgetsTheDead),
    "counts anew after a restart": _server(CountsAnew),
    "saves the second look only": replace(Machines(), merged=_second_look_only),
    "saves the first look only": replace(Machines(), merged=_first_look_only),
    "does not save what comes and goes between two looks": replace(Machines(), merged=_without_what_passed),
    "saves twice what is there at both looks": replace(Machines(), merged=_all_of_both),
}
