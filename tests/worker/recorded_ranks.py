"""A worker whose ranks are recorded; in a module of its own, so that ranks, and a replay, import it by name."""

import os
import random

import numpy as np

from rlinf.scheduler import Worker

DEADLINE_S = 60.0


class Rollout(Worker):
    """Keeps what comes to it."""

    def __init__(self, scale):
        super().__init__()
        self.scale = scale
        self.prompts = self.connect_channel("prompts")
        self.inputs = [self.seed, random.random(), float(np.random.random())]

    def pid(self):
        return os.getpid()

    def take(self, number, options):
        self.inputs.append(options)
        for _ in range(number):
            self.inputs.append(self.prompts.get(timeout_s=DEADLINE_S) * self.scale)

    def catch_up(self):
        self.inputs.append(self.prompts.get(timeout_s=DEADLINE_S))

    async def take_async(self):
        self.inputs.append(await self.prompts.get(async_op=True, timeout_s=DEADLINE_S))

    def take_for_ever(self):
        while True:
            self.inputs.append(self.prompts.get(timeout_s=DEADLINE_S))

    def count(self, number):
        for each in range(number):
            self.inputs.append(each)
            yield each

    def say(self, what):
        self.send(what, self.group_name, 0, timeout_s=DEADLINE_S)

    def share(self, rows):
        """Even out among the ranks what they have."""
        keys = np.array([[self.rank, row] for row in range(rows[self.rank])]).reshape(-1, 2)
        sent = self.send_to(self.group_name, keys, rows, async_op=True, tag="keys")
        self.inputs.append(self.recv_from(self.group_name, rows, tag="keys", timeout_s=DEADLINE_S))
        sent.wait(DEADLINE_S)

    def hear(self):
        self.inputs.append(self.recv(self.group_name, 1, timeout_s=DEADLINE_S))
