"""Workers that are recorded; in a module of their own, so that a replay imports them by name."""

import asyncio
import random
import threading
import time

import numpy as np

from rlinf.scheduler import Channel, Slice, Worker
from rlinf_scheduler.errors import ChannelTimeout, ResultTimeout

DEADLINE_S = 60.0


class Learner(Worker):
    """Has inputs of every kind, and keeps them."""

    def __init__(self, scale):
        super().__init__()
        self.scale = scale
        self.inputs = []
        self.weights = {"w": np.zeros(1000)}
        self.trajectories = self.connect_channel("trajectories")
        self.metrics = self.connect_channel("metrics")

    def train(self, learning_rate):
        self.inputs.append(("rate", learning_rate))
        self.inputs.append(("get", self.trajectories.get(timeout_s=DEADLINE_S)))
        batch = self.trajectories.get_batch(max_items=2, min_items=2, timeout_s=DEADLINE_S)
        self.inputs.append(("batch", list(batch), batch.versions, batch.complete))
        later = self.trajectories.get(async_op=True, timeout_s=DEADLINE_S)
        self.inputs.append(("later", later.wait(DEADLINE_S)))
        with self.trajectories.lease(timeout_s=DEADLINE_S) as lease:
            self.inputs.append(("lease", lease.item, lease.attempt))
        try:
            self.metrics.get(timeout_s=0)
        except ChannelTimeout as error:
            self.inputs.append(("nothing", str(error).partition(",")[0]))
        self.inputs.append(("size", self.trajectories.qsize()))
        self.inputs.append(("recv", self.recv("actor", 0, timeout_s=DEADLINE_S)))
        self.inputs.append(("version", self.fetch_weights("policy", self.weights, timeout_s=DEADLINE_S)))
        self.inputs.append(("weights", self.weights["w"].copy()))
        self.inputs.append(("streamed", next(self.stream_weights("policy", timeout_s=DEADLINE_S))[1]))
        self.metrics.put({"loss": float(self.weights["w"].sum()) * self.scale * learning_rate})
        self.metrics.put(np.arange(3) * self.scale, async_op=True).wait(DEADLINE_S)
        self.send(b"done", "actor", 0)

    def fetch_shards(self):
        """Fetch what several processes have shards of: part of it, and a stream."""
        half = np.zeros((2, 6))
        version = self.fetch_weights("shards", {"w": Slice(half, (1, 0), (4, 6))}, timeout_s=DEADLINE_S)
        self.inputs += [("version", version), ("half", half)]
        self.inputs += [(key, array) for key, array in self.stream_weights("shards", timeout_s=DEADLINE_S)]

    def read_beside(self):
        """Two threads read two channels."""
        names = ("trajectories", "metrics")
        threads = [threading.Thread(target=self._read, args=(name,), name=f"reads {name}") for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _read(self, name):
        channel = Channel.connect(name)
        self.inputs.extend((name, channel.get(timeout_s=DEADLINE_S)) for _ in range(3))

    def consult(self):
        channel = self.connect_channel("questions")
        self.inputs.append(("answer", channel.ask("now", timeout_s=DEADLINE_S)))
        later = channel.ask("later", async_op=True, timeout_s=DEADLINE_S)
        self.inputs.append(("answer", later.wait(DEADLINE_S)))
        try:
            channel.ask("what nobody knows", timeout_s=DEADLINE_S)
        except LookupError as error:
            self.inputs.append(("failed", str(error)))

    def answer(self):
        with self.connect_channel("questions").next_request(timeout_s=DEADLINE_S) as request:
            self.inputs.append(("asked", request.item, request.attempt))
            request.reply(request.item * 2)

    def take_tensors(self, buffer):
        self.inputs.append(("tensor", self.trajectories.get(timeout_s=DEADLINE_S)))
        self.inputs.append(("filled", self.recv_tensor(buffer, "actor", 0, timeout_s=DEADLINE_S).clone()))

    def look_whether_it_came(self):
        """Does something else until what it has asked for has come, which takes its time."""
        later = self.metrics.get(async_op=True, timeout_s=DEADLINE_S)
        for _ in range(2):
            self.inputs.append(("meanwhile", self.trajectories.get(timeout_s=DEADLINE_S), later.done()))
        try:
            later.wait(timeout_s=0.01)
        except ResultTimeout:
            self.inputs.append(("not yet", later.done()))
        self.metrics.put("what came")
        while not later.done():
            time.sleep(0.001)
        self.inputs.append(("came", later.wait(timeout_s=DEADLINE_S)))
        never = self.metrics.get(async_op=True)
        self.inputs.append(("afterwards", self.trajectories.get(timeout_s=DEADLINE_S), never.done()))

    def look_for_ever(self):
        never = self.metrics.get(async_op=True)
        while not never.done():
            self.inputs.append(("looked", None))

    def draw(self):
        self.inputs.append(("drawn", self.seed, random.random(), float(np.random.random())))

    def count(self, number):
        for each in range(number):
            self.inputs.append(("counted", each))
            yield each

    async def wait_for_item(self):
        self.inputs.append(("awaited", await self.trajectories.get(async_op=True, timeout_s=DEADLINE_S)))

    async def lease_in_a_task(self):
        async with self.trajectories.lease(timeout_s=DEADLINE_S) as lease:
            self.inputs.append(("lease", lease.item, lease.attempt))

    def fail(self):
        raise LookupError("nothing")

    async def be_cancelled(self):
        raise asyncio.CancelledError

    def get_for_ever(self):
        while True:
            self.inputs.append(("get", self.trajectories.get(timeout_s=DEADLINE_S)))


class Changed(Learner):
    """Has been changed since."""

    def train(self, learning_rate):
        super().train(learning_rate + 1)
