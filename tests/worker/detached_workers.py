"""Workers of the tests about jobs that outlive their drivers; in a module of their own: workers import them by name."""

import asyncio
import os
import signal
import threading

from rlinf.scheduler import Cluster, PackedPlacementStrategy, Worker

DEADLINE_S = 60.0


class Steady(Worker):
    """Says who it is, waits, and dies when it is told to."""

    def __init__(self, offset=0):
        super().__init__()
        self.offset = offset
        self._gate = asyncio.Event()

    def who(self):
        return self.rank, self.world_size, self.num_restarts, self.offset, os.getpid()

    def die(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def die_once(self):
        if self.rank == 1 and not self.num_restarts:
            self.die()
        return self.num_restarts

    def count(self, number):
        yield from range(number)

    def say(self, text):
        self.log_info(text)

    def wait_for_nobody(self):
        """A wait that ends when its call is given up."""
        self.recv("nobody", 0, timeout_s=DEADLINE_S)

    async def hold_on(self):
        await asyncio.wait_for(self._gate.wait(), DEADLINE_S)
        return "held on"

    async def let_go(self):
        self._gate.set()


class Failing(Worker):
    """Does not come up."""

    def __init__(self):
        super().__init__()
        raise LookupError("no model there")


class Stuck(Worker):
    """Does not come up either, and does not fail."""

    def __init__(self):
        super().__init__()
        threading.Event().wait(DEADLINE_S)


class Outer(Worker):
    """Launches a group of its own."""

    def launch_inner(self):
        self._inner = Steady.create_group(5).launch(Cluster(), PackedPlacementStrategy(0, 0), name="inner")
        return self._inner.name, self._inner.who().wait(DEADLINE_S)[0][3]
