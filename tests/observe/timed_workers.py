"""Ranks whose time goes where a test can foretell it."""

import threading

from rlinf.scheduler import Worker

CHANNEL = "trajectories"


class Collector(Worker):
    """Puts items, each after a while."""

    def collect(self, count, each_s):
        channel = self.connect_channel(CHANNEL)
        for number in range(count):
            with self.timer("simulate"):
                threading.Event().wait(each_s)  # stands for work
            channel.put((self.rank, number), weight=1)

    def keep_busy(self, channel):
        """Works until something is there, mostly beside `collect`."""
        taken = self.connect_channel(channel)
        while taken.empty():
            with self.timer("other work"):
                threading.Event().wait(0.002)  # stands for work

    def where(self):
        return self.info.pid


class Learner(Worker):
    """Takes batches."""

    def update(self, batch_weight):
        batch = self.connect_channel(CHANNEL).get_batch(batch_weight, timeout_s=60)
        with self.timer("learn"), self.timer("forward"):
            threading.Event().wait(0.002)
        self.publish_weights("policy", {}, self.version)
        self.version += 1
        return len(batch)

    def take_on_lease(self):
        with self.connect_channel(CHANNEL).lease(timeout_s=60) as lease:
            return lease.item

    version = 0
