"""Peers that come and go leave nothing in a mailbox."""

import contextlib
import gc

from comm_fixtures import DEADLINE_S
from rlinf_scheduler.comm import ClusterSecret, DirectoryClient, DirectoryServer, Messenger
from rlinf_scheduler.mailbox import Mailbox
from rlinf_scheduler.observe import timekeeping
from waits import wait_until

# What the directory remembers of a name that is gone.
OBJECTS_A_TOMBSTONE = 8


@contextlib.contextmanager
def member(secret, name, directory=None):
    """A messenger and a mailbox, for a while."""
    messenger = Messenger(secret, name=name)
    try:
        if directory is None:
            DirectoryServer(messenger)
        names = DirectoryClient(messenger, directory or messenger.endpoint)
        mailbox = Mailbox(messenger, names, name)
        names.register(name, messenger.endpoint)
        yield messenger, mailbox
    finally:
        messenger.close()


def trade(env, peer, number):
    """Send, receive and broadcast between "env:0" and a peer, both of this process."""
    name, groups = f"rollout-{number}:0", [("env", [0]), (f"rollout-{number}", [0])]
    env.send("item", name, timeout_s=DEADLINE_S).wait()
    assert peer.recv("env:0", timeout_s=DEADLINE_S).wait() == "item"
    peer.send("answer", "env:0", timeout_s=DEADLINE_S).wait()
    assert env.recv(name, timeout_s=DEADLINE_S).wait() == "answer"
    sent = env.broadcast("all", groups, ("env", 0), timeout_s=DEADLINE_S)
    assert peer.broadcast(None, groups, ("env", 0), timeout_s=DEADLINE_S).wait() == "all"
    sent.wait()


def test_peers_that_come_and_go_leave_nothing_behind(monkeypatch):
    monkeypatch.setattr(timekeeping, "MAX_SUMS", 0)  # two thousand waits are told apart, and no more
    monkeypatch.setattr(timekeeping, "_words", timekeeping._words.__wrapped__)  # kept of as many
    secret = ClusterSecret.generate()
    with member(secret, "env:0") as (messenger, env):

        def come_and_go(first, count):
            for number in range(first, first + count):
                with member(secret, f"rollout-{number}:0", messenger.endpoint) as (_, peer):
                    trade(env, peer, number)
                del peer
            # A peer is gone before all that it was here has been forgotten.
            wait_until(lambda: len(messenger.transports()) == 1)
            gc.collect()
            return len(gc.get_objects())

        come_and_go(0, 5)
        before = come_and_go(5, 5)
        after = come_and_go(10, 40)
        assert after - before < 40 * OBJECTS_A_TOMBSTONE
