"""Ranks that hang, each in another way."""

import ctypes
import os
import threading

from rlinf.scheduler import Worker
from rlinf_scheduler.observe import reasons


class Hanging(Worker):
    """Its methods do not come back by themselves, or only after a while."""

    def where(self):
        return self.info.pid

    def stand(self, gate):
        pass_through(gate)

    def make_values(self, count, gate, each_s=0.0):
        """So many values, each after a while, and one behind a gate."""
        for value in range(count):
            threading.Event().wait(each_s)  # stands for work
            yield value
        pass_through(gate)
        yield count

    def fail_first(self, gate):
        if self.rank == 0:
            raise LookupError("no data")
        pass_through(gate)

    def hold_the_interpreter(self, gate):
        with open(gate, "rb", buffering=0, opener=_unblocked) as file:
            os.set_blocking(file.fileno(), True)
            ctypes.PyDLL(None).read(file.fileno(), ctypes.create_string_buffer(1), 1)

    def put(self, channel, items=1, queue="default"):
        end = self.connect_channel(channel)
        for number in range(items):
            end.put(number, weight=1, queue_name=queue)

    def take(self, channel, queue="default"):
        return self.connect_channel(channel).get(queue)

    def take_batch(self, channel, weight):
        return self.connect_channel(channel).get_batch(weight)

    def take_one_and_wait_elsewhere(self, full, other):
        for channel in (other, full, other):
            self.connect_channel(channel).get()

    def put_both(self, full, other, items):
        """What it puts into the first one holds it up."""
        ends = self.connect_channel(full), self.connect_channel(other)
        ends[1].put("the beginning")
        for number in range(items):
            ends[0].put(number)
        ends[1].put("the end")

    def receive(self, group, rank):
        return self.recv(group, rank)

    def fetch(self, name, min_version=None):
        return self.fetch_weights(name, {}, min_version=min_version)

    def wait_in_vain(self, wait, *arguments, limit_s=None):
        """What a wait says that is over soon: at its own deadline, or at that of its handle's `wait`."""
        reasons.ASK_FROM_S, reasons.ASK_EVERY_S = 0.1, 0.0
        reasons.MIN_LATE_S = reasons.MAX_LATE_S = 20.0  # this machine may be busy
        operation = getattr(self, wait, None) or self.connect_channel("vain").get
        try:
            if limit_s is None:
                return operation(*arguments, timeout_s=0.2)
            return operation(*arguments, timeout_s=60.0, async_op=True).wait(limit_s)
        except TimeoutError as error:
            return str(error)

    def publish(self, name, version):
        self.publish_weights(name, {}, version)

    def lock(self, gate):
        with self.device_lock():
            pass_through(gate)

    def gather(self, members):
        return self.broadcast(None, [("actor", list(range(members)))], ("actor", 0))

    def work(self, gate):
        """Computes until the gate is there."""
        total = 0
        while not os.path.exists(gate):
            total += 1
        return total > 0

    def stop_for_a_debugger(self):
        answer = 41
        breakpoint()
        return answer

    async def wait_in_a_task(self, channel):
        return await self.connect_channel(channel).get(async_op=True)


class SlowToStart(Worker):
    """Its second rank does not come out of `__init__`."""

    def __init__(self, gate):
        super().__init__()
        if self.rank == 1:
            pass_through(gate)


def pass_through(gate):
    """Return once somebody opens it."""
    with open(gate, "rb") as file:
        file.read(1)


def _unblocked(path, flags):
    """Without waiting for a writer, and as one itself, so that a read waits for the first byte."""
    return os.open(path, os.O_RDWR)
