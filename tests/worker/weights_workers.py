"""Workers that publish and fetch; in a module of their own, so that workers import them by name."""

import os
import signal

import numpy as np

from rlinf.scheduler import Worker
from rlinf_scheduler.errors import CommError

# No page and no other test on the same Ray publishes under it.
NAME = "weights-of-a-test"
SHAPE = (300, 100)


class Learner(Worker):
    """Publishes tensors that all hold the version's number."""

    def publish(self, version):
        self.publish_weights(NAME, {"w": np.full(SHAPE, version, np.float32)}, version)

    def publish_until(self, last):
        for version in range(1, last + 1):
            self.publish(version)

    def die(self):
        os.kill(os.getpid(), signal.SIGKILL)


class Actor(Worker):
    """Fetches into an array of its own."""

    def __init__(self):
        super().__init__()
        self.weights = {"w": np.full(SHAPE, -1, np.float32)}

    def fetch(self, min_version=None, timeout_s=60):
        version = self.fetch_weights(NAME, self.weights, min_version=min_version, timeout_s=timeout_s)
        return version, np.unique(self.weights["w"]).tolist()

    def fetch_until(self, last):
        seen = []
        while not seen or seen[-1][0] < last:
            seen.append(self.fetch(min_version=seen[-1][0] + 1 if seen else None))
        return seen

    async def fetch_beside(self, min_version):
        into = {"w": np.empty(SHAPE)}
        return await self.fetch_weights(NAME, into, min_version=min_version, async_op=True, timeout_s=60)

    def fetch_error(self, **options):
        try:
            self.fetch(**options)
        except CommError as error:
            return type(error).__name__, str(error)
