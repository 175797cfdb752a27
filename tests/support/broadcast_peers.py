"""Members of broadcasts in processes of their own; each function runs in one started by `start_member`."""

import numpy as np

from rlinf_scheduler.comm import DirectoryClient, Messenger
from rlinf_scheduler.mailbox import Mailbox

DEADLINE_S = 60.0


def _join(secret, name, machine, directory):
    messenger = Messenger(secret, name=name, machine_id=machine, tcp=True)
    names = DirectoryClient(messenger, directory)
    mailbox = Mailbox(messenger, names, name)
    names.register(name, messenger.endpoint)
    return mailbox


def _stay(pipe):
    """Live until the test closes its end or kills the process."""
    try:
        pipe.recv()
    except EOFError:
        return


def receive_all(pipe, secret, name, machine, directory, groups, src, report_at):
    """Receives until an error comes; says when it has `report_at` objects, and in the end what came."""
    mailbox = _join(secret, name, machine, directory)
    pipe.send("ready")
    received = []
    error = None
    while error is None:
        handle = mailbox.broadcast(None, groups, src, timeout_s=DEADLINE_S)
        error = handle.exception()
        if error is None:
            number, array = handle.wait()
            assert (array == number).all()
            array[:] = -1
            received.append(number)
            if len(received) == report_at:
                pipe.send("there")
            if number < 0:
                break
    pipe.send((received, error))
    _stay(pipe)


def send_for_ever(pipe, secret, name, machine, directory, groups, src, size):
    mailbox = _join(secret, name, machine, directory)
    pipe.send("ready")
    number = 0
    while True:
        mailbox.broadcast((number, np.full(size, number)), groups, src, timeout_s=DEADLINE_S).wait()
        number += 1
