"""The connection between two messengers of this process, cut and looked at."""

import contextlib
import os
import socket
import threading
import time

DEADLINE_S = 30.0


def line_between(messenger, other):
    return messenger._peers.by_id[other.endpoint.process_id].line


def on_thread(messenger, function):
    """The function's result, from the I/O thread."""
    results, done = [], threading.Event()
    messenger.submit(lambda: (results.append(function()), done.set()))
    assert done.wait(DEADLINE_S)
    return results[0]


def until(condition):
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        os.sched_yield()


def shut(messenger, other):
    """Cut the connection as the network would: whatever is under way in either direction may be lost."""

    def cut():
        link = line_between(messenger, other).link
        if link is not None:
            with contextlib.suppress(OSError):
                # Not the TLS socket's own method: that goes on in the clear afterwards.
                socket.socket.shutdown(link.connection, socket.SHUT_RDWR)

    on_thread(messenger, cut)
