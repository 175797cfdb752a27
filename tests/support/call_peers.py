"""Ranks and callers of group calls without Ray: in this process, or in processes of their own."""

import gc
import threading

import msgspec
import numpy as np

from rlinf_scheduler.addresses import WorkerAddress
from rlinf_scheduler.comm import Messenger, encode
from rlinf_scheduler.errors import SharedMemoryUnreadable
from rlinf_scheduler.host import protocol
from rlinf_scheduler.host.call_loop import CallLoop
from rlinf_scheduler.worker.call import Call, Target
from rlinf_scheduler.worker.result import GroupResult

DEADLINE_S = 60.0
MIB = 1 << 20


class Calculator:
    """What the ranks run."""

    def __init__(self):
        self.heard = []
        self.inside = threading.Event()
        self.gate = threading.Event()
        self.kept = None

    def note(self, value):
        self.heard.append(value if isinstance(value, int) else int(value[0]))
        return value

    def double_in_place(self, array):
        array *= 2
        return array

    def make(self, value):
        return np.full(MIB, value, np.uint8)

    def keep(self, array):
        self.kept = array

    def hold(self, array):
        self.inside.set()
        self.gate.wait(DEADLINE_S)
        return array

    async def give_async(self):
        return 1

    def fail(self):
        raise LookupError("no such thing")


class Rank:
    """A rank in this process, on threads of its own."""

    def __init__(self, messenger, *, runs=True):
        self.worker = Calculator()
        self.messenger = messenger
        self.loop = CallLoop(messenger)
        self.loop.take(self.worker)
        self.thread = threading.Thread(target=self.loop.run, daemon=True)
        if runs:
            self.run()

    def run(self):
        self.thread.start()

    def close(self):
        self.worker.gate.set()
        self.loop.stop()
        self.thread.join(DEADLINE_S)
        assert not self.thread.is_alive()


class Caller:
    """Calls ranks as a group does."""

    def __init__(self, messenger, endpoints, *, warm=True):
        self.messenger = messenger
        self.targets = [
            Target(WorkerAddress("calc", rank), endpoint) for rank, endpoint in enumerate(endpoints)
        ]
        for _ in range(2 if warm else 0):
            # What each side says of its shared memory comes ahead of the second call, and of its answer.
            self("note", -1).wait(DEADLINE_S)

    def __call__(self, method, *args):
        call = Call(self.messenger, method, self.targets, encode((args, {})))
        self.messenger.submit(call.start)
        return GroupResult(call, lambda address, wait_s, otherwise: "it is gone")


class Receptions:
    """What a process received as objects: how many bytes came in the messages; the first so many fail if told to."""

    def __init__(self, messenger):
        self._payloads = messenger.payloads
        self._receive = self._payloads.receive
        self.sizes = []
        self.unreadable = 0
        self._payloads.receive = self.receive

    def receive(self, frames, **options):
        arrived = self._receive(frames, **options)
        size = sum(len(frame) for frame in frames)
        self.sizes.append(size)
        if self.unreadable and size < arrived.size_bytes:
            self.unreadable -= 1
            raise SharedMemoryUnreadable("it is out of descriptors")
        return arrived


def living(kind):
    """The objects of a class that this process keeps: of `Payload`, those on their way.

    Of `ReceivedPayload`, those received.

    Whoever has them keeps them: what is about to go when a test begins is there at its end, too.
    """
    gc.collect()
    return [thing for thing in gc.get_objects() if type(thing) is kind]


def serve_calls(pipe, secret):
    """A rank in a process of its own."""
    messenger = Messenger(secret, name="calc:0")
    loop = CallLoop(messenger)
    pipe.send(messenger.endpoint)
    loop.take(Calculator())
    loop.run()


def call_and_stay(pipe, secret, endpoint, method):
    """A caller that waits for an answer until it is killed."""
    messenger = Messenger(secret, name="driver")
    caller = Caller(messenger, [endpoint])
    pipe.send(messenger.endpoint)
    results = [caller(method, np.ones(MIB, np.uint8)) for _ in range(3)]
    pipe.recv()
    del results


def leave_a_place_open(pipe, secret, endpoint):
    """A caller whose arguments a rank could not read, and that never sends the bytes."""
    messenger = Messenger(secret, name="driver")
    caller = Caller(messenger, [endpoint])
    call = Call(messenger, "note", caller.targets, encode(((np.ones(MIB, np.uint8),), {})))
    answer = messenger.request(
        endpoint, protocol.CALL, protocol.CallRequest("note", 0), call._payloads[0].frames_for(endpoint)
    )
    refusal = msgspec.convert(answer.result(DEADLINE_S).head, type=protocol.CallAnswer)
    pipe.send(isinstance(refusal, protocol.Unread))
    pipe.recv()
