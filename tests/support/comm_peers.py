"""What the other processes of these tests do; each function runs in one started by `start_process`."""

import os
import threading

from rlinf_scheduler.comm import DirectoryClient, Messenger
from rlinf_scheduler.mailbox import Mailbox


def _messenger(secret, machine, name):
    return Messenger(secret, name=name, machine_id=machine, tcp=machine is not None)


def _stay(pipe):
    """Live until the test closes its end or kills the process."""
    try:
        pipe.recv()
    except EOFError:
        return


def serve_echo(pipe, secret, machine):
    messenger = _messenger(secret, machine, "server:0")
    messenger.serve("echo", lambda request: request.reply(request.head, request.frames))
    messenger.serve("never", lambda request: None)
    pipe.send(messenger.endpoint)
    _stay(pipe)


def ask_and_wait(pipe, secret, machine, server):
    messenger = _messenger(secret, machine, "client:0")
    messenger.request(server, "wait", None)
    pipe.send(messenger.endpoint)
    _stay(pipe)


def send_then_stay(pipe, secret, machine, directory, items, limit_bytes=1 << 20):
    messenger = _messenger(secret, machine, "env:0")
    names = DirectoryClient(messenger, directory)
    mailbox = Mailbox(messenger, names, "env:0", limit_bytes=limit_bytes)
    names.register("env:0", messenger.endpoint)
    for item in items:
        mailbox.send(item, "rollout:0", timeout_s=60).wait()
    pipe.send(messenger.endpoint)
    _stay(pipe)


def send_much(pipe, secret, machine, server, num_messages):
    messenger = _messenger(secret, machine, "client:0")

    def run(first):
        for number in range(first, num_messages, 4):
            messenger.notify(server, "note", [first, number], [bytes(number % 70_000)])

    threads = [threading.Thread(target=run, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pipe.send(messenger.endpoint)
    _stay(pipe)
    messenger.close()


def fork_and_wait(pipe, secret, machine, server):
    messenger = _messenger(secret, machine, "client:0")
    messenger.request(server, "wait", None)
    messenger.request(server, "nothing", None).exception(60)  # by now the connection is there
    child = os.fork()
    if child == 0:
        _stay(pipe)
        os._exit(0)
    pipe.send((messenger.endpoint, child))
    _stay(pipe)
