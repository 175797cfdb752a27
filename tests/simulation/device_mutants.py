"""Broken buckets of devices: filled too early, given up too early, never given back; and items that lie in them."""

from __future__ import annotations

from dataclasses import replace

from rlinf_scheduler.devices.open_buckets import OpenBuckets
from rlinf_scheduler.devices.pool import BucketPool
from rlinf_scheduler.queueing.messages import Lose
from rlinf_scheduler.queueing.state import ChannelState
from simulator import Machines


class FillsWhatIsRead(BucketPool):
    """A bucket of the right size will do, whoever reads it."""

    def take(self, size_bytes):
        number = super().take(size_bytes)
        fitting = (
            each for each, size in self._sizes.items() if size >= size_bytes and each not in self._retiring
        )
        return next(fitting, None) if number is None else number


class GrowsWithoutEnd(BucketPool):
    """There is always room for one more."""

    def may_grow(self, size_bytes, free_bytes):
        return True


class KeepsWhatComesBack(BucketPool):
    """What was filled once is never idle again."""

    def give_back(self, number):
        pass


class GivesUpWhatIsTaken(BucketPool):
    """What is given up need not be idle."""

    def retire(self, size_bytes):
        self._idle = set(self._sizes) - self._retiring
        return super().retire(size_bytes)


class ClosesWhatIsRead(OpenBuckets):
    """Whoever reads a bucket has it open anyway."""

    def _closes(self, key):
        if key not in self._unwanted:
            return False
        self._unwanted.remove(key)
        return self._uses.pop(key, None) is not None


class NeverCloses(OpenBuckets):
    """What is open stays open, whatever its owner says."""

    def retire(self, key):
        return False


class KeepsBucketsOfTheDead(OpenBuckets):
    """The end of a process is nothing to its buckets."""

    def lose(self, owner_id):
        return []


class NamesNoLostItem(ChannelState):
    """What went with its producer is gone, without a word."""

    def lose_items(self, why):
        super().lose_items(why)
        for queue in self.queues.all():
            queue.lost, queue.fifo.lost = [], []
        return []


class GivesTakenItemsAgain(ChannelState):
    """What a dead consumer has not confirmed is the next one's, whether it was taken or not."""

    def _lose(self, lose, client):
        return super()._lose(Lose(), client)


def _pool(pool):
    return replace(Machines(), bucket_pool=pool)


def _opened(buckets):
    return replace(Machines(), open_buckets=buckets)


DEVICE_MUTANTS = {
    "fills a bucket that is read": _pool(FillsWhatIsRead),
    "makes buckets without end": _pool(GrowsWithoutEnd),
    "keeps buckets that come back": _pool(KeepsWhatComesBack),
    "gives up buckets that are taken": _pool(GivesUpWhatIsTaken),
    "closes buckets that are read": _opened(ClosesWhatIsRead),
    "never closes a bucket": _opened(NeverCloses),
    "keeps the buckets of the dead": _opened(KeepsBucketsOfTheDead),
}
ITEM_MUTANTS = {
    "names no item that went with its producer": replace(Machines(), server=NamesNoLostItem),
    "gives what was taken on a device to another": replace(Machines(), server=GivesTakenItemsAgain),
}
