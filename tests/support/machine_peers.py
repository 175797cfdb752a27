"""What runs on the other machine; each function runs in a process of its own, started by `start_there`."""

from rlinf.scheduler.channel import Channel, host_channel, set_runtime
from rlinf.scheduler.comm import DirectoryClient, Messenger
from rlinf.scheduler.mailbox import Mailbox


class MachineRuntime:
    """What channels need of a process: a messenger that listens on this machine's address, and the directory."""

    def __init__(self, secret, address, name, directory=None):
        self.own_name = name
        self.messenger = Messenger(secret, name=name, host=address, tcp=True)
        self.directory = DirectoryClient(self.messenger, directory or self.messenger.endpoint)

    def start_channel_server(self, name, spec, group_affinity=None, group_rank_affinity=None):
        host_channel(self.messenger, self.directory, spec)
        return self.messenger.endpoint


def run(pipe, machine, function, secret, *args):
    """Enter the machine, then run the function there."""
    machine.enter()
    globals()[function](pipe, secret, machine.address, *args)


def _stay(pipe):
    """Live until the test closes its end or kills the process."""
    try:
        pipe.recv()
    except EOFError:
        return


def serve(pipe, secret, address, unreachable_after_s=30.0):
    """Answers requests, counts notices, and asks back whoever wants it to."""
    messenger = Messenger(
        secret, name="server:0", host=address, tcp=True, unreachable_after_s=unreachable_after_s
    )
    noted = []
    messenger.serve("echo", lambda request: request.reply(request.head, request.frames))
    messenger.serve("size", lambda request: request.reply(sum(map(len, request.frames))))
    messenger.serve("never", lambda request: None)
    messenger.serve("note", lambda request: noted.append((request.head, len(request.frames[0]))))
    messenger.serve("noted", lambda request: request.reply(noted))
    lost = []
    messenger.on_peer_lost(lost.append)
    messenger.serve("lost", lambda request: request.reply(lost))
    pipe.send(messenger.endpoint)
    while True:
        try:
            endpoint = pipe.recv()
        except EOFError:
            return
        messenger.notify(endpoint, "note", "hello", [b"from over there"])
        pipe.send(messenger.request(endpoint, "who", None).result(20).head)


def trade(pipe, secret, address, directory, num_items):
    """Sends back whatever comes for it."""
    runtime = MachineRuntime(secret, address, "rollout:0", directory)
    mailbox = Mailbox(runtime.messenger, runtime.directory, "rollout:0")
    runtime.directory.register("rollout:0", runtime.messenger.endpoint)
    pipe.send(runtime.messenger.endpoint)
    for _ in range(num_items):
        mailbox.send(mailbox.recv("env:0", timeout_s=20).wait(), "env:0", timeout_s=20).wait()
    _stay(pipe)


def hold_channel(pipe, secret, address, directory, spec):
    runtime = MachineRuntime(secret, address, "holder:0", directory)
    pipe.send(runtime.start_channel_server(spec.name, spec))
    _stay(pipe)


def use_channel(pipe, secret, address, directory, items):
    """Puts the items, then gives back what it gets from the queue 'back'."""
    runtime = MachineRuntime(secret, address, "env:0", directory)
    set_runtime(runtime)
    channel = Channel.connect("items", timeout_s=20)
    for item in items:
        channel.put(item, timeout_s=20)
    pipe.send(runtime.messenger.endpoint)
    pipe.send([channel.get("back", timeout_s=20) for _ in items])
    _stay(pipe)


def take_and_wait(pipe, secret, address, directory):
    """Waits for an item that it never gets to read."""
    runtime = MachineRuntime(secret, address, "eater:0", directory)
    set_runtime(runtime)
    channel = Channel.connect("items", timeout_s=20)
    waiting = channel.get(async_op=True)
    pipe.send(channel.qsize())  # by now the server knows of the getter
    _stay(pipe)
    del waiting
