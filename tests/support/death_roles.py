"""What the processes of `test_death_news` do."""

import threading

from rlinf_scheduler.errors import CommError, PeerDied
from rlinf_scheduler.session.membership import Death

DEADLINE_S = 60.0


def wait_for_item(pipe, member, sender):
    """Wait for what another never sends; say what the wait ended with, and that of a second one."""
    handle = member.mailbox.recv(sender, timeout_s=DEADLINE_S)
    pipe.send("waits")
    texts = []
    for waiting in (handle, None):
        try:
            (waiting or member.mailbox.recv(sender, timeout_s=DEADLINE_S)).wait()
        except PeerDied as error:
            texts.append(str(error))
    return texts


def greet(pipe, member, *others):
    """Connect to others, then live until this process is told that it is dead; returns what it was told."""
    told = threading.Event()
    member.on_close(told.set)
    for other in others:
        endpoint = member.directory.lookup(other, DEADLINE_S).endpoint
        try:
            member.messenger.request(endpoint, "nothing", None).result(DEADLINE_S)
        except CommError as error:
            pipe.send(type(error).__name__)
    pipe.send(member.messenger.endpoint)
    told.wait(DEADLINE_S)
    return member.failure


def ask_again(pipe, member, endpoint):
    """Ask a process whenever the test says so, and send how that ended."""
    pipe.send("ready")
    while pipe.recv():
        try:
            member.messenger.request(endpoint, "nothing", None).result(DEADLINE_S)
        except CommError as error:
            pipe.send((type(error).__name__, str(error)))


def lose(pipe, member, endpoint, loss):
    """Lose a process, as if its link had been cut for too long."""
    peers = member.messenger.peers

    def give_up():
        peers.lose(peers.at(endpoint), "unreachable for 30.0 s: silent", loss)

    member.messenger.submit(give_up)
    pipe.recv()


def declare_and_wait(pipe, member, endpoint):
    """Declare a process dead; say whether this process takes anything of it once that is done."""
    member.deaths.declare_and_wait(Death(endpoint.process_id, "env:0", "replaced"), DEADLINE_S)
    pipe.send("declared")
    try:
        member.messenger.request(endpoint, "nothing", None).result(DEADLINE_S)
    except CommError as error:
        return type(error).__name__, str(error)


def leave(pipe, member):
    """Leave the job in order."""
    del pipe
    member.close()
