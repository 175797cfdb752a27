"""What runs on the other machine; each function runs in a process of its own, started by `start_there`."""

import threading

import numpy as np

from rlinf.testing.local import HeldHere, hold_items
from rlinf_scheduler.channel import Channel, StartChannel, Starter
from rlinf_scheduler.comm import Messenger
from rlinf_scheduler.host.host import WorkerHost
from rlinf_scheduler.host.protocol import HostSpec
from rlinf_scheduler.mailbox import open_mailbox
from rlinf_scheduler.session import Session, set_current


def join(secret, address, name, directory=None, **options):
    """This process's place in a job, listening on this machine's address."""
    session = Session(secret, name, home=directory, host=address, tcp=True, **options)
    session.provide(Starter, HeldHere(session))
    set_current(session)
    return session


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
        pipe.send(messenger.request(endpoint, "who", None).result(60).head)


def trade(pipe, secret, address, directory, num_items):
    """Sends back whatever comes for it."""
    runtime = join(secret, address, "rollout:0", directory)
    mailbox = runtime.service(open_mailbox)
    runtime.directory.register("rollout:0", runtime.messenger.endpoint)
    pipe.send(runtime.messenger.endpoint)
    for _ in range(num_items):
        mailbox.send(mailbox.recv("env:0", timeout_s=60).wait(), "env:0", timeout_s=60).wait()
    _stay(pipe)


def hold_channel(pipe, secret, address, directory, spec):
    runtime = join(secret, address, "holder:0", directory)
    pipe.send(runtime.service(Starter).start(StartChannel(spec)))
    _stay(pipe)


def use_channel(pipe, secret, address, directory, items):
    """Puts the items, then gives back what it gets from the queue 'back'."""
    runtime = join(secret, address, "env:0", directory)
    channel = Channel.connect("items", timeout_s=60)
    for item in items:
        channel.put(item, timeout_s=60)
    pipe.send(runtime.messenger.endpoint)
    pipe.send([channel.get("back", timeout_s=60) for _ in items])
    _stay(pipe)


def take_and_wait(pipe, secret, address, directory):
    """Waits for an item that it never gets to read."""
    join(secret, address, "eater:0", directory)
    channel = Channel.connect("items", timeout_s=60)
    waiting = channel.get(async_op=True)
    pipe.send(channel.qsize())  # by now the server knows of the getter
    _stay(pipe)
    del waiting


def hold(pipe, secret, address, directory):
    """Holds its machine's items; says how many whenever it is asked."""
    holder = hold_items(join(secret, address, "holder:0", directory))
    pipe.send("holds")
    while pipe.recv() == "how many":
        pipe.send(holder.num_held)


def put_arrays(pipe, secret, address, directory, name, numbers, size_bytes):
    """Puts arrays under way together; each is full of its number."""
    join(secret, address, name, directory)
    channel = Channel.connect("items", timeout_s=60)
    for number in numbers:
        channel.put(np.full(size_bytes, number, np.uint8), timeout_s=60)
    pipe.send("put")
    _stay(pipe)


def take_arrays(pipe, secret, address, directory, name, count):
    """Takes arrays; gives their numbers."""
    join(secret, address, name, directory)
    channel = Channel.connect("items", timeout_s=60)
    numbers = []
    for _ in range(count):
        item = channel.get(timeout_s=60)
        assert (item == item[0]).all()
        numbers.append(int(item[0]))
    pipe.send(numbers)
    _stay(pipe)


def host_a_rank(pipe, secret, address, directory, log_folder, unreachable_after_s):
    """What a rank's process runs; `directory` launches it, under the name "launch"."""
    spec = HostSpec(
        launch="launch",
        group="rollout",
        rank=1,
        launcher=directory,
        home=directory,
        secret=secret,
        node_ip=address,
        crosses_machines=True,
        encryption=True,
        sys_path=(),
        log_level=0,
        timeout_s=600,
        unreachable_after_s=unreachable_after_s,
        log_folder=log_folder,
    )
    pipe.send("begins")
    WorkerHost().run(spec)


def leave_when_dead(pipe, secret, address, directory):
    """Says how it leaves the job."""
    session = join(secret, address, "env:0", directory)
    session.directory.register("env:0", session.messenger.endpoint)
    left = threading.Event()
    session.on_close(left.set)
    pipe.send(session.messenger.endpoint)
    left.wait(60)
    pipe.send(session.failure)
