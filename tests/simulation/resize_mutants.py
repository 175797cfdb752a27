"""Broken machines of a queue whose shards are the ranks of a group that is resized."""

from __future__ import annotations

from dataclasses import replace

from feeding_mutants import with_policy, with_sharding

from rlinf_scheduler.queueing.producers import GroupProducers
from rlinf_scheduler.queueing.sharding import Shardings, ShardingState
from simulator import Machines


class _CutsForThoseBefore(Shardings):
    """Who hears of a resize goes on with the ranks that there were."""

    def _adopt(self, queue, sharding, plan, out):
        pass


class _TakesTheOldForNew(ShardingState):
    """A rank that has not heard of a resize yet undoes it."""

    def is_replaced_by(self, plan):
        return plan != self.plan


class _SplitsAnew(Shardings):
    """What was cut, and that nobody has seen, is in the queue again when a group is resized."""

    def _adopt(self, queue, sharding, plan, out):
        for shard in sharding.shards:
            for item in [item for part in shard.parts for item in part.items]:
                queue.reopen(item)
            shard.parts.clear()
        super()._adopt(queue, sharding, plan, out)


class _ForgetsWhoHasLeft(ShardingState):
    """What was cut for a rank is gone with it."""

    def resize(self, plan):
        super().resize(plan)
        self.shards = [*self.members]


class _TakesBackAtOnce(Shardings):
    """What was cut for a rank that has left is in the queue again, though it lives."""

    def _take_back(self, queue, sharding, out):
        for shard in sharding.left:
            for item in shard.take_parts():
                queue.reopen(item)
        return True


class _KeepsWhatIsOfTheDead(Shardings):
    """What was cut for a rank that has left and is gone is kept for it."""

    def _take_back(self, queue, sharding, out):
        return False


class _TakesBackOnlyWhatItHad(Shardings):
    """Of a rank that is gone, what it had in hand is lost."""

    def _take_back(self, queue, sharding, out):
        for shard in sharding.left:
            if shard.client not in self._queues.clients:
                shard.in_hand = None
        return super()._take_back(queue, sharding, out)


class _EndsBeforeWhatComesBack(ShardingState):
    """The end does not wait for ranks that have left and may die with what they have."""

    def _why_no_part(self, queue, closed):
        left, self.shards = self.left, [*self.members]
        try:
            return super()._why_no_part(queue, closed)
        finally:
            self.shards += left


class _LetsWhoHasLeftWait(ShardingState):
    """A rank that has left, and had everything, waits for more."""

    def _let_go(self, queue, out):
        pass


class _HeldUpByWhoHasLeft(ShardingState):
    """Nobody gets on as long as one that has left has something to do."""

    @property
    def may_cut(self):
        return super().may_cut and not self.left


def _policy(policy):
    return replace(Machines(), server=with_policy(policy))


def _sharding(sharding):
    return replace(Machines(), server=with_sharding(sharding))


RESIZE_MUTANTS = {
    "cuts for the ranks of before": _policy(_CutsForThoseBefore),
    "takes old ranks for new ones": _sharding(_TakesTheOldForNew),
    "splits what was cut anew": _policy(_SplitsAnew),
    "forgets what was cut for who has left": _sharding(_ForgetsWhoHasLeft),
    "takes back what is of the living": _policy(_TakesBackAtOnce),
    "keeps what is of ranks that are gone": _policy(_KeepsWhatIsOfTheDead),
    "takes back only what was not in hand": _policy(_TakesBackOnlyWhatItHad),
    "ends before what comes back of ranks": _sharding(_EndsBeforeWhatComesBack),
    "lets ranks wait that have left": _sharding(_LetsWhoHasLeftWait),
    "is held up by ranks that have left": _sharding(_HeldUpByWhoHasLeft),
}


class _WaitsForThoseWhoLeft(GroupProducers):
    """A rank that has left is a producer for ever."""

    def resize(self, members):
        before = self.places.members
        if before is not None and not {*before.ranks} <= {*members.ranks}:
            return []
        return super().resize(members)


class _EndsBesideOneAtWork(GroupProducers):
    """What a rank that has left puts still is nobody's."""

    @property
    def over(self):
        return bool(self._members) and {*self._members} <= {*self.places.done}


class _HearsOldNews(GroupProducers):
    """A rank that has not heard of a resize yet undoes it."""

    def resize(self, members):
        self.places.members = None
        return super().resize(members)


class _IsDoneForGood(GroupProducers):
    """A rank that is at work again counts as done once it fails."""

    def join(self, client, number, name, members=None):
        done = [*self.places.done]
        is_in = super().join(client, number, name, members)
        self.places.done = done
        return is_in


class _KnowsOneLife(GroupProducers):
    """The process after one that died has no place."""

    def join(self, client, number, name, members=None):
        return name not in self.places.at_work.values() and super().join(client, number, name, members)


def _group_of(producers):
    return replace(Machines(), group_producers=producers)


GROUP_PRODUCER_MUTANTS = {
    "waits for ranks that have left": _group_of(_WaitsForThoseWhoLeft),
    "ends while a rank that has left puts": _group_of(_EndsBesideOneAtWork),
    "believes old news of producers": _group_of(_HearsOldNews),
    "counts who works again as done": _group_of(_IsDoneForGood),
    "gives the place of a rank to one process": _group_of(_KnowsOneLife),
}
