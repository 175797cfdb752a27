"""Workers of the tests about ranks that come back; in a module of their own, so that workers import them by name."""

import asyncio
import os
import signal
import threading

import numpy as np

from rlinf.scheduler import Worker
from rlinf_scheduler.errors import PeerDied, WeightsReplaced
from rlinf_scheduler.mailbox import open_mailbox
from rlinf_scheduler.session import current_session

DEADLINE_S = 60.0
VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "CUDA_VISIBLE_DEVICES",
    "RLINF_GROUP",
)


class Mortal(Worker):
    """Dies when it is told to, and says who it is."""

    def __init__(self, offset=0, dies_again_until=0, channel=""):
        super().__init__()
        self.offset = offset
        if 0 < self.num_restarts <= dies_again_until:
            os.kill(os.getpid(), signal.SIGKILL)
        self.weights = {"w": np.zeros(4)}
        self.version = -1
        # Made here: go() runs on the loop, and may come before end() has begun on the main thread.
        self.ends = threading.Event()
        self.channel = self.create_channel(channel or f"made by {self.rank} of {self.group_name}")

    def who(self):
        return self.rank, self.world_size, self.num_restarts, self.offset, os.getpid()

    def environment(self):
        return {name: os.environ.get(name) for name in VARIABLES}

    def die(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def end(self):
        """The process, once that is asked for beside it."""
        assert self.ends.wait(DEADLINE_S)
        raise SystemExit

    async def go(self):
        self.ends.set()

    def lease_and_die(self):
        with self.channel.lease(ttl_s=600):
            self.die()

    def die_once(self):
        self.calls = getattr(self, "calls", 0) + 1
        if self.rank == 1 and not self.num_restarts:
            self.die()
        return self.rank, self.num_restarts, self.calls

    def hold(self):
        threading.Event().wait(DEADLINE_S)

    def count(self, number):
        yield from range(number)

    def publish(self, version):
        self.publish_weights("returning", {"w": np.full(4, float(version))}, version)

    def load_weights(self):
        self.version = self.fetch_weights("returning", self.weights, timeout_s=DEADLINE_S)

    def loaded(self):
        return self.version, self.weights["w"].tolist()

    def refuse(self):
        return False

    async def load_weights_beside(self):
        self.loop = asyncio.get_running_loop()
        newest = self.fetch_weights("returning", self.weights, async_op=True, timeout_s=DEADLINE_S)
        self.version = await newest

    async def refuse_beside(self):
        return False

    async def is_on_the_loop_that_made_it_ready(self):
        return asyncio.get_running_loop() is self.loop

    def stream(self):
        yield 1

    def put(self, item):
        self.channel.put(item)

    def take(self):
        return self.channel.get(timeout_s=DEADLINE_S)


class Together(Worker):
    """Computes together with the other ranks, and dies in the middle of that."""

    def __init__(self, dies_if="", channel=""):
        super().__init__()
        if self.rank == 0 and self.num_restarts and (dies_if == "always" or os.path.exists(dies_if)):
            if dies_if != "always":
                os.remove(dies_if)
            os.kill(os.getpid(), signal.SIGKILL)
        self.ready = False
        self.calls = 0
        self.channel = self.connect_channel(channel) if channel else None

    def environment(self):
        return {name: os.environ.get(name) for name in VARIABLES}

    def meet(self):
        import torch

        torch.distributed.init_process_group("gloo")
        return self.add()

    def get_ready(self):
        self.ready = self.meet() == self.world_size

    def add(self, dies=None, until=99):
        """The sum of ones over all ranks, of which one dies meanwhile."""
        import torch

        self.calls += 1
        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group("gloo")
        ones = torch.ones(1)
        torch.distributed.all_reduce(ones)
        if self.rank == dies and self.num_restarts < until:
            os.kill(os.getpid(), signal.SIGKILL)
        torch.distributed.all_reduce(ones)
        return int(ones.item() / self.world_size)

    def die(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def who(self):
        return self.rank, self.num_restarts, self.ready, self.calls

    def hold(self):
        threading.Event().wait(DEADLINE_S)

    def fail(self):
        if self.rank == 0:
            raise LookupError("no rank has died")
        self.hold()

    def lease_and_hold(self):
        with self.channel.lease(ttl_s=600):
            self.hold()

    def publish(self, version):
        self.publish_weights("together", {f"w{self.rank}": np.full(4, float(version))}, version)

    def take(self, plan):
        """The step of the next part, and what is in it."""
        if not hasattr(self, "shard"):
            self.shard = self.channel.shard(self.rank, self.world_size, **plan)
        part = self.shard.next_batch(DEADLINE_S)
        return part.step, list(part)


class Peer(Worker):
    """Exchanges messages with ranks that die, and reads what they publish."""

    def fetch(self, min_version=None, num_ranks=2):
        """The version that came; or what the wait ended with."""
        into = {f"w{rank}": np.zeros(4) for rank in range(num_ranks)}
        try:
            return self.fetch_weights("together", into, min_version=min_version, timeout_s=DEADLINE_S)
        except (PeerDied, WeightsReplaced) as error:
            return type(error).__name__

    def receive(self, group, rank, wait_for_return):
        """What came; or what the wait ended with."""
        try:
            return self.recv(group, rank, timeout_s=DEADLINE_S, wait_for_return=wait_for_return)
        except PeerDied as error:
            return str(error)

    async def waits(self):
        """Whether it has found the process whose message it waits for."""
        return bool(current_session().service(open_mailbox)._inbox._receiving_from)

    def give(self, item, group, rank, wait_for_return):
        try:
            self.send(item, group, rank, timeout_s=DEADLINE_S, wait_for_return=wait_for_return)
        except PeerDied as error:
            return str(error)
        return "sent"
